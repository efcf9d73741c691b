"""The options of ``stoker board``."""

import argparse


def add_board(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument(
        "runs", nargs="?", default="runs", metavar="RUNS", help="a folder of runs, or a run (runs)"
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="where to listen (127.0.0.1); elsewhere needs --token"
    )
    command.add_argument("--port", type=int, help="the port; else the first free one from 6780 on")
    command.add_argument(
        "--token",
        nargs="?",
        const="",
        metavar="WORD",
        help="what visitors must bring; without a word, one is made up",
    )
    command.add_argument("--open", action="store_true", help="show it in the browser")
