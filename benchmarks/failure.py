"""Measure what a killed process costs a training on two processes.

    python benchmarks/failure.py [stoker elastic torchrun lightning huggingface]
                                 [--period 60] [--kills 3] [--write]

Every trainer trains the same MLP on two processes and saves every three seconds. After each period
one of its processes gets SIGKILL, by turns rank 1 and rank 0; the job recovers by itself. The
effective time is that of the steps that count, each as long as an undisturbed one (the median),
divided by the time from the first to the last step: saves, lost work and restarts are what it
lacks. "By hand" is torchrun with a loop that saves with `torch.save` and resumes. The row without
kills shows what saves and noise alone take.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
BATCH, ROWS = 256, 512 * 400
SECONDS = 3.0
"""Between two saves."""
SAVE_STEPS = 75
"""For trainers that save by steps; about as many seconds."""
ENDLESS = 10**6


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), nn.CrossEntropyLoss()


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 256, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (ROWS,), generator=generator))


class Notes:
    """Notes in a file when each step has ended, and who has which rank."""

    def __init__(self, folder: str, rank: int) -> None:
        Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(f"{folder}/steps", how) if rank == 0 else None

    def step(self, number: int) -> None:
        if self._file is not None:
            os.write(self._file, f"{number} {time.time()}\n".encode())


# The jobs


def train_stoker(folder: str, elastic: bool) -> None:
    from stoker import Engine, Hook, Layout, Trainer, hooks
    from stoker.core import dist

    class Note(Hook):
        """Knows its rank, which changes in an elastic job."""

        notes: Any = None
        rank = -1
        observes = True

        def after_step(self, run: Any) -> None:
            if Note.rank != dist.rank():
                Note.rank = dist.rank()
                Note.notes = Notes(folder, Note.rank)
            Note.notes.step(run.step)

        def state_dict(self) -> dict[str, Any]:
            return {}

    layout = Layout(replicate=-1, logical_ranks=2) if elastic else Layout(replicate=-1)
    saving = hooks.Checkpoint(SAVE_STEPS if elastic else f"{SECONDS / 60}min")
    used = [*hooks.default(progress=False, checkpoint=saving), Note()]
    trainer = Trainer(Engine(*parts(), layout=layout), used, run_dir=f"{folder}/run")
    loader = DataLoader(dataset(), BATCH if elastic else 2 * BATCH, shuffle=True)
    trainer.fit(loader, epochs=ENDLESS)


def job_stoker(folder: str) -> None:
    from stoker import launch

    launch.run(train_stoker, folder, False, nproc=2, max_restarts=100)


def job_elastic(folder: str) -> None:
    from stoker import launch

    launch.run(train_stoker, folder, True, nproc=2, elastic=(1, 2))


def job_torchrun(folder: str) -> None:
    """The loop by hand, with DistributedDataParallel."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    notes, path = Notes(folder, rank), Path(folder) / "last.pt"
    model, optimizer, criterion = parts()
    step, saved_at = 0, time.monotonic()
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    sampler = DistributedSampler(data := dataset())
    loader = DataLoader(data, BATCH, sampler=sampler)
    per_epoch, skipped = len(loader), step % len(loader)
    for epoch in range(step // per_epoch, ENDLESS):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if number < skipped:
                continue
            optimizer.zero_grad()
            criterion(parallel(x), y).backward()
            optimizer.step()
            step += 1
            notes.step(step)
            if rank == 0 and time.monotonic() - saved_at >= SECONDS:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, aside := path.with_suffix(".new"))
                aside.replace(path)
                saved_at = time.monotonic()
        skipped = 0


