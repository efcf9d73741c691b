"""Record the steps of a training as fingerprints, and read such records."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from stoker.config import ConfigError
from stoker.core.digest import digest
from stoker.core.seed import random_state
from stoker.core.tree import local_part
from stoker.hooks import Write
from stoker.resume.run_state import RunState
from stoker.run import Run
from stoker.testing.watcher import Watcher

Parts: TypeAlias = dict[str, dict[str, str]]
"""Fingerprints by part and path, causes before effects: ``{"weights": {"0.bias": "#9f…"}}``."""

HOOK_TENSORS = "tensors of hook "
"""Tensors of hooks come after the weights, which they usually follow from; other hook state comes
before, because it may affect the weights."""

_SCALARS = (bool, int, float, str, type(None))

_MAX_LENGTH = 60
"""Longer texts, and longer lists of plain values, get one digest."""

_MACHINE_DEPENDENT = ("time/", "memory/", "samples/s", "tokens/s")


def is_machine_dependent(name: str) -> bool:
    """Return whether a result measures the machine, so that it differs between equal runs."""
    return name.startswith(_MACHINE_DEPENDENT)


def fingerprint(value: Any) -> str:
    """Return a scalar in readable form, or ``#`` and the digest of any other value.

    For a tensor that is sharded across processes, only the local shard counts.
    """
    value = local_part(value)
    if type(value) in _SCALARS and len(text := repr(value)) <= _MAX_LENGTH:
        return text
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return f"{value.item()!r} ({str(value.dtype).removeprefix('torch.')})"
    return f"#{digest(value, exact=True)}"


def fingerprints(
    value: Any, keep: Callable[[Any], bool] = lambda _: True, path: str = ""
) -> dict[str, str]:
    """Return the fingerprint of every leaf by its path: ``{"state.0.exp_avg": "#9f…"}``.

    Args:
        value: A tree of mappings and sequences.
        keep: Selects the leaves to include.
        path: The path of the tree itself.
    """
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and not _is_long_list(value):
        items = list(enumerate(value))
    else:
        return {path: fingerprint(value)} if keep(value) else {}
    found: dict[str, str] = {}
    for key, item in items:
        found |= fingerprints(item, keep, f"{path}.{key}" if path else str(key))
    return found


def _is_long_list(value: Any) -> bool:
    if type(value) not in (list, tuple) or len(value) <= _MAX_LENGTH:
        return False
    return all(type(item) in _SCALARS for item in value)


class Recorder(Watcher):
    """Append one line per step, validation and fit to a file outside the run folder.

    Recording does not affect the training: it reads state the way a checkpoint does and writes
    only fingerprints. A kill can only damage the last line.

    Args:
        path: The file, one for each attempt.
        folder: The folder that must contain the checkpoints of the run.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._folder = folder
        self._state: RunState | None = None
        self._pending: Parts = {}
        self.fit = -1

    def on_fit(self, state: RunState, checkpoint_dir: Path) -> None:
        """Start recording the next fit of the program."""
        if not checkpoint_dir.absolute().is_relative_to(self._folder.absolute()):
            raise ConfigError(
                f"the run saves its checkpoints to '{checkpoint_dir}', which is outside the run "
                f"folder it was given ('{self._folder}'): a killed run could resume from the "
                "checkpoints of another run"
            )
        self._state = state
        self.fit += 1

    def before(self, point: str, run: Run) -> None:
        """Record the inputs of a step."""
        if self._state is None or run.task != "fit":
            return
        if point == "before_train":
            self._write("begin", run)
        elif point == "before_val":
            self._write("eval", run)
        elif point == "before_step":
            self._pending = {"batch": fingerprints(list(run.batches)), "RNG before": _rng()}

    def after(self, point: str, run: Run) -> None:
        """Record the result of a step or of the fit."""
        if self._state is None or run.task != "fit":
            return
        if point == "after_step":
            loss = run.loss if run.outputs else None
            parts = {**self._pending, "loss": {"": fingerprint(loss)}, **self._parts(self._state)}
            self._write("step", run, parts=parts, unsaved=self._state.user_state_digests())
        elif point == "after_run" and run.error is None:
            parts = self._parts(self._state)
            self._write("end", run, parts=parts, folder=str(run.dir))
            self._state = None

    def _parts(self, state: RunState) -> Parts:
        tree, run = state.shared("within", 0, None), state.run
        own = state.own(None)  # on rank 0 this is part of the shared state
        engine = tree["engine"]
        settings, rest = _split_optimizers(engine["optimizers"])
        states = tree["hooks"] | own.get("hooks", {})
        hooks = {hook.name: _comparable(hook, states[hook.name]) for hook in state.hooks}
        results = {n: v for n, v in run.metrics.items() if not is_machine_dependent(n)}
        rows = [
            {n: v for n, v in row.items() if not is_machine_dependent(n)} for row in state.history
        ]
        return {
            "RNG": _rng(),
            "optimizer settings": fingerprints(settings),
            **{f"hook {name}": fingerprints(hook, _is_plain) for name, hook in hooks.items()},
            "step owner": fingerprints((tree | own)["step"]),
            "weights": fingerprints(dict(tree["model"])),
            "criterion": fingerprints(engine["criterion"]),
            "optimizer": fingerprints(rest),
            "LR scheduler": fingerprints(engine["lr_schedulers"]),
            "loss scaler": fingerprints(engine["scaler"]),
            "counters": fingerprints(
                {name: getattr(run, name) for name in ("step", "epoch", "samples")}
            ),
            **{
                f"{HOOK_TENSORS}{name}": fingerprints(hook, _is_tensor)
                for name, hook in hooks.items()
            },
            "results": fingerprints(results),
            "history": fingerprints(rows),
        }

    def _write(self, kind: str, run: Run, **more: Any) -> None:
        position = {"fit": self.fit, "step": run.step, "samples": run.samples}
        row = {"kind": kind, **position, "epoch": run.current_epoch, **more}
        os.write(self._file, (json.dumps(row) + "\n").encode())


