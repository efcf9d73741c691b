"""Measure checkpoints of some gigabytes: stall, bandwidth, memory of a load, and the first step.

    python benchmarks/large_checkpoint.py [save load resume dedup store] [--gb 4] [--rounds 3]
                                          [--write]

The state is that of an MLP with Adam, in one process or sharded over two. The stall of a save is
compared with one copy of the state in memory, its time and that of a load with a plain file of the
same size on the same disk, written, synced and read in the same way, without the page cache.
Peers of "resume" run in the environments of benchmarks/peers. Memory: about three times the state.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
WIDTH = 2048
BLOCK = 64 << 20


def model_of(gigabytes: float) -> nn.Module:
    """Build a model whose weights and Adam state together have this size."""
    layers = max(2, round(gigabytes * 1e9 / (3 * 4 * WIDTH**2)))
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def batch() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, WIDTH), torch.zeros(2, WIDTH)


def memory(field: str) -> int:
    """Return a figure of this process in bytes: "VmRSS" is now, "VmHWM" the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def drop_cache(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Stoker, in processes of their own


def trainer_of(options: argparse.Namespace, more: list[Any], keep: int = 1) -> Any:
    from stoker import Engine, Layout, Trainer, hooks

    given = Layout(shard=2) if options.ranks > 1 else None
    with torch.device("meta" if given else "cpu"):
        model = model_of(options.gb)
    # torch refuses a fused optimizer of parameters on the meta device
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=given is None)
    engine = Engine(model, optimizer, nn.MSELoss(), layout=given)
    return Trainer(engine, [hooks.Checkpoint(1, keep=keep), *more], run_dir=options.folder)


def tensors_of(trainer: Any) -> list[Tensor]:
    from stoker.core.tree import local_part

    optimizer = trainer.engine.optimizer
    held = [*trainer.engine.model.parameters()]
    held += [v for s in optimizer.state.values() for v in s.values() if v.dim()]
    return [local_part(one) for one in held]


def copy_seconds(tensors: list[Tensor]) -> list[float]:
    buffers = [tensor.detach().clone() for tensor in tensors]
    found = []
    for _ in range(3):
        began = time.perf_counter()
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor.detach())
        found.append(time.perf_counter() - began)
    return found


