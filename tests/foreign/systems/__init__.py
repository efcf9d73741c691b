"""What each original trainer needs to run its suite here: files, stand-ins, and exceptions.

A module of this package defines

- ``SUITE``: patterns of test files, in the checkout or in this folder;
- ``PATHS``: folders of the checkout that its tests import from;
- ``NOT_APPLICABLE``: for patterns of files (``tests/a.py``) and tests (``tests/a.py::test_b``) the
  reason why they cannot pass here;
- ``stand_in()``: called at the start of every process, to replace what cannot exist here.
"""

from importlib import import_module
from typing import Any

NAMES = ("colossalai", "libai", "orca", "towhee")


def load(system: str) -> Any:
    """Return the module of a system."""
    return import_module(f"systems.{system}")


def install(system: str) -> None:
    """Replace the original by its dialect in this process, and stand in for what is missing."""
    from stoker.dialects.aliases import Dialects

    Dialects(prefer=True).install()
    load(system).stand_in()
