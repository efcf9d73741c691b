"""The exit codes of ``stoker``; 143 follows a SIGTERM."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
