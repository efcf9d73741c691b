"""Which rank writes which piece, and how ranks agree on it."""
