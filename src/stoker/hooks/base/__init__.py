"""What hooks are built from."""