def work_save(options: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps and save after each; nothing else runs while a save is written."""
    from stoker import Hook
    from stoker.checkpoint import Checkpoints
    from stoker.core import dist

    begun: list[float] = []
    stalls: list[float] = []
    complete: list[float] = []
    copies: list[float] = []
    save = Checkpoints.save

    def timed(self: Checkpoints, *args: Any, **kwargs: Any) -> Any:
        dist.barrier()
        begun.append(time.perf_counter())
        found = save(self, *args, **kwargs)
        stalls.append(time.perf_counter() - begun[-1])
        return found

    class Wait(Hook):
        """Wait for the save before the next step; copy the state once all of it exists."""

        same_on_all_ranks = True

        def before_step(self, run: Any) -> None:
            trainer._manager.checkpoints.wait()
            complete.append(time.perf_counter() - begun[-1])
            if run.step == 1:
                dist.barrier()
                copies.extend(copy_seconds(tensors_of(trainer)))

    Checkpoints.save = timed  # type: ignore[method-assign]
    trainer = trainer_of(options, [Wait()])
    steps = options.rounds + 2
    trainer.fit([batch() for _ in range(2 * steps)], max_steps=steps)
    state = sum(one.nbytes for one in tensors_of(trainer))
    # the save of step 0 has no optimizer state, that of step 1 finds new buffers
    measured = slice(2, len(complete))
    return {
        "state": state,
        "stalls": stalls[measured],
        "complete": complete[measured],
        "copies": copies,
    }


def work_load(options: argparse.Namespace) -> dict[str, Any]:
    """Load in a new process."""
    base_model = nn.Linear(2, 2)
    torch.optim.Adam(base_model.parameters()).step()
    trainer = trainer_of(options, [])
    model_bytes = sum(one.nbytes for one in tensors_of(trainer))
    base = memory("VmRSS") - model_bytes
    Path("/proc/self/clear_refs").write_text("5")
    began = time.perf_counter()
    trainer.load(options.folder)
    seconds = time.perf_counter() - began
    state = sum(one.nbytes for one in tensors_of(trainer))
    return {"seconds": seconds, "state": state, "peak": memory("VmHWM") - base}


# The first step after a restart, with each peer


def resume_plain(options: argparse.Namespace) -> float:
    model = model_of(options.gb)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    path = Path(options.folder) / "last.pt"
    began = time.perf_counter()
    if path.exists():
        saved = torch.load(path, mmap=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        del saved
    x, y = batch()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    seconds = time.perf_counter() - began
    if not path.exists():
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return seconds


def resume_dcp(options: argparse.Namespace) -> float:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = model_of(options.gb)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    exists = (Path(options.folder) / ".metadata").exists()
    began = time.perf_counter()
    if exists:
        weights, states = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": states}, checkpoint_id=options.folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
        del weights, states
    x, y = batch()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    seconds = time.perf_counter() - began
    if not exists:
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=options.folder)
    return seconds


def resume_stoker(options: argparse.Namespace) -> float:
    from stoker import Hook

    done: list[float] = []

    class First(Hook):
        def after_step(self, run: Any) -> None:
            done.append(time.perf_counter())

    exists = Path(options.folder, "checkpoints").exists()
    trainer = trainer_of(options, [First()])
    began = time.perf_counter()
    trainer.fit([batch() for _ in range(2)], max_steps=2 if exists else 1)
    return done[0] - began


def resume_lightning(options: argparse.Namespace) -> float:
    import lightning

    done: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of(options.gb)

        def training_step(self, rows: Any) -> Tensor:
            return nn.functional.mse_loss(self.net(rows[0]), rows[1])

        def on_train_batch_end(self, *_: Any) -> None:
            done.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-4, fused=True)

    path = Path(options.folder) / "last.ckpt"
    exists = path.exists()
    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=2 if exists else 1, enable_checkpointing=False, **quiet
    )
    loader = torch.utils.data.DataLoader([batch() for _ in range(4)], batch_size=None)
    began = time.perf_counter()
    trainer.fit(module, loader, ckpt_path=path if exists else None)
    if not exists:
        trainer.save_checkpoint(path)
    return done[0] - began


def resume_hf_trainer(options: argparse.Namespace) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    done: list[float] = []

    class First(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            done.append(time.perf_counter())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of(options.gb)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": nn.functional.mse_loss(self.net(x), labels)}

    exists = any(Path(options.folder).glob("checkpoint-*"))
    arguments = TrainingArguments(
        options.folder,
        use_cpu=True,
        max_steps=2 if exists else 1,
        save_strategy="no" if exists else "steps",
        save_steps=1,
        optim="adamw_torch_fused",
        weight_decay=0.0,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=2,
    )
    rows = [{"x": torch.zeros(WIDTH), "labels": torch.zeros(WIDTH)} for _ in range(8)]
    trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[First()])
    began = time.perf_counter()
    trainer.train(resume_from_checkpoint=exists)
    return done[0] - began


RESUMES: dict[str, tuple[str, Callable[[argparse.Namespace], float]]] = {
    "torch.save by hand": ("plain", resume_plain),
    "Stoker": ("stoker", resume_stoker),
    "DCP": ("plain", resume_dcp),
    "Lightning": ("lightning", resume_lightning),
    "HF Trainer": ("hf_trainer", resume_hf_trainer),
}


def work_resume(options: argparse.Namespace) -> dict[str, Any]:
    seconds = RESUMES[options.peer][1](options)
    return {"seconds": seconds, "peak": memory("VmHWM")}


WORK = {"save": work_save, "load": work_load, "resume": work_resume}


# The driver


def started(
    what: str, options: argparse.Namespace, folder: Path, nproc: int = 1, peer: str = ""
) -> list[dict[str, Any]]:
    """Do a piece of work in new processes; return what each has found."""
    python = sys.executable
    if peer:
        sys.path.insert(0, str(HERE / "peers"))
        from envs import PEERS, default_folder, python_of

        found = next(one for one in PEERS if one.module == RESUMES[peer][0])
        python = str(python_of(found, default_folder() / ".venv-peers", print))
    command = [__file__, "--work", what, "--gb", str(options.gb), "--rounds", str(options.rounds)]
    command += ["--folder", str(folder), "--ranks", str(nproc), "--peer", peer]
    if nproc > 1:
        command = ["-m", "torch.distributed.run", "--nproc-per-node", str(nproc), *command]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, *command], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    return [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]


def disk_write(folder: Path, size: int, files: int) -> float:
    """Write, sync and read back, as a save does, and return the seconds."""
    block = memoryview(bytearray(os.urandom(1 << 20)) * (BLOCK >> 20))

    def one(number: int) -> None:
        path = folder / f"raw-{number}"
        with path.open("wb", buffering=0) as file:
            left = size // files
            while left > 0:
                left -= file.write(block[: min(left, BLOCK)])
            os.fsync(file.fileno())
        read_raw(path)

    began = time.perf_counter()
    with ThreadPoolExecutor(files) as pool:
        list(pool.map(one, range(files)))
    seconds = time.perf_counter() - began
    for number in range(files):
        (folder / f"raw-{number}").unlink()
    return seconds


def read_raw(path: Path) -> None:
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.readinto(buffer):
            pass


def disk_read(folder: Path, threads: int) -> float:
    """Read all files of a folder into a buffer, and return the seconds."""
    drop_cache(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read_raw, paths))
    return time.perf_counter() - began


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} s"


class Parts:
    """Each method measures one table."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self.options, self.place = options, place

    def save(self) -> Iterator[Any]:
        from publish import Finding, Table

        for nproc in (1, 2):
            folder = self.place / f"run-{nproc}"
            size = int(self.options.gb * 1e9)
            disks = [disk_write(self.place, size, nproc)]
            found = started("save", self.options, folder, nproc)
            disks += [disk_write(self.place, size, nproc) for _ in range(2)]
            copy = max(statistics.median(one["copies"]) for one in found)
            stall = max(statistics.median(one["stalls"]) for one in found)
            took = max(statistics.median(one["complete"]) for one in found)
            share, waits = statistics.median(disks) / took, stall / copy
            state = sum(one["state"] for one in found) / 1e9
            names = f"{nproc} process{'es' * (nproc > 1)}"
            yield Table(
                f"Saves, {names}",
                f"{state:.1f} GB of state, medians of {self.options.rounds} saves after the "
                "first. A save is complete when it is written, synced, published and read back; "
                "the disk writes, syncs and reads back as much.",
                ["seconds", "GB/s", "compared"],
                [
                    ["one copy in memory", f"{copy:.2f}", f"{state / copy:.1f}", "1.00"],
                    ["Stoker, stall", f"{stall:.2f}", "", f"{waits:.2f} copies"],
                    [
                        "Stoker, until complete",
                        f"{took:.2f}",
                        f"{state / took:.2f}",
                        f"{share:.2f}",
                    ],
                    ["the disk", f"{statistics.median(disks):.2f}", "", "1.00"],
                ],
                f"copies {spread([c for one in found for c in one['copies']])}, stalls "
                f"{spread([s for one in found for s in one['stalls']])}, disk {spread(disks)}",
                {
                    "one copy": copy,
                    "Stoker, stall": stall,
                    "disk": min(disks),
                    "Stoker, save": took,
                },
                "seconds",
                findings=[
                    Finding(
                        f"Stall of a save, {state:.1f} GB, {names}",
                        f"{waits:.2f} copies in memory",
                        "≤ 1.0",
                        waits <= 1.0,
                    ),
                    Finding(
                        f"… its bandwidth, {names}",
                        f"{share:.2f} of the disk's",
                        "≥ 0.8",
                        share >= 0.8,
                    ),
                ],
            )

    def load(self) -> Iterator[Any]:
        from publish import Finding, Table

        for nproc in (1, 2):
            folder = self.place / f"run-{nproc}"
            if not folder.exists():
                started("save", self.options, folder, nproc)
            disks, loads = [], []
            for _ in range(2):
                disks.append(disk_read(folder / "checkpoints", nproc))
                drop_cache(folder)
                loads.append(started("load", self.options, folder, nproc))
            took = [max(one["seconds"] for one in ranks) for ranks in loads]
            ratios = [one["peak"] / one["state"] for ranks in loads for one in ranks]
            state = sum(one["state"] for one in loads[0]) / 1e9
            share, peak = min(disks) / min(took), max(ratios)
            names = f"{nproc} process{'es' * (nproc > 1)}"
            yield Table(
                f"Loads, {names}",
                f"{state:.1f} GB of state, read in new processes, of which the page cache has "
                "nothing; checksums are verified. The disk reads the same files.",
                ["seconds", "GB/s", "of the disk's", "peak memory / state"],
                [
                    ["the disk", f"{min(disks):.2f}", f"{state / min(disks):.2f}", "1.00", ""],
                    [
                        "Stoker",
                        f"{min(took):.2f}",
                        f"{state / min(took):.2f}",
                        f"{share:.2f}",
                        f"{peak:.2f}",
                    ],
                ],
                f"fastest of two; disk {spread(disks)}, Stoker {spread(took)}",
                {"the disk": min(disks), "Stoker": min(took)},
                "seconds",
                findings=[
                    Finding(
                        f"Load, {names}",
                        f"{share:.2f} of the disk's bandwidth, peak {peak:.2f} × the state",
                        "≥ 0.8, ≤ 1.1 ×",
                        share >= 0.8 and peak <= 1.1,
                    )
                ],
            )

    def resume(self) -> Iterator[Any]:
        from publish import Finding, Table

        times: dict[str, list[float]] = {}
        peaks: dict[str, float] = {}
        failed = []
        for peer in RESUMES:
            folder = self.place / peer.replace(" ", "-")
            folder.mkdir()
            try:
                started("resume", self.options, folder, peer=peer)
                for _ in range(2):
                    drop_cache(folder)
                    (found,) = started("resume", self.options, folder, peer=peer)
                    times.setdefault(peer, []).append(found["seconds"])
                    peaks[peer] = found["peak"] / 1e9
            except subprocess.CalledProcessError as error:
                failed.append(f"{peer} (exit code {error.returncode})")
            shutil.rmtree(folder)
        best = {peer: min(found) for peer, found in times.items()}
        base = best["torch.save by hand"]
        rows = [
            [peer, f"{best[peer]:.2f}", f"{best[peer] / base:.2f}", f"{peaks[peer]:.1f}"]
            for peer in sorted(best, key=lambda peer: best[peer])
        ]
        others = [
            best[peer] / base for peer in best if peer not in ("Stoker", "torch.save by hand")
        ]
        ratio = best["Stoker"] / base
        text = f"{ratio:.2f} × torch.save by hand"
        if others:
            text += f", others {min(others):.2f} to {max(others):.2f}"
        yield Table(
            "From a checkpoint to the next step",
            f"{self.options.gb:g} GB of state, one process, nothing in the page cache: seconds "
            "from a built model to the end of the first new step. DCP, Lightning and Hugging Face "
            "verify no checksums." + "".join(f" Without figures: {one}." for one in failed),
            ["seconds", "× torch.save", "peak memory, GB"],
            rows,
            "fastest of two; " + "; ".join(f"{peer} {spread(times[peer])}" for peer in times),
            best,
            "seconds",
            findings=[
                Finding("Resume to the first step", text, "first", ratio <= min([1.0, *others]))
            ],
        )

    def dedup(self) -> Iterator[Any]:
        """Save a state of which nine tenths are frozen."""
        from publish import Table

        from stoker import Engine, Trainer, hooks

        torch.manual_seed(0)
        model = model_of(3 * self.options.gb)
        layers = [*model.children()]
        for layer in layers[: -len(layers) // 10]:
            layer.requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        engine = Engine(model, torch.optim.Adam(trained, lr=1e-4, fused=True), nn.MSELoss())
        folder = self.place / "frozen"
        sizes: list[int] = []
        ends: list[float] = []

        class Note(hooks.Hook):
            def before_step(self, run: Any) -> None:
                trainer._manager.checkpoints.wait()
                ends.append(time.perf_counter())
                sizes.append(on_disk(folder))

        saving = hooks.Checkpoint(1, keep=None)
        trainer = Trainer(engine, [saving, Note()], run_dir=folder)
        trainer.fit([batch() for _ in range(8)], max_steps=4)
        written = [after - before for before, after in pairwise(sizes)]
        full = sum(p.nbytes for p in model.parameters()) / 1e9
        rows = [["the first save", f"{sizes[0] / 1e9:.2f}"]]
        rows += [[f"save {n}", f"{size / 1e9:.2f}"] for n, size in enumerate(written, 2)]
        yield Table(
            "Saves with frozen weights",
            f"A model of {full:.1f} GB of which nine tenths are frozen: gigabytes on disk that "
            "each save adds, all of them kept. What is frozen is linked, not written again.",
            ["GB added"],
            rows,
            "none: bytes are counted",
            {row[0]: float(row[1]) for row in rows},
            "GB added on disk",
        )
        shutil.rmtree(folder)

    def store(self) -> Iterator[Any]:
        """Save into an S3 server on this machine, with a quarter of the state."""
        from publish import Finding, Table

        sys.path.insert(0, str(HERE.parent / "tests"))
        from stoker.checkpoint import Checkpoints
        from stoker.storage import working_folder
        from support.stores import S3Server, environment

        gigabytes = self.options.gb / 4
        state = {f"layer.{n}": torch.randn(5_000_000) for n in range(round(gigabytes * 50))}
        server = S3Server()
        os.environ |= environment(server.url)
        os.environ["STOKER_CACHE"] = str(self.place / "cache")
        copies, stalls, uploads = [], [], []
        try:
            buffers = {name: one.clone() for name, one in state.items()}
            folder = working_folder("s3://bucket/large/checkpoints")
            with Checkpoints(folder, keep=1) as checkpoints:
                checkpoints.save(0, {"model": state}, wait=True)
                for step in range(1, self.options.rounds + 1):
                    for one in state.values():
                        one.add_(1)
                    upload = threading.Thread(target=checkpoints.upload, args=(step - 1,))
                    began = time.perf_counter()
                    upload.start()
                    time.sleep(0.2)  # it has begun to send
                    before = time.perf_counter()
                    for name, one in state.items():
                        buffers[name].copy_(one)
                    copies.append(time.perf_counter() - before)
                    before = time.perf_counter()
                    checkpoints.save(step, {"model": state})
                    stalls.append(time.perf_counter() - before)
                    upload.join()
                    uploads.append(time.perf_counter() - began)
                    checkpoints.wait()
        finally:
            server.kill()
        copy, stall, upload_s = map(statistics.median, (copies, stalls, uploads))
        yield Table(
            "Saves into an object store",
            f"{gigabytes:.1f} GB into an S3 server (moto) on the same machine: the stall of a save "
            "while the one before is uploaded, compared with one copy at the same time. The upload "
            "shares two cores with the server.",
            ["seconds", "compared"],
            [
                ["one copy in memory", f"{copy:.2f}", "1.00"],
                ["Stoker, stall", f"{stall:.2f}", f"{stall / copy:.2f} copies"],
                ["Stoker, upload", f"{upload_s:.2f}", f"{gigabytes / upload_s:.2f} GB/s"],
            ],
            f"copies {spread(copies)}, stalls {spread(stalls)}",
            {"one copy": copy, "Stoker, stall": stall},
            "seconds",
            findings=[
                Finding(
                    "Stall of a save into an object store",
                    f"{stall / copy:.2f} copies in memory",
                    "≤ 1.3",
                    stall <= 1.3 * copy,
                )
            ],
        )


def on_disk(folder: Path) -> int:
    """Return the bytes of all files; a file with several names counts once."""
    found = {p.stat().st_ino: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    return sum(found.values())


def main() -> None:
    names = ["save", "load", "resume", "dedup", "store"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--place", type=Path, help="folder for the files, default: a temporary one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/checkpoints.md")
    for hidden in ("--work", "--folder", "--peer"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        torch.set_num_threads(1)
        print(json.dumps(WORK[options.work](options)), flush=True)
        return
    import publish

    for name in options.parts or names:
        with tempfile.TemporaryDirectory(dir=options.place) as place:
            publish.finish(
                "checkpoints", [*getattr(Parts(options, Path(place)), name)()], write=options.write
            )


if __name__ == "__main__":
    main()
