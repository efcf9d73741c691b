"""The command ``stoker``: train, evaluate, predict, and see what would happen.

Nothing here imports torch; each command brings its own when it runs.
"""

from stoker.cli.main import main

__all__ = ["main"]
