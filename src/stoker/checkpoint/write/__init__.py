"""Writing: snapshot the state, then commit it to storage in the background."""
