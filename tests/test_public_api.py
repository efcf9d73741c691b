"""The public surface, as a text that shows every change of it in a diff.

After a change that is meant: ``python tests/test_public_api.py`` writes the file anew.
"""

import ast
import inspect
from pathlib import Path

import stoker

SNAPSHOT = Path(__file__).with_name("public_api.txt")
MODULES = ["", "config", "hooks", "metrics", "events", "data", "launch", "nn", "nn.lr"]


def surface() -> str:
    lines = []
    for name in MODULES:
        module = stoker
        for part in filter(None, name.split(".")):
            module = getattr(module, part)
        public = getattr(module, "__all__", None) or [
            n
            for n, v in vars(module).items()
            if inspect.isfunction(v) and v.__module__ == module.__name__ and not n.startswith("_")
        ]
        for item in sorted(public):
            lines += describe(".".join(filter(None, ("stoker", name, item))), getattr(module, item))
    return "\n".join(lines) + "\n"


def describe(path: str, thing: object) -> list[str]:
    if inspect.isfunction(thing):
        return [f"{path}{signature(thing)}"]
    if not inspect.isclass(thing):
        return [path]
    lines = [f"class {path}{signature(thing)}"]
    for base in reversed(thing.__mro__):
        if not base.__module__.startswith("stoker"):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_") and base is thing:
                lines.append(f"    {name}{member(value)}")
    return lines


def member(value: object) -> str:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    return signature(value) if inspect.isfunction(value) else ""


def signature(thing: object) -> str:
    try:
        return str(inspect.signature(thing)).replace("NoneType", "None")
    except (ValueError, TypeError):
        return ""


def test_the_public_surface_is_the_one_written_down():
    assert surface() == SNAPSHOT.read_text(), "run python tests/test_public_api.py if it is meant"


def test_every_name_that_is_promised_exists():
    for module in (stoker, stoker.hooks, stoker.events, stoker.metrics, stoker.data, stoker.nn):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_what_type_checkers_see_is_what_there_is():
    tree = ast.parse(Path(stoker.__file__).with_suffix(".pyi").read_text())
    stubs = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    promised = {alias.asname for node in stubs for alias in node.names}
    assert promised == {*stoker.__all__, "nn", "testing", "dialects"}


if __name__ == "__main__":
    SNAPSHOT.write_text(surface())
