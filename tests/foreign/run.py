"""Run the test suite of an original trainer against the dialect that replaces it.

    python tests/foreign/run.py SYSTEM PATH [ARGUMENTS OF PYTEST …]

SYSTEM is colossalai, libai, orca or towhee; PATH is a checkout of the original, which is only read.
Its tests import the original's modules and get Stoker's dialect. Each test is passed, failed, or
not applicable, with a reason from the table of its system. The exit code is 0 if every applicable
test passed.
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from systems import NAMES, load

HOME = Path(__file__).parent


def tests_of(path: Path) -> Iterator[str]:
    """Yield the names of the tests in a file, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            functions = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            yield from (f"{node.name}::{f.name}" for f in functions if f.name.startswith("test"))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name


def outcomes(file: Path, arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Run a file with pytest in a process of its own, and yield its tests and their results."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder]
        command += ["-p", "no:cacheprovider", "-p", "plugin", "-o", "junit_family=xunit1"]
        command += [f"--junitxml={results}", str(file), *arguments]
        subprocess.run(command, cwd=folder, check=False)
        for case in ElementTree.parse(results).iter("testcase"):
            owner, name = case.get("classname", "").rpartition(".")[2], case.get("name", "")
            if not name:  # the file could not be imported
                yield from ((test, "failed") for test in tests_of(file))
                return
            yield f"{owner}::{name}" if owner[:1].isupper() else name, result_of(case)


def result_of(case: ElementTree.Element) -> str:
    """Return what became of a test: passed, failed, or the reason why it was skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else str(skipped.get("message"))


def run(system: str, root: Path, arguments: list[str]) -> dict[str, str]:
    """Return the result of each test of a suite."""
    folders = [HOME, HOME / "startup", *(root / path for path in load(system).PATHS), root]
    given = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *given])
    from plugin import name_of, reason

    results: dict[str, str] = {}
    for pattern in load(system).SUITE:
        for file in sorted(root.glob(pattern)) or sorted(HOME.glob(pattern)):
            name = name_of(file)
            why = reason(system, name)
            if why is not None:
                found = [(test, f"not applicable: {why}") for test in tests_of(file)]
            else:
                found = list(outcomes(file, arguments))
            results |= {f"{name}::{test}": result for test, result in found}
    return results


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in NAMES:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    system, root = arguments[0], Path(arguments[1]).resolve()
    os.environ |= {
        "STOKER_FOREIGN": system,
        "STOKER_FOREIGN_HOME": str(HOME),
        "STOKER_FOREIGN_ROOT": str(root),
    }
    results = run(system, root, arguments[2:])
    if not results:
        print(f"no tests: {root} has none of {', '.join(load(system).SUITE)}", file=sys.stderr)
        return 2
    left_out = [why for why in results.values() if why.startswith("not applicable")]
    for test, result in sorted(results.items()):
        if result not in left_out:
            print(f"{result}: {test}")
    for why, count in Counter(left_out).most_common():
        print(f"{why} ({count})")
    passed = Counter(results.values())["passed"]
    applicable = len(results) - len(left_out)
    print(f"{system}: passed {passed} of {applicable} applicable; {len(left_out)} not applicable")
    return 0 if passed == applicable else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
