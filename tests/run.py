"""Run all tests, and install what some of them need where that is possible.

    python tests/run.py [--all] [ARGUMENTS OF PYTEST …]

The tests of jobs on Spark need a Java runtime, and those of the board need Chromium. Both are
installed with apt-get if this user may do so without a password. Otherwise these tests are left
out, and the last line names them; with ``--all`` that is an error.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A program that the tests of a tier need, and the packages that have it, the best first."""

    tier: str
    what: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    variable: str = ""

    def is_met(self) -> bool:
        given = bool(self.variable and os.environ.get(self.variable))
        return given or any(shutil.which(program) for program in self.programs)


NEEDS = [
    Need(
        "spark",
        "a Java runtime, 17 or newer",
        tuple(f"openjdk-{version}-jre-headless" for version in (17, 21, 25)),
        ("java",),
        "JAVA_HOME",
    ),
    Need("browser", "Chromium", ("chromium",), ("chromium", "google-chrome")),
]

WAITING = 2
"""Workers more than processors: that many tests wait for a process or for a time to pass."""


def root_prefix() -> list[str] | None:
    """Return what a command of root begins with, or None if this user cannot run one."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return ["env"]
    sudo = ["sudo", "-n", "env"]
    if not shutil.which("sudo"):
        return None
    tried = subprocess.run([*sudo, "true"], capture_output=True, check=False)
    return sudo if tried.returncode == 0 else None


def install(needs: list[Need]) -> None:
    """Install the packages of these needs, as far as that is possible."""
    prefix = root_prefix()
    if not needs or prefix is None:
        return
    apt = [*prefix, "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*apt, "update"], check=False)
    for need in needs:
        for package in need.packages:
            command = [*apt, "install", "-y", "--no-install-recommends", package]
            if subprocess.run(command, check=False).returncode == 0:
                break


def main(arguments: list[str]) -> int:
    insist = "--all" in arguments
    install([need for need in NEEDS if not need.is_met()])
    missing = [need for need in NEEDS if not need.is_met()]
    lines = [
        f"left out: the tests marked '{need.tier}', which need {need.what} "
        f"(sudo apt-get install {need.packages[0]})"
        for need in missing
    ]
    if missing and insist:
        print(*lines, sep="\n", file=sys.stderr)
        return 1
    expression = " and ".join(f"not {need.tier}" for need in missing)
    workers = str(len(os.sched_getaffinity(0)) + WAITING)
    command = [sys.executable, "-m", "pytest", "-n", workers, "--dist", "loadgroup"]
    command += ["--no-loadscope-reorder", *(["-m", expression] if missing else [])]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all modules
    rest = [argument for argument in arguments if argument != "--all"]
    code = subprocess.run([*command, *rest], check=False, env=environment).returncode
    if missing:
        print(*lines, sep="\n", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
