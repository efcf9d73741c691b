"""Saving from several ranks: which rank writes which piece, and how ranks agree on it."""
