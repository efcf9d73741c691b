"""Who may import whom, and what may stand where: read from the source itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

ROOT = Path(stoker.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    {"core"},
    {"storage"},
    {"events", "metrics", "checkpoint", "config", "data", "parallel", "nn", "launch"},
    {"rundir"},
    {"engine"},
    {"run", "step"},
    {"hooks"},
    {"resume"},
    {"trainer"},
    {"build"},
    {"testing", "board", "report"},
    {"cli"},
    {"dialects"},
    {"__main__"},
]
"""Each line may import from those above it; `step` also imports `run`."""

WITHIN = {("step", "run")}


def area(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def imported_areas(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "stoker":
            names = {alias.name for alias in node.names} - {"__version__"}
            found |= {stoker._HOMES.get(name, name).split(".")[0] for name in names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("stoker.")}
    return found


def test_every_area_has_its_place_in_the_layers():
    assert {area(path) for path in FILES} - {"__init__"} == set().union(*LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up(path):
    own = area(path)
    if own == "__init__":
        return
    for other in imported_areas(path) - {own}:
        allowed = level(other) < level(own) or (own, other) in WITHIN
        assert allowed, f"{path.relative_to(ROOT)} imports stoker.{other}"


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker"):
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_there_are_no_import_cycles():
    def module(path: Path) -> str:
        dotted = ".".join(("stoker", *path.relative_to(ROOT).with_suffix("").parts))
        return dotted.removesuffix(".__init__")

    graph = {module(path): imported_modules(path) for path in FILES}
    # a package and its files are one place: its __init__ only gathers their names
    edges = {
        (name, other)
        for name, others in graph.items()
        for other in others
        if other in graph and not name.startswith(other) and not other.startswith(f"{name}.")
    }
    seen: dict[str, int] = {}

    def visit(name: str) -> None:
        seen[name] = 1
        for start, end in edges:
            if start == name:
                assert seen.get(end) != 1, f"a cycle passes {name} and {end}"
                if end not in seen:
                    visit(end)
        seen[name] = 2

    for name in graph:
        if name not in seen:
            visit(name)


def grep(pattern: str) -> set[str]:
    return {area(path) for path in FILES if re.search(pattern, path.read_text())}


def test_only_the_engine_calls_backward():
    assert grep(r"\.backward\(") <= {"engine", "step", "dialects"}
    assert [p.name for p in FILES if "loss.backward()" in p.read_text()] == ["engine.py"]


def test_torch_distributed_is_imported_where_processes_are_known():
    assert grep(r"torch\.distributed") <= {"core", "parallel", "launch", "checkpoint"}


def test_only_storage_renames_syncs_maps_and_locks_files():
    assert grep(r"\bos\.(rename|replace|fsync|fdatasync)\b|\bmmap\b|\bfcntl\b") == {"storage"}
    renames = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr == "rename" or _is_path_replace(node))
    }
    assert {Path(name).parts[0] for name in renames} == {"storage"}


def _is_path_replace(call: ast.Call) -> bool:
    # str.replace takes two arguments, dataclasses.replace and datetime.replace take keywords
    return call.func.attr == "replace" and len(call.args) == 1 and not call.keywords


def test_nothing_hides_an_import_from_the_reader():
    assert grep(r"TYPE_CHECKING") == set()


def test_a_layout_is_asked_and_never_inspected():
    assert grep(r"isinstance\([^)]*Layout") == set()


def functions() -> list[tuple[Path, ast.FunctionDef]]:
    return [
        (path, node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]


def body_lines(node: ast.FunctionDef) -> int:
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_files_and_functions_stay_readable():
    assert {p.name for p in FILES if len(p.read_text().splitlines()) > 700} == set()
    assert {f"{p.name}:{f.name}" for p, f in functions() if body_lines(f) > 40} == set()


def test_a_run_does_not_grow_into_everything():
    assert len(stoker.Run.__slots__) <= 26


def test_importing_stoker_brings_no_slow_package():
    code = (
        "import sys, torch; before = set(sys.modules); import stoker; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    brought = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    slow = {"rich", "torchmetrics", "tensorboard", "omegaconf", "sklearn", "pandas", "matplotlib"}
    slow |= {"wandb", "mlflow"}
    assert brought & slow == set()


def test_every_public_name_says_what_it_is_for():
    silent = []
    for path in FILES:
        tree = ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            silent.append(str(path))
        for node in ast.walk(tree):
            public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if public and ast.get_docstring(node) is None:
                silent.append(f"{path.name}:{node.name}")
    assert silent == []
