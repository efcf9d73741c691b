"""Measure how soon Stoker starts: its help, the first step, a restart, and the launchers.

    python benchmarks/startup.py [help first restart launchers] [--rounds 7] [--write]

The first step is that of the digits example. The script imports torch and scikit-learn and has a
hand-written loop; the command reads and checks the config, and creates the run folder and the
default hooks. A restart is the same command after a SIGKILL, until a step is done that the first
attempt had not done; it is compared with `import torch`, and trains the project of `stoker new`,
whose model and data need nothing else. The launchers train two steps of the
example on two processes. Runs alternate; figures are medians of wall time, and of CPU time, which
other work on the machine disturbs less.
"""

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import publish

EXAMPLES = Path(__file__).parent.parent / "examples"

PLAIN = """
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
data = TensorDataset(x, torch.tensor(labels, dtype=torch.int64))
train, _ = random_split(data, [len(data) - 360, 360], torch.Generator().manual_seed(0))
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.25), nn.Linear(256, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for x, y in DataLoader(train, batch_size=32, shuffle=True):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    break
print("first step", time.process_time(), flush=True)
"""

PRINT_FIRST_STEP = """
import os
import time

from stoker import Hook


class PrintFirstStep(Hook):
    observes = True

    def after_step(self, run):
        print("first step", time.process_time(), flush=True)
        run.stop("the first step is measured")


class PrintStep(Hook):
    observes = True

    def after_step(self, run):
        os.write(1, f"first step {time.process_time()} {run.step}\\n".encode())
"""
Seconds: TypeAlias = tuple[float, float]
"""Wall and CPU time."""


