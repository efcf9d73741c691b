"""Run the scripts of the pages for switchers with both trainers, and compare what they trained.

    python tests/foreign/switchers.py [lightning huggingface keras ignite] [--envs FOLDER]

Each page in docs/ shows a script of another trainer, which is a file in tests/foreign/switchers,
and the same for Stoker, which is its first Python block. Both run with the pinned torch: the other
trainer in an environment of its own, made by benchmarks/peers. A pair is equal if the losses agree
to 1e-5 and the weights to 1e-4; each line also says whether they agree bit for bit.

Then each trainer trains four epochs with AdamW and with SGD, and Stoker imports its checkpoint of
the second and trains the other two (tests/foreign/imports): their weights must agree, too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("switchers")
IMPORTS = Path(__file__).with_name("imports")
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))

from envs import PEERS, UnavailableError, default_folder, python_of, version_of  # noqa: E402

PAIRS = {
    "lightning": "lightning",
    "huggingface": "hf_trainer",
    "keras": "keras",
    "ignite": "ignite",
}
"""The name of a page, and that of its environment."""

RUN = """
import json, runpy, sys, torch
found = runpy.run_path(sys.argv[1], run_name="__main__")
model = found["model"]
weights = model if isinstance(model, dict) else model.state_dict()
weights = {key: torch.as_tensor(one).double().flatten().tolist() for key, one in weights.items()}
print("RESULT " + json.dumps([float(found["val_loss"]), float(found["val_accuracy"]), weights]))
"""


def result_of(python: Path, script: Path) -> tuple[float, float, dict[str, list[float]]]:
    """Return loss, accuracy and weights that a script ends with."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", RUN, script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise SystemExit(f"{script} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    loss, accuracy, weights = json.loads(found[-1].removeprefix("RESULT "))
    return loss, accuracy, weights


def script_of_page(name: str, folder: Path) -> Path:
    """Write the first Python block of a page to a file."""
    page = (ROOT / "docs" / f"from-{name}.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    script = folder / f"stoker_{name}.py"
    script.write_text(blocks[0], encoding="utf-8")
    return script


def compare(name: str, envs: Path, folder: Path) -> bool:
    """Run a pair and print a line; return whether they agree."""
    peer = next(one for one in PEERS if one.module == PAIRS[name])
    stoker = next(one for one in PEERS if one.module == "stoker")
    log = lambda text: print(text, file=sys.stderr)
    python = python_of(peer, envs, log)
    loss, accuracy, theirs = result_of(python, SCRIPTS / f"{name}_script.py")
    our_loss, our_accuracy, ours = result_of(
        python_of(stoker, envs, log), script_of_page(name, folder)
    )
    pairs = list(zip(theirs.values(), ours.values(), strict=True))
    gap = max(abs(a - b) for left, right in pairs for a, b in zip(left, right, strict=True))
    agree = abs(loss - our_loss) < 1e-5 and gap < 1e-4 and abs(accuracy - our_accuracy) < 1e-6
    bits = "the same bits" if gap == 0 else f"largest difference of a weight {gap:.1e}"
    print(
        f"{peer.name} {version_of(peer, python)}: val loss {loss:.6f}, accuracy {accuracy:.4f}; "
        f"Stoker: {our_loss:.6f}, {our_accuracy:.4f}; {bits}{'' if agree else '; THEY DIFFER'}",
        flush=True,
    )
    return agree


MOST = {"lightning": 0.0, "ignite": 0.0, "huggingface": 0.0, "keras": 2e-6}
"""The largest difference of a weight that a continued training may have.

Keras computes the same updates in another order of operations.
"""


def trained(command: list[str | Path], folder: str) -> tuple[str, dict[str, list[float]]]:
    """Return what a script of tests/foreign/imports prints: a checkpoint, and the last weights."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        raise SystemExit(f"{command} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    checkpoint, weights = json.loads(found[-1].removeprefix("RESULT "))
    return checkpoint, {name: flat(one) for name, one in weights.items()}


def flat(value: float | list) -> list[float]:
    """Return the numbers of a nested list."""
    return [value] if isinstance(value, float) else [one for part in value for one in flat(part)]


def continued(name: str, envs: Path) -> bool:
    """Continue what another trainer has trained; print a line for each optimizer."""
    peer = next(one for one in PEERS if one.module == PAIRS[name])
    stoker = next(one for one in PEERS if one.module == "stoker")
    log = lambda text: print(text, file=sys.stderr)
    pythons = [python_of(one, envs, log) for one in (peer, stoker)]
    agreed = []
    for kind in ("adamw", "sgd"):
        with tempfile.TemporaryDirectory() as folder:
            script = IMPORTS / f"{name}_train.py"
            checkpoint, theirs = trained([pythons[0], script, kind, folder], folder)
            script = IMPORTS / "stoker_continue.py"
            _, ours = trained([pythons[1], script, name, kind, checkpoint], folder)
        pairs = zip(flat(list(theirs.values())), flat(list(ours.values())), strict=True)
        gap = max(abs(a - b) for a, b in pairs)
        agreed.append(gap <= MOST[name])
        bits = "the same bits" if gap == 0 else f"largest difference of a weight {gap:.1e}"
        differ = "" if agreed[-1] else f"; MORE THAN {MOST[name]}"
        print(f"{peer.name}, {kind}, imported after 30 of 60 steps: {bits}{differ}", flush=True)
    return all(agreed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", default=list(PAIRS), help=", ".join(PAIRS))
    parser.add_argument("--envs", type=Path, default=default_folder(), help="of the environments")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.pages if name not in PAIRS]
    if unknown:
        parser.error(f"there is no page {unknown[0]!r}: choose from {', '.join(PAIRS)}")
    agreed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.pages:
            try:
                agreed.append(compare(name, arguments.envs, Path(folder)))
                agreed.append(continued(name, arguments.envs))
            except UnavailableError as error:
                print(f"{name}: cannot be installed: {error}")
                agreed.append(False)
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
