"""From the live state to files on the disk."""
