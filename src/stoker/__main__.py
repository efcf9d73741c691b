"""``python -m stoker``: the command line, where the command itself is not on the path."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # as for the command: files in the current folder hide no installed module
    from stoker.cli import main

    sys.exit(main())
