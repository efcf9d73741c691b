"""Saving and restoring the complete state of a run."""
