"""``stoker ckpt``: looking at checkpoints, and moving weights in and out.

ckpt_ls         ls, verify          ckpt_find       which checkpoints a path means
ckpt_show       show                ckpt_contents   what is in one, without its tensors
ckpt_diff       diff                ckpt_compare    where two states differ
ckpt_prune      prune               ckpt_write      files that are whole or absent
ckpt_export     export              ckpt_ema, ckpt_onnx
ckpt_import     import
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

from stoker.cli.ckpt_options import ACTIONS
from stoker.cli.main import FAILED, USAGE
from stoker.errors import CheckpointError


def ckpt(options: argparse.Namespace) -> int:
    """Run one action; what is wrong with a checkpoint is said in a line."""
    if options.action is None:
        options.print_help()
        return USAGE
    home, _, name = ACTIONS[options.action][0].partition(":")
    action: Callable[[argparse.Namespace], int] = getattr(import_module(f"stoker.cli.{home}"), name)
    try:
        return action(options)
    except CheckpointError as error:
        fault = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"'{error.filename}' cannot be read: {error.strerror}"
    print(f"stoker: {fault}", file=sys.stderr)
    return USAGE if options.action == "diff" else FAILED  # 1 is for a difference there
