"""The trainer, its configuration, its callbacks and its metrics."""
