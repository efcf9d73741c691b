"""Rules for the fields of ``run``: what they accept beyond their types.

A rule is called with the name of a field and a value. It returns the fault as a sentence, or None.
"""

import math
from collections.abc import Callable
from typing import Any

from stoker.core.errors import UnsupportedURLError
from stoker.core.every import Every
from stoker.storage import store_url

Rule = Callable[[str, Any], str | None]


def rule(holds: Callable[[Any], bool], expected: str) -> Rule:
    """Return the rule that values for which ``holds`` is false break."""
    return lambda name, value: (
        None if holds(value) else f"{name} must be {expected}, got {_written(value)}"
    )


def at_least(least: int) -> Rule:
    """Return the rule for integers from ``least``."""
    return rule(lambda value: value >= least, f"at least {least}")


def at_least_or_auto(least: int) -> Rule:
    """Return the rule for integers from ``least``, or "auto"."""
    return rule(lambda value: value == "auto" or value >= least, f"at least {least}, or auto")


SEED = rule(lambda value: -(2**63) <= value < 2**64, "an integer of at most 64 bits")
THREADS = rule(lambda value: 1 <= value <= 4096, "between 1 and 4096")
SIZE = rule(lambda value: value >= 1 or value == -1, "an integer of at least 1, or -1 to fill")
SECONDS = rule(lambda value: 0 < value < math.inf, "a positive number of seconds")
CLIP = rule(lambda value: value >= 0, "positive, or 0 or null for no limit")
SHARE = rule(lambda value: 0 < value < 1, "between 0 and 1")
BATCHES = rule(
    lambda value: 0 < value <= 1 if isinstance(value, float) else value >= 1,
    "an integer number of batches from 1, or a fraction up to 1.0",
)


def is_name(text: str) -> bool:
    """Return whether a text is the name of a folder inside another: ``first``, ``lr/0.1``."""
    parts = text.split("/")
    return (
        text.isprintable() and "\\" not in text and not {"", ".", ".."} & {*map(str.strip, parts)}
    )


NAME = rule(is_name, "a name such as 'first', without '..'")
NOT_EMPTY = rule(lambda value: str(value).strip() != "", "a text or null")


def period(name: str, value: Any) -> str | None:
    """Accept a period, such as "2ep"."""
    try:
        Every.of(value)
    except ValueError as error:
        return f"{name}: {error}"
    return None


def save_period(name: str, value: Any) -> str | None:
    """Accept a period, "epoch" or "auto"."""
    return None if value in ("epoch", "auto") else period(name, value)


def path(name: str, value: str) -> str | None:
    """Accept a local path, or a URL in an object store."""
    try:
        store_url(value, name)
    except UnsupportedURLError as error:
        return str(error)
    return NOT_EMPTY(name, value)


def device(name: str, value: str) -> str | None:
    """Accept "auto" and the names of torch devices, whether or not this machine has them."""
    import torch

    try:
        torch.device("cpu" if value == "auto" else value)
    except RuntimeError:
        near = "; did you mean 'auto'?" if value.lower() in ("gpu", "tpu", "accelerator") else ""
        return (
            f"{name}: device {value!r} is unknown: expected auto, cpu, cuda, mps or xpu, with an "
            f"index like 'cuda:2' if there are several{near}"
        )
    return None


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value}"
