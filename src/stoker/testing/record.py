"""What a training did, step by step, in marks: written by it, read by whoever compares."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from stoker.config import ConfigError
from stoker.core.seed import random_state
from stoker.hooks import Write
from stoker.resume.capture import RunState
from stoker.run import Run
from stoker.testing.digest import mark, marks
from stoker.testing.suspects import unsaved
from stoker.testing.watcher import Watcher

Parts: TypeAlias = dict[str, dict[str, str]]
"""Marks by part and place: ``{"weights": {"0.bias": "9f…"}}``, in the order of cause."""

OF_HOOK = "tensors of hook "
"""What hooks hold as tensors mostly follows from weights; other values may steer them."""

_MEASURED = ("time/", "memory/", "samples/s", "tokens/s")


def is_measured(name: str) -> bool:
    """Whether a result is about the machine, so that no two runs have the same."""
    return name.startswith(_MEASURED)


class Recorder(Watcher):
    """Appends a line per step, per validation and per fit to a file outside the run folder.

    Nothing is drawn, changed or kept: states are read the way a checkpoint reads them, and only
    their marks are written. Nothing is lost by a kill but a torn last line.

    Args:
        path: the file; each attempt has its own.
        folder: below which the run must keep its checkpoints.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._folder = folder
        self._state: RunState | None = None
        self._pending: Parts = {}
        self.fit = -1

    def begins(self, state: RunState, saves_to: Path) -> None:
        """Another fit of the same program."""
        if not saves_to.absolute().is_relative_to(self._folder.absolute()):
            raise ConfigError(
                f"the run keeps its checkpoints in '{saves_to}', not in the folder it was given "
                f"('{self._folder}'): a killed run would go on from those of another one"
            )
        self._state = state
        self.fit += 1

    def before(self, point: str, run: Run) -> None:
        """Mark what comes into a step."""
        if self._state is None or run.task != "fit":
            return
        if point == "before_train":
            self._write("begin", run)
        elif point == "before_val":
            self._write("eval", run)
        elif point == "before_step":
            self._pending = {"batch": marks(list(run.batches)), "RNG before": _random()}

    def after(self, point: str, run: Run) -> None:
        """Mark what a step, or the whole fit, has made."""
        if self._state is None or run.task != "fit":
            return
        if point == "after_step":
            loss = run.loss if run.outputs else None
            parts = {**self._pending, "loss": {"": mark(loss)}, **self._parts(self._state)}
            self._write("step", run, parts=parts, plain=unsaved(self._state))
        elif point == "after_run" and run.error is None:
            parts = self._parts(self._state)
            self._write("end", run, parts=parts, folder=str(run.dir))
            self._state = None

    def _parts(self, state: RunState) -> Parts:
        tree, run = state.shared("within", 0, None), state.run
        own = state.own(None)  # of rank 0, what others have here is among what is shared
        engine = tree["engine"]
        groups, rest = _divided(engine["optimizers"])
        states = tree["hooks"] | own.get("hooks", {})
        hooks = {hook.name: _compared(hook, states[hook.name]) for hook in state.hooks}
        results = {n: v for n, v in run.metrics.items() if not is_measured(n)}
        rows = [{n: v for n, v in row.items() if not is_measured(n)} for row in state.history]
        return {
            "RNG": _random(),
            "optimizer settings": marks(groups),
            **{f"hook {name}": marks(own, _is_plain) for name, own in hooks.items()},
            "step owner": marks((tree | own)["step_owner"]),
            "weights": marks(dict(tree["model"])),
            "criterion": marks(engine["criterion"]),
            "optimizer": marks(rest),
            "LR scheduler": marks(engine["lr_schedulers"]),
            "loss scaler": marks(engine["scaler"]),
            "counters": marks({name: getattr(run, name) for name in ("step", "epoch", "samples")}),
            **{f"{OF_HOOK}{name}": marks(own, _is_tensor) for name, own in hooks.items()},
            "results": marks(results),
            "history": marks(rows),
        }

    def _write(self, kind: str, run: Run, **more: Any) -> None:
        place = {"fit": self.fit, "step": run.step, "samples": run.samples}
        row = {"kind": kind, **place, "epoch": run.current_epoch, **more}
        os.write(self._file, (json.dumps(row) + "\n").encode())


def _random() -> dict[str, str]:
    return {name: mark(state) for name, state in random_state().items()}


def _divided(optimizers: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rates and other settings, which hooks may change, apart from what optimizers gather."""
    groups = {f"{name}param_groups": one["param_groups"] for name, one in optimizers.items()}
    rest = {
        f"{name}{key}": value
        for name, one in optimizers.items()
        for key, value in one.items()
        if key != "param_groups"
    }
    return groups, rest


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.numel() > 1


def _is_plain(leaf: Any) -> bool:
    return not _is_tensor(leaf)


def _compared(hook: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Without the lengths of files that hold times."""
    if isinstance(hook, Write):
        return {key: value for key, value in state.items() if key != "lengths"}
    return state


@dataclass(frozen=True, order=True)
class Position:
    """A step of a program: which fit, which step, and the samples until then."""

    fit: int
    step: int
    samples: int = 0


@dataclass
class Row:
    """The marks of a step, or of the end of a fit."""

    place: Position
    epoch: int
    attempt: int
    parts: Parts
    plain: dict[str, str] = field(default_factory=dict)


@dataclass
class Records:
    """What one training did over all its attempts."""

    steps: dict[Position, Row] = field(default_factory=dict)
    evals: list[Position] = field(default_factory=list)
    ends: dict[int, Row] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)
    came_from: dict[int, int] = field(default_factory=dict)
    """The step that each attempt began at, in the last fit that it came to."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "Records":
        """Read the files of attempts in their order; a later one supersedes an earlier one.

        What an attempt did after the checkpoint that the next one goes on from does not count.
        """
        records = cls()
        for attempt, path in enumerate(paths):
            for row in _rows(path):
                records._take(row, attempt)
        return records

    @property
    def has_losses(self) -> bool:
        """Whether the process sees losses, as every one does but the first stages of a pipeline."""
        return any(row.parts["loss"] != {"": "None"} for row in self.steps.values())

    @property
    def last_step(self) -> int:
        """The last step that was finished."""
        made = max(self.steps, default=None)
        return made.step if made is not None else max(self.came_from.values(), default=0)

    def _take(self, row: dict[str, Any], attempt: int) -> None:
        place = Position(row["fit"], row["step"], row["samples"])
        if row["kind"] == "begin":
            gone = [one for one in self.steps if one.fit == place.fit and one > place]
            for one in gone:
                del self.steps[one]
            self.came_from[attempt] = place.step
        elif row["kind"] == "eval":
            self.evals.append(place)
        else:
            made = Row(place, row["epoch"], attempt, row["parts"], row.get("plain", {}))
            if row["kind"] == "step":
                self.steps[place] = made
            else:
                self.ends[place.fit] = made
                self.folders[place.fit] = Path(row["folder"])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that are whole."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)
