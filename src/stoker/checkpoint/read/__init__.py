"""Reading: verify a checkpoint, and load it in any sharding."""
