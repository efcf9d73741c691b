"""A pytest plugin that skips the tests of a foreign suite that are not applicable."""

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest
from systems import load

ROOT, HOME = Path(os.environ["STOKER_FOREIGN_ROOT"]), Path(__file__).parent


def name_of(path: Path) -> str:
    """Return the name of a test file, relative to the checkout or to this folder."""
    return path.relative_to(ROOT if path.is_relative_to(ROOT) else HOME).as_posix()


def reason(system: str, test: str) -> str | None:
    """Return why a test or a file is not applicable, or None if it is."""
    table = load(system).NOT_APPLICABLE
    return next((why for pattern, why in table.items() if fnmatch(test, pattern)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test = f"{name_of(item.path)}::{item.nodeid.partition('::')[2]}"
        why = reason(os.environ["STOKER_FOREIGN"], test)
        if why is not None:
            item.add_marker(pytest.mark.skip(f"not applicable: {why}"))
