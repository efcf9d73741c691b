"""The ``stoker`` command.

Each command is a module or a folder of this package with two functions: ``add_arguments(parser)``
declares its options and ``run(options)`` executes it and returns the exit code. The table in
`stoker.cli.main` lists the commands. Only the module of the chosen command is imported, and it
imports torch inside ``run``, so that help and usage errors are immediate.
"""

from stoker.cli.main import main

__all__ = ["main"]
