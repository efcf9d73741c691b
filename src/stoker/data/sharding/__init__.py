"""Which samples each rank reads."""