def job_lightning(folder: str) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    notes = Notes(folder, int(os.environ["RANK"]))
    model, optimizer, criterion = parts()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, rows: Any) -> Any:
            return criterion(self.net(rows[0]), rows[1])

        def on_train_batch_end(self, *_: Any) -> None:
            notes.step(self.global_step)

        def configure_optimizers(self) -> Any:
            return optimizer

    saving = ModelCheckpoint(
        folder, train_time_interval=timedelta(seconds=SECONDS), save_last=True, save_top_k=1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=-1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving],
    )
    last = Path(folder) / "last.ckpt"
    loader = DataLoader(dataset(), BATCH, shuffle=True)
    trainer.fit(Module(), loader, ckpt_path=last if last.exists() else None)


def job_huggingface(folder: str) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    notes = Notes(folder, int(os.environ["RANK"]))
    net, optimizer, criterion = parts()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": criterion(self.net(x), labels)}

    class Note(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            notes.step(state.global_step)

    def collated(rows: list[Any]) -> dict[str, Any]:
        x, labels = zip(*rows, strict=True)
        return {"x": torch.stack(x), "labels": torch.stack(labels)}

    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=1000,
        per_device_train_batch_size=BATCH,
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        max_grad_norm=0.0,
        logging_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = Trainer(
        Model(),
        arguments,
        train_dataset=dataset(),
        data_collator=collated,
        optimizers=(optimizer, constant),
        callbacks=[Note()],
    )
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")) or None)


@dataclass(frozen=True)
class Kind:
    title: str
    job: Any
    peer: str = ""
    by_torchrun: bool = True


KINDS = {
    "stoker": Kind("Stoker, restart", job_stoker, by_torchrun=False),
    "elastic": Kind("Stoker, elastic", job_elastic, by_torchrun=False),
    "torchrun": Kind("torchrun, by hand", job_torchrun, "plain"),
    "lightning": Kind("torchrun, Lightning", job_lightning, "lightning"),
    "huggingface": Kind("torchrun, Hugging Face", job_huggingface, "hf_trainer"),
}


# The driver


@dataclass
class Found:
    """What one training has done: the steps with their times, and the kills."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    @property
    def step_seconds(self) -> float:
        return statistics.median(b - a for (_, a), (_, b) in pairwise(self.steps))

    @property
    def effective(self) -> float:
        numbers = {number for number, _ in self.steps}
        seconds = max(when for _, when in self.steps) - min(when for _, when in self.steps)
        return len(numbers) * self.step_seconds / seconds

    @property
    def repeated(self) -> int:
        return len(self.steps) - len({number for number, _ in self.steps})

    @property
    def recoveries(self) -> list[float]:
        """The seconds from each kill to the end of the next step that is new."""
        found = []
        for kill in self.kills:
            reached = max(number for number, when in self.steps if when <= kill)
            new = [when for number, when in self.steps if when > kill and number > reached]
            found.append(min(new, default=float("inf")) - kill)
        return found


def command_of(name: str, folder: str) -> list[str]:
    kind = KINDS[name]
    python = sys.executable
    if kind.peer:
        sys.path.insert(0, str(HERE / "peers"))
        from envs import PEERS, default_folder, python_of

        peer = next(one for one in PEERS if one.module == kind.peer)
        python = str(python_of(peer, default_folder() / ".venv-peers", print))
    script = [__file__, "--job", name, "--folder", folder]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "100"]
    return [python, *torchrun, *script] if kind.by_torchrun else [python, *script]


def read_steps(folder: Path) -> list[tuple[int, float]]:
    path = folder / "steps"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(int(number), float(when)) for number, when in (line.split() for line in lines)]


def wait_for(folder: Path, above: int, seconds: float, process: Any) -> None:
    """Wait until a step of a higher number has ended."""
    deadline = time.monotonic() + seconds
    while not any(number > above for number, _ in read_steps(folder)):
        if time.monotonic() > deadline or process.poll() is not None:
            raise TimeoutError(f"no step above {above} within {seconds:.0f} s")
        time.sleep(0.05)


def run(name: str, period: float, kills: int) -> Found:
    found = Found()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        log = (folder / "output").open("wb")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE.parent / "src"),
            "HF_HUB_OFFLINE": "1",
        }
        process = subprocess.Popen(
            command_of(name, place), stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            wait_for(folder, 0, 300, process)
            for number in range(kills):
                time.sleep(period)
                rank = 1 - number % 2
                victim = int((folder / f"pid-{rank}").read_text())
                reached = max(read_steps(folder))[0]
                os.kill(victim, signal.SIGKILL)
                found.kills.append(time.time())
                wait_for(folder, reached, 120, process)
            time.sleep(period)
            found.steps = read_steps(folder)
        except BaseException:
            print((folder / "output").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            end(process, folder)
    return found


def end(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kill the launcher and the processes of the job."""
    process.kill()
    process.wait()
    for path in folder.glob("pid-*"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[])
    parser.add_argument("--period", type=float, default=60.0, help="seconds between two kills")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/failure.md")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        KINDS[options.job].job(options.folder)
        return
    report(options)


def report(options: argparse.Namespace) -> None:
    import publish

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end the job
    table = measured(options, publish)
    publish.finish("failure", [table], write=options.write)


def measured(options: argparse.Namespace, publish: Any) -> Any:
    chosen = options.kinds or [*KINDS]
    results: dict[str, Found] = {}
    failed: list[str] = []
    for name in chosen:
        print(f"{name}: {options.kills} kills", file=sys.stderr, flush=True)
        try:
            results[KINDS[name].title] = run(name, options.period, options.kills)
        except TimeoutError as error:
            failed.append(f"{KINDS[name].title}: {error}")
    quiet = run(chosen[0], options.period, 0)
    rows = []
    for title, found in results.items():
        times = found.recoveries
        row = [title, f"{statistics.median(times):.2f}", f"{max(times):.2f}", str(found.repeated)]
        rows.append([*row, f"{found.effective:.1%}", f"{found.step_seconds * 1e3:.1f}"])
    no_kills = f"{KINDS[chosen[0]].title}, no kills"
    rows.append([no_kills, "", "", "", f"{quiet.effective:.1%}", f"{quiet.step_seconds * 1e3:.1f}"])
    medians = {title: statistics.median(found.recoveries) for title, found in results.items()}
    findings = []
    if "Stoker, restart" in results:
        useful = max(found.effective for title, found in results.items() if "Stoker" in title)
        text = ", ".join(f"{t} {f.effective:.1%}" for t, f in results.items() if "Stoker" in t)
        findings.append(
            publish.Finding(
                f"Useful time, a kill per {options.period:.0f} s", text, "≥ 95 %", useful >= 0.95
            )
        )
        others = [value for title, value in medians.items() if "Stoker" not in title]
        text = ", ".join(f"{t} {v:.1f} s" for t, v in medians.items() if "Stoker" in t)
        if others:
            text += f"; others {min(others):.1f} to {max(others):.1f} s"
        first = not others or medians["Stoker, restart"] <= min(others)
        findings.append(publish.Finding("From a kill to the next new step", text, "first", first))
    return publish.Table(
        f"A SIGKILL every {options.period:.0f} seconds, two processes",
        f"{options.kills} kills each; saves every {SECONDS:.0f} s (elastic and Hugging Face: every "
        f"{SAVE_STEPS} steps). Restarts read the newest checkpoint and repeat the steps after it; "
        "an elastic run continues on the other process and repeats one step."
        + "".join(f" Without figures: {one}." for one in failed),
        [
            "kill to next new step, s",
            "longest",
            "repeated steps",
            "effective time",
            "ms per step",
        ],
        rows,
        f"without kills the effective time is {quiet.effective:.1%}; recoveries "
        + "; ".join(
            f"{title} {min(f.recoveries):.1f} to {max(f.recoveries):.1f} s"
            for title, f in results.items()
        ),
        medians,
        "seconds from a kill to the next new step",
        findings=findings,
    )


if __name__ == "__main__":
    main()
