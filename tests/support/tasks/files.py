"""What processes do with files, data and terminals; each returns plain values."""

import io
import os
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from stoker import Hook, Layout, Trainer, hooks
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.data import unsharded
from stoker.events import Csv, JsonLines, TensorBoard
from stoker.storage import LocalStorage
from support.tasks.layouts import Break, made, with_dropout
from support.toys import samples


class Numbered(Dataset):
    """Samples that come with their numbers, and hear of epochs."""

    def __init__(self, count: int = 24, dtype: torch.dtype = torch.float64) -> None:
        x, self.y = samples(count)
        self.x = x.to(dtype)
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index], index

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class EpochSampler(SequentialSampler):
    """A sampler with `set_epoch`."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Stream(IterableDataset):
    """Yields the shard of the samples that it was given."""

    shard = (0, 1)

    def set_shard(self, rank: int, world_size: int) -> None:
        self.shard = (rank, world_size)

    def __iter__(self) -> Any:
        data = Numbered()
        yield from (data[number] for number in range(self.shard[0], len(data), self.shard[1]))


def by_number(engine: Any, batch: Any) -> Any:
    return engine.criterion(engine(batch[0]), batch[1])


class Seen(Hook):
    """The numbers of the samples of every step that this process made."""

    same_on_all_ranks = observes = True

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def after_step(self, run: Any) -> None:
        self.numbers.append([n for batch in run.batches for n in batch[2].tolist()])


def read_by_fit() -> Any:
    """Which samples each process trains on, by kind of loader, and who heard of epochs."""
    dataset = Numbered()
    sampler = EpochSampler(dataset)
    loaders = {
        "shuffled": DataLoader(dataset, batch_size=3, shuffle=True),
        "sharded": DataLoader(dataset, batch_size=3, sampler=sampler),
        "stream": DataLoader(Stream(), batch_size=3),
        "unsharded": unsharded(DataLoader(dataset, batch_size=3)),
    }
    found = {}
    for name, loader in loaders.items():
        seen = Seen()
        dataset.epochs.clear()
        Trainer(made(), [seen], step=by_number, seed=3).fit(loader, epochs=2)
        found[name] = (seen.numbers, list(dataset.epochs))
    return found, sampler.epochs


# Folders and files


def starting(folder: Path, resume: str) -> Any:
    """What a process says that starts where checkpoints are."""
    seen = Seen()
    run = Trainer(made(), [seen, hooks.Checkpoint("4st", folder=folder)], step=by_number)
    try:
        run.fit(DataLoader(Numbered(), batch_size=3), epochs=2, resume=resume)
    except CheckpointError as error:
        return str(error)
    return len(seen.numbers), run.run.step


def locked(folder: Path) -> Any:
    """The same while rank 1 holds the folder as another run would."""
    other = LocalStorage(folder)
    if c10d.get_rank() == 1:
        other.create()
        lease = other.lease()
    c10d.barrier()
    result = starting(folder, "auto")
    c10d.barrier()
    if c10d.get_rank() == 1:
        lease.release()
    return result


def without_shared_disk(root: Path) -> Any:
    """What ranks report whose relative run folder is another one on each."""
    here = root / f"node{c10d.get_rank()}"
    here.mkdir()
    before = Path.cwd()
    os.chdir(here)
    try:
        return starting(Path("run/checkpoints"), "auto"), sorted(
            p.name for p in here.rglob("step-*")
        )
    finally:
        os.chdir(before)


def damaged_on_one_rank(folder: Path) -> Any:
    """Where all ranks resume from if one of them cannot read the newest checkpoint."""
    starting(folder, "auto")
    c10d.barrier()
    if c10d.get_rank() == 1:
        real = LocalStorage.read

        def read(self: Any, name: str) -> bytes:
            if name == "rank-00001.json" and "step-00000008" in str(self):
                raise PermissionError(13, "Permission denied", name)
            return real(self, name)

        LocalStorage.read = read  # type: ignore[method-assign]
    try:
        seen = Seen()
        run = Trainer(made(), [seen, hooks.Checkpoint("4st", folder=folder)], step=by_number)
        run.fit(DataLoader(Numbered(), batch_size=3), epochs=2)
        return len(seen.numbers), run.run.step
    finally:
        if c10d.get_rank() == 1:
            LocalStorage.read = real  # type: ignore[method-assign]


@contextmanager
def opened(folder: Path) -> Any:
    """The files below the folder that this process opens to write or renames to."""
    names: Counter[str] = Counter()
    watching = [True]

    def hear(event: str, args: Any) -> None:
        if not watching:
            return
        path = args[0] if event == "open" else args[1] if event == "os.rename" else None
        writes = event == "os.rename" or (event == "open" and _writes(args[1], args[2]))
        if isinstance(path, str) and writes and Path(path).is_relative_to(folder):
            names[str(Path(path).relative_to(folder))] += 1

    sys.addaudithook(hear)
    try:
        yield names
    finally:
        watching.clear()


def _writes(mode: Any, flags: int) -> bool:
    return bool(set(mode or "") & set("wax+")) or bool(flags & 3)


class MainOnly(Hook):
    """A logger of rank 0, as people write one: it does not declare same_on_all_ranks."""

    def after_step(self, run: Any) -> None:
        if c10d.get_rank() == 0:
            run.events.put_scalar("mine", float(run.step))


def with_writers(folder: Path) -> Any:
    """A run with every writer; which files each process wrote, and which are there after a save."""
    there: list[bool] = []
    look = hooks.Callback(
        name="look", after_step=lambda run: run.request("save") if run.step == 2 else None
    )
    stock = [
        hooks.Loss(), hooks.LR(), MainOnly(), look, hooks.LogFile(), hooks.SaveWeights(),
        hooks.Ledger(every=0),
        hooks.Write(JsonLines(), Csv(), TensorBoard(), every=1), hooks.Checkpoint(None, keep=None),
    ]  # fmt: skip
    run = Trainer(made(), stock, step=by_number, run_dir=folder)
    loader = DataLoader(Numbered(), batch_size=3)
    with opened(folder) as names:
        run.fit(loader, loader, epochs=3)
    run.save(folder / "kept")
    there.append((folder / "kept" / f"step-{run.run.step:08}" / "MANIFEST.json").is_file())
    return dict(names), there


def logging_twice(folder: Path) -> Any:
    """Whether a logger is one, and who says what."""
    stream = io.StringIO()
    before, sys.stderr = sys.stderr, stream
    try:
        first, second = get_logger(), get_logger()
        first.info("of rank 0 alone")
        second.info("of both", ranks=None)
        second.info("of rank 1", ranks=[1])
        Trainer(made(), [hooks.LogFile()], step=by_number, run_dir=folder).fit(
            DataLoader(Numbered(), batch_size=3), epochs=1
        )
    finally:
        sys.stderr = before
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("of ")]
    return first._logger is second._logger, lines


class Terminal(io.StringIO):
    """A terminal to draw on."""

    def isatty(self) -> bool:
        return True


def drawn() -> Any:
    """What each process draws in a fit, an evaluation and a prediction."""
    loader, texts = DataLoader(Numbered(), batch_size=1), {}
    run = Trainer(made(), [hooks.Loss(), hooks.Progress(refresh=0.0)], step=by_number)
    x = DataLoader(Numbered().x, batch_size=1)
    tasks = {
        "fit": lambda: run.fit(loader, epochs=1),
        "evaluate": lambda: run.evaluate(loader),
        "predict": lambda: run.predict(x),
    }
    before = sys.stderr
    for name, task in tasks.items():
        sys.stderr = screen = Terminal()
        try:
            task()
        finally:
            sys.stderr = before
        texts[name] = screen.getvalue()
    return texts


# Resuming


def numbers_after(folder: Path, break_at: int | None) -> Any:
    """The samples of each step, of a run that is broken off or resumed."""
    seen = Seen()
    seen.priority = 1
    broken = [Break(break_at)] if break_at is not None else []
    stock = [seen, hooks.Checkpoint("1st", keep=1), *broken]
    run = Trainer(with_dropout(Layout(replicate=2)), stock, step=by_number, accumulate=2,
                  run_dir=folder, seed=4)  # fmt: skip
    loader = DataLoader(Numbered(22, torch.float32), batch_size=2, shuffle=True)
    try:
        run.fit(loader, epochs=2)
    except KeyboardInterrupt:
        return seen.numbers, None
    return seen.numbers, run.engine.weights()


def broken_everywhere(folder: Path) -> Any:
    """A run without a break, and one for each step at which it may be broken off."""
    uninterrupted = numbers_after(folder / "uninterrupted", None)
    found = []
    for step in range(1, len(uninterrupted[0])):
        before, _ = numbers_after(folder / str(step), step)
        after, weights = numbers_after(folder / str(step), None)
        found.append((before, after, weights))
    return uninterrupted, found
