"""The command line of a training script."""

import argparse


def default_argument_parser(epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the flags that `default_setup` reads."""
    parser = argparse.ArgumentParser(epilog=epilog)
    parser.add_argument("--config-file", default="", metavar="FILE", help="a lazy config")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument("--eval-only", action="store_true", help="only evaluate")
    parser.add_argument("--fast-dev-run", action="store_true", help="20 iterations, to try it out")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="changes: train.log_period=5 …")
    return parser
