"""The folder name of a checkpoint: ``step-00000500``."""

import re

_NAME = re.compile(r"step-(\d{8,15})")


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint of ``step``."""
    return f"step-{step:08}"


def step_in_name(name: str) -> int | None:
    """Return the step that a folder name stands for, or None if it is not a checkpoint's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
