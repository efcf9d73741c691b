"""Resuming a loader in the middle of an epoch."""
