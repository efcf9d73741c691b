"""From files on the disk back to a state."""
