"""Run the jobs of the cookbook with Stoker and with other trainers, and count their lines.

    python tests/foreign/cookbook.py [gpt2 vae …] [--trainers keras …] [--envs FOLDER] [--pages]

A job is a script or notebook in examples/cookbook; the same job with another trainer is a file in
tests/foreign/cookbook, named after the job and the trainer. Each runs in an environment of its own,
made by benchmarks/peers, and the last line that it prints is its result. The results are stored in
tests/foreign/cookbook/results.json. The table and the listings in docs/cookbook*.md are written
from them: each job beside the shortest of the others.

A line counts if it has code: blank lines, comments and docstrings do not. All files are formatted
by ruff in the same way before they are counted.
"""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "cookbook"
THEIRS = Path(__file__).with_name("cookbook")
RESULTS = THEIRS / "results.json"
PAGES = sorted((ROOT / "docs").glob("cookbook*.md"))

TITLES = {
    "gpt2": "GPT-2, token weights, bf16",
    "digits_augmented": "augmentation in workers",
    "vae": "a VAE",
    "reinforce": "REINFORCE",
    "multi_task": "two tasks, two validation sets",
    "k_fold": "k-fold",
    "notebook": "a notebook",
    "optuna_search": "a search with Optuna",
    "streaming": "streaming data",
    "lightning_port": "a port from Lightning",
    "callbacks": "the usual callbacks",
}
"""The jobs in the order of the page."""

TRAINERS = {"lightning": "Lightning", "huggingface": "Hugging Face", "keras": "Keras"}
ENVIRONMENTS = {
    "stoker": ("stoker", ("transformers==5.22.2", "optuna==5.0.0")),
    "lightning": (
        "lightning",
        (
            "transformers==5.22.2",
            "optuna==5.0.0",
            "optuna-integration==5.0.0",
            "pandas",
            "matplotlib",
        ),
    ),
    "huggingface": ("hf_trainer", ("optuna==5.0.0",)),
    "keras": ("keras", ("optuna==5.0.0", "optuna-integration==5.0.0", "matplotlib")),
}
"""By trainer, the peer whose environment it uses, and what the jobs need besides."""

TABLE = "the lines of each job"


def file_of(job: str, trainer: str = "stoker") -> Path | None:
    """Return the file of a job with a trainer; None if there is none."""
    stem = JOBS / job if trainer == "stoker" else THEIRS / f"{job}_{trainer}"
    return next(
        (p for end in (".py", ".ipynb") if (p := stem.with_name(stem.name + end)).exists()), None
    )


def code_of(path: Path) -> str:
    """Return the code of a script, or that of all cells of a notebook."""
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = (one for one in json.loads(text)["cells"] if one["cell_type"] == "code")
    return "\n\n".join("".join(one["source"]) for one in cells) + "\n"


def count_lines(path: Path) -> int:
    """Return the number of lines with code, formatted as all others are."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100"]
    command += ["--config", "format.skip-magic-trailing-comma=true", "-"]
    code = subprocess.run(
        command, input=code_of(path), capture_output=True, text=True, check=True
    ).stdout
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type not in (*ignored, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(code)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of all docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node) is not None:
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def table(results: dict[str, dict[str, str]]) -> str:
    """Return the table of the page: lines, and the result that each reached."""
    trainers = ["stoker", *TRAINERS]
    rows = [f"| job | {' | '.join(['Stoker', *TRAINERS.values()])} | result |", "|---" * 6 + "|"]
    for job, title in TITLES.items():
        files = [file_of(job, trainer) for trainer in trainers]
        counts = [f"[{count_lines(one)}]({_link(one)})" if one else "–" for one in files]
        reached = results.get(job, {})
        label = next(iter(reached.values()), "").partition(":")[0]
        values = [reached[t].partition(": ")[2] if t in reached else "–" for t in trainers]
        rows.append(f"| {title} | {' | '.join(counts)} | {label} {' / '.join(values)} |")
    return "\n".join(rows)


def _link(path: Path) -> str:
    return "../" + path.relative_to(ROOT).as_posix()


def run(python: Path, path: Path) -> str:
    """Run a job in an empty folder, and return the last line that it printed."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "MPLBACKEND": "agg",
    }
    environment |= {"PYTHONPATH": str(ROOT / "src"), "KERAS_BACKEND": "torch"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(code_of(path), "utf-8")
        done = subprocess.run(
            [python, script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if re.search(r": [\d.]+", line)]
    if done.returncode or not lines:
        raise RuntimeError(f"{path.name} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return lines[-1]


def known_results() -> dict[str, dict[str, str]]:
    """Return what was printed when the jobs last ran, by job and trainer."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def side_by_side(job: str, results: dict[str, dict[str, str]]) -> str:
    """Return the listings of a job: with Stoker, and with the trainer that needs fewest lines."""
    others = {trainer: path for trainer in TRAINERS if (path := file_of(job, trainer))}
    best = min(others, key=lambda trainer: count_lines(others[trainer]))
    ours = file_of(job)
    assert ours is not None
    printed = (
        f"\n\n```console\n{results[job]['stoker']}\n```" if "stoker" in results.get(job, {}) else ""
    )
    parts = [_listing("Stoker", ours) + printed, _listing(TRAINERS[best], others[best])]
    inner = "\n".join(f'<div markdown="1">\n\n{part}\n\n</div>' for part in parts)
    return f'<div class="side-by-side" markdown="1">\n{inner}\n</div>'


def _listing(trainer: str, path: Path) -> str:
    code = re.sub(r'^""".*?"""\n', "", code_of(path), flags=re.DOTALL).strip("\n")
    name = path.relative_to(ROOT).as_posix()
    return f"{trainer}, {count_lines(path)} lines:\n\n```python from {name}\n{code}\n```"


def with_generated_parts(page: str) -> str:
    """Return a page with its table and listings as the files and results are now."""
    results = known_results()
    parts = {TABLE: table(results)} | {job: side_by_side(job, results) for job in TITLES}
    marked = r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)"
    fill = lambda match: f"{match[1]}{parts[match[2]]}\n{match[3]}"
    return re.sub(marked, fill, page, flags=re.DOTALL)


def run_jobs(jobs: list[str], trainers: list[str], folder: Path) -> bool:
    """Run the jobs, store each result, and return whether all have succeeded."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    from envs import PEERS, install, python_of

    complete = True
    for trainer in trainers:
        module, needs = ENVIRONMENTS[trainer]
        python = python_of(next(one for one in PEERS if one.module == module), folder, print)
        install(python, needs)
        for job in jobs:
            path = file_of(job, trainer)
            if path is None:
                continue
            try:
                result = run(python, path)
            except RuntimeError as error:
                print(error, flush=True)
                complete = False
                continue
            results = known_results()
            results.setdefault(job, {})[trainer] = result
            RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
            print(f"{job:17} {trainer:12} {count_lines(path):3} lines  {result}", flush=True)
    return complete


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", default=list(TITLES), metavar="JOB")
    parser.add_argument("--trainers", nargs="*", default=list(ENVIRONMENTS), choices=ENVIRONMENTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker"
    parser.add_argument("--envs", type=Path, default=cache, help="folder of the environments")
    parser.add_argument("--pages", action="store_true", help="only write the pages")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.jobs if name not in TITLES]
    if unknown:
        parser.error(f"there is no job {unknown[0]!r}: choose from {', '.join(TITLES)}")
    complete = arguments.pages or run_jobs(arguments.jobs, arguments.trainers, arguments.envs)
    for page in PAGES:
        page.write_text(with_generated_parts(page.read_text("utf-8")), "utf-8")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