def _rng() -> dict[str, str]:
    return {name: fingerprint(state) for name, state in random_state().items()}


def _split_optimizers(optimizers: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate settings such as the LR, which hooks may change, from the optimizers' state."""
    settings = {f"{name}param_groups": one["param_groups"] for name, one in optimizers.items()}
    rest = {
        f"{name}{key}": value
        for name, one in optimizers.items()
        for key, value in one.items()
        if key != "param_groups"
    }
    return settings, rest


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.numel() > 1


def _is_plain(leaf: Any) -> bool:
    return not _is_tensor(leaf)


def _comparable(hook: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a hook without the lengths of files that contain times."""
    if isinstance(hook, Write):
        return {key: value for key, value in state.items() if key != "lengths"}
    return state


@dataclass(frozen=True, order=True)
class Position:
    """A step of a program: the number of the fit, the step, and the samples so far."""

    fit: int
    step: int
    samples: int = 0


@dataclass
class Record:
    """The fingerprints of a step, or of the end of a fit."""

    position: Position
    epoch: int
    attempt: int
    parts: Parts
    unsaved: dict[str, str] = field(default_factory=dict)


@dataclass
class Records:
    """The records of one training over all its attempts."""

    steps: dict[Position, Record] = field(default_factory=dict)
    evals: list[Position] = field(default_factory=list)
    ends: dict[int, Record] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)
    resumed_from: dict[int, int] = field(default_factory=dict)
    """The step at which each attempt started, in the last fit it reached."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Records":
        """Read the files of all attempts in order; a later attempt supersedes an earlier one.

        The steps of an attempt after the checkpoint that the next one resumes from do not count.
        """
        records = cls()
        for attempt, path in enumerate(paths):
            for row in _rows(path):
                records._add(row, attempt)
        return records

    @property
    def has_losses(self) -> bool:
        """Whether the process computes losses; only the last stages of a pipeline do."""
        return any(row.parts["loss"] != {"": "None"} for row in self.steps.values())

    @property
    def last_step(self) -> int:
        """The last finished step."""
        last = max(self.steps, default=None)
        return last.step if last is not None else max(self.resumed_from.values(), default=0)

    def _add(self, row: dict[str, Any], attempt: int) -> None:
        position = Position(row["fit"], row["step"], row["samples"])
        if row["kind"] == "begin":
            for later in [p for p in self.steps if p.fit == position.fit and p > position]:
                del self.steps[later]
            self.resumed_from[attempt] = position.step
        elif row["kind"] == "eval":
            self.evals.append(position)
        else:
            unsaved = row.get("unsaved", {})
            record = Record(position, row["epoch"], attempt, row["parts"], unsaved)
            if row["kind"] == "step":
                self.steps[position] = record
            else:
                self.ends[position.fit] = record
                self.folders[position.fit] = Path(row["folder"])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)
