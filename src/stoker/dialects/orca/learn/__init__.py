"""Training on Orca's names."""