def first_step(command: list[str], folder: Path) -> tuple[float, float]:
    """Return wall and CPU time until the command reports its first step."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("first step"):
                wall = time.perf_counter() - began
                process.stdout.read()
                return wall, float(line.split()[-1])
    raise SystemExit(f"{' '.join(command)} made no step")


def until_exit(command: list[str], folder: Path) -> Seconds:
    """Return wall and CPU time of a command that ends."""
    before, began = children_cpu(), time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, children_cpu() - before


def children_cpu() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def after_kill(command: list[str], folder: Path) -> Seconds:
    """Kill a training after its 40th step, start it again, and time its first new step."""
    shutil.rmtree(folder / "runs", ignore_errors=True)

    def until(above: int) -> tuple[Seconds, int]:
        """Kill it after a step above that; return the time until then, and its last step."""
        found: Seconds | None = None
        began = time.perf_counter()
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("first step") and (step := int(line.split()[-1])) > above:
                    if found is None:
                        found = time.perf_counter() - began, float(line.split()[2])
                        process.kill()
                    last = step
        if found is None:
            raise SystemExit(f"{' '.join(command)} made no step above {above}")
        return found, last

    _, last = until(40)
    return until(last)[0]


def alternate(variants: dict[str, Callable[[], Seconds]], rounds: int) -> dict[str, list[Seconds]]:
    times: dict[str, list[Seconds]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, measure in variants.items():
            seconds = measure()
            if number:  # the first may have to compile
                times[name].append(seconds)
    return times


def medians(pairs: list[Seconds]) -> tuple[float, ...]:
    return tuple(statistics.median(each) for each in zip(*pairs, strict=True))


def compared(pairs: list[Seconds], base: list[Seconds]) -> tuple[float, ...]:
    """Return the medians of the ratios in each round."""
    both = zip(pairs, base, strict=True)
    ratios = [(mine[0] / theirs[0], mine[1] / theirs[1]) for mine, theirs in both]
    return tuple(statistics.median(each) for each in zip(*ratios, strict=True))


def spread(pairs: list[Seconds]) -> str:
    walls = [wall for wall, _ in pairs]
    return f"{min(walls):.2f} to {max(walls):.2f} s"


def table(
    title: str, text: str, times: dict[str, list[Seconds]], findings: list[publish.Finding]
) -> publish.Table:
    base = next(iter(times))
    rows = []
    for name, pairs in times.items():
        wall, cpu = medians(pairs)
        ratio = compared(pairs, times[base])
        rows.append([name, f"{wall:.2f}", f"{cpu:.2f}", f"{ratio[0]:.2f}", f"{ratio[1]:.2f}"])
    return publish.Table(
        title,
        f"{text} Medians of {len(times[base])} rounds.",
        ["seconds", "CPU seconds", f"× {base}", "× CPU"],
        rows,
        "; ".join(f"{name} {spread(pairs)}" for name, pairs in times.items()),
        {name: medians(pairs)[0] for name, pairs in times.items()},
        "seconds",
        findings=findings,
    )


class Parts:
    """Each method measures one table."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.stoker = [sys.executable, "-m", "stoker"]

    def help(self) -> publish.Table:
        command = shutil.which("stoker", path=str(Path(sys.executable).parent))
        called = [command] if command else self.stoker
        nothing = [sys.executable, "-c", "pass"]
        times = alternate(
            {
                "python -c pass": lambda: until_exit(nothing, self.folder),
                "stoker --help": lambda: until_exit([*called, "--help"], self.folder),
            },
            2 * self.rounds,
        )
        took = 1e3 * medians(times["stoker --help"])[0]
        found = publish.Finding("`stoker --help`", f"{took:.0f} ms", "≤ 100 ms", took <= 100)
        return table("Help", "From the command to its end.", times, [found])

    def first(self) -> publish.Table:
        self.config("PrintFirstStep")
        train = [*self.stoker, "train", "digits.yaml", "run.resume=never"]
        plain = [sys.executable, "plain.py"]
        times = alternate(
            {
                "plain script": lambda: first_step(plain, self.folder),
                "plain script again": lambda: first_step(plain, self.folder),
                "stoker train": lambda: first_step(train, self.folder),
            },
            self.rounds,
        )
        ratio = compared(times["stoker train"], times["plain script"])[0]
        found = publish.Finding(
            "`stoker train` to the first step", f"{ratio:.2f} × a script", "≤ 0.6 ×", ratio <= 0.6
        )
        return table("First step", "From the command to the end of its first step.", times, [found])

    def restart(self) -> publish.Table:
        until_exit([*self.stoker, "new", "job"], self.folder)
        folder = self.folder / "job"
        add_hook(folder / "config.yaml", "PrintStep")
        saving = ["run.checkpoint.every=5st", "run.epochs=1000", "run.progress=false"]
        train = [*self.stoker, "train", "config.yaml", *saving]
        torch = [sys.executable, "-c", "import torch"]
        times = alternate(
            {
                "import torch": lambda: until_exit(torch, self.folder),
                "import torch again": lambda: until_exit(torch, self.folder),
                "stoker train, restarted": lambda: after_kill(train, folder),
            },
            self.rounds,
        )
        ratio = compared(times["stoker train, restarted"], times["import torch"])[0]
        found = publish.Finding(
            "Restart after a kill", f"{ratio:.2f} × `import torch`", "≤ 1.2 ×", ratio <= 1.2
        )
        text = "From the second start to the end of the first step that is new."
        return table("Restart", text, times, [found])

    def launchers(self) -> publish.Table:
        self.config("PrintFirstStep")
        train = [*self.stoker, "train", "digits.yaml", "run.resume=never", "run.epochs=1"]
        ways = {"one process": [], "--nproc 2": ["--nproc", "2"]}
        ways |= {f"--on {on}": ["--on", on, "--workers", "2"] for on in ("ray", "spark")}
        times = alternate(
            {
                name: lambda more=more: until_exit([*train, *more], self.folder)
                for name, more in ways.items()
            },
            max(1, self.rounds // 3),
        )
        text = "From the command to its end, one step; Ray and Spark start a cluster of their own."
        found = [(name, medians(pairs)[0]) for name, pairs in times.items()]
        told = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found)
        return table("Launchers", text, times, [publish.Finding("One step by each launcher", told)])

    def config(self, hook: str) -> None:
        """Write the example into the folder, with a hook that reports steps."""
        shutil.copy(EXAMPLES / "digits.py", self.folder)
        shutil.copy(EXAMPLES / "digits.yaml", self.folder)
        add_hook(self.folder / "digits.yaml", hook)
        (self.folder / "plain.py").write_text(PLAIN)


def add_hook(config: Path, hook: str) -> None:
    """Add a hook that reports steps to a config."""
    line = f"hooks:\n  - {{_target_: first_step.{hook}}}\n"
    config.write_text(config.read_text().replace("hooks:\n", line))
    (config.parent / "first_step.py").write_text(PRINT_FIRST_STEP)


def measured(parts: list[str], rounds: int) -> Iterator[publish.Table]:
    for name in parts:
        with tempfile.TemporaryDirectory() as folder:
            yield getattr(Parts(Path(folder), rounds), name)()


def main() -> None:
    names = ["help", "first", "restart", "launchers"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/start.md")
    options = parser.parse_args()
    tables = [*measured(options.parts or names, options.rounds)]
    publish.finish("start", tables, write=options.write)


if __name__ == "__main__":
    main()
