"""Measure the time from the command to the end of the first step: `stoker train` and a script.

Both train the digits example. The script imports torch and scikit-learn and has a hand-written
loop; the command reads and checks the config, and creates the run folder and the default hooks.
Runs alternate; the figures are medians of wall time and of CPU time, which other work on the
machine disturbs less.

    python benchmarks/startup.py [--rounds 7]
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
import time

from stoker import Hook


class PrintFirstStep(Hook):
    def after_step(self, run):
        print("first step", time.process_time(), flush=True)
        run.stop("the first step is measured")
"""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copy(EXAMPLES / "digits.py", folder)
        config = (EXAMPLES / "digits.yaml").read_text()
        hook = "hooks:\n  - {_target_: first_step.PrintFirstStep}\n"
        (folder / "digits.yaml").write_text(config.replace("hooks:\n", hook))
        (folder / "first_step.py").write_text(PRINT_FIRST_STEP)
        (folder / "plain.py").write_text(PLAIN)
        train = [sys.executable, "-m", "stoker", "train", "digits.yaml", "run.resume=never"]
        commands = {"plain script": [sys.executable, "plain.py"], "stoker train": train}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for round_number in range(options.rounds + 1):
            for name, command in commands.items():
                seconds = first_step(command, folder)
                if round_number:  # the first may have to compile
                    times[name].append(seconds)
    print(f"seconds to the end of the first step, medians of {options.rounds}")
    print(f"  {'':14}{'wall':>8}{'CPU':>12}")
    medians = {}
    for name, pairs in times.items():
        medians[name] = [statistics.median(each) for each in zip(*pairs, strict=True)]
        print(f"  {name:14}{medians[name][0]:8.2f}{medians[name][1]:12.2f}")
    ratios = [b / a for a, b in zip(*medians.values(), strict=True)]
    print(f"  {'ratio':14}{ratios[0]:8.3f}{ratios[1]:12.3f}")


if __name__ == "__main__":
    main()
