"""Functions that tests run in connected processes (`support.pool`), by topic."""
