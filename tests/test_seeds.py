"""Every promise of the four older trainers has a test that is named by it."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "seeds.md"

ROWS = {
    "C": (32, "Colossal-AI, hook objects"),
    "Z": (9, "Colossal-AI, hooks as dicts"),
    "L": (23, "LiBai"),
    "O": (23, "BigDL Orca"),
    "T": (26, "Towhee"),
    "X": (7, "all of them"),
}
"""How many promises each document makes, by the letter of their numbers."""

INTRODUCTION = """# What was promised, and where it is held

Stoker gathers what four older trainers promised. Each promise has a number, and each number at
least one test that carries it in its name and fails when it is broken. This page is made by
`python tests/test_seeds.py`, and a test compares it with the tests there are.
"""


def ids() -> list[str]:
    return [f"{letter}{n:02}" for letter, (most, _) in ROWS.items() for n in range(1, most + 1)]


def carriers() -> dict[str, list[str]]:
    """For each number, the tests that carry it."""
    found: dict[str, list[str]] = {row: [] for row in ids()}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            for letter, number in re.findall(r"(?<![a-z0-9])([czlotx])(\d\d)(?!\d)", name):
                row = f"{letter.upper()}{number}"
                if row in found:
                    found[row].append(f"{path.relative_to(TESTS.parent).as_posix()}::{name}")
    return found


def page() -> str:
    lines = [INTRODUCTION]
    found = carriers()
    for letter, (most, system) in ROWS.items():
        lines.append(f"\n## {letter}: {system}\n\n| number | held by |\n|---|---|")
        for number in range(1, most + 1):
            row = f"{letter}{number:02}"
            names = [
                f"`{test.rpartition('::')[2]}` ({test.partition('::')[0]})" for test in found[row]
            ]
            lines.append(f"| {row} | {'<br>'.join(names)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("row", ids())
def test_every_promise_has_a_test(row):
    assert carriers()[row], f"no test is named by {row}"


def test_the_page_lists_the_tests_there_are():
    assert page() == PAGE.read_text(encoding="utf-8"), "run python tests/test_seeds.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
