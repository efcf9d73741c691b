"""Events, checkpoints, processes and logs."""
