"""Each promise of the four older trainers has a test that carries its number as a marker."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "seeds.md"
PROMISES = dict(
    line.split(" ", 1) for line in (TESTS / "promises.txt").read_text(encoding="utf-8").splitlines()
)

ROWS = {
    "C": (32, "Colossal-AI, hook objects"),
    "Z": (9, "Colossal-AI, hooks as dicts"),
    "L": (23, "LiBai"),
    "O": (23, "BigDL Orca"),
    "T": (26, "Towhee"),
    "X": (7, "all of them"),
}
"""The number of promises in each document, by the letter of their numbers."""

INTRODUCTION = """# The 120 promises and the test for each

Stoker keeps 120 promises that four older trainers made in their documentation. Each promise has a
number, and at least one test with that number fails when the promise is broken. To find a test,
search for its marker, for example `@pytest.mark.row("C04")`.

This page is generated from `tests/promises.txt` and the markers: run `python tests/test_seeds.py`
after you add, move or rename such a test.
"""


def ids() -> list[str]:
    return [f"{letter}{n:02}" for letter, (count, _) in ROWS.items() for n in range(1, count + 1)]


def marked_rows(function: ast.FunctionDef) -> list[str]:
    """Return the arguments of the function's ``pytest.mark.row`` decorators."""
    return [
        argument.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.row"
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    ]


def by_row() -> dict[str, list[tuple[str, str]]]:
    """Return the tests of each row, as pairs of path and name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row in marked_rows(node):
                    place = path.relative_to(TESTS.parent).as_posix()
                    found.setdefault(row, []).append((place, node.name))
    return found


def page() -> str:
    lines = [INTRODUCTION]
    found = by_row()
    for letter, (count, system) in ROWS.items():
        lines.append(f"\n## {letter}: {system}\n\n| number | promise | tests |\n|---|---|---|")
        for number in range(1, count + 1):
            row = f"{letter}{number:02}"
            names = [f"`{name}` ({path})" for path, name in found[row]]
            lines.append(f"| {row} | {PROMISES[row]} | {'<br>'.join(names)} |")
    return "\n".join(lines) + "\n"


def test_every_promise_has_a_test_and_every_row_is_a_promise():
    assert sorted(by_row()) == sorted(PROMISES) == sorted(ids())


def test_the_page_lists_the_tests_there_are():
    assert page() == PAGE.read_text(encoding="utf-8"), "run python tests/test_seeds.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
