"""The exit codes of ``stoker``. A run that saved itself after SIGTERM exits with 143."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
