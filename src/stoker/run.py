"""`Run`: counters, limits and the step in hand."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from stoker.core.errors import did_you_mean
from stoker.core.requests import Request, Requests
from stoker.core.tree import batch_size
from stoker.core.types import Batch, Output, Scalar
from stoker.data import BatchFeeder
from stoker.engine import Engine
from stoker.engine.schedule import mean_loss
from stoker.events import EventStorage
from stoker.rundir.folder import MayContinue, RunFolder, has_checkpoints

Task: TypeAlias = Literal["fit", "evaluate", "predict"]

_IN_HAND = ("batches", "loss", "outputs", "sizes")


class Run:
    """What hooks see of a run.

    Counters (in ``after_step`` and ``after_epoch`` they are already advanced):
        step: finished updates. A step is an update; micro-batches are inside a step.
        epoch: finished epochs.
        epoch_in_hand: the number of the epoch in progress, or of the last one, counted from 1.
        samples: samples that went by, those of steps that were skipped included.

    The step in hand (from ``before_step`` to the end of ``after_step``, and likewise in
    validation and prediction; reading it elsewhere is an `AttributeError`):
        batches: its micro-batches.
        sizes: the samples in each.
        outputs: an `Output` for each micro-batch that went forward.
        loss: the mean loss over the samples of the step, detached; None where there is none.

    Results:
        metrics: the results of this epoch by name, such as ``val/accuracy``, as far as known.
        events: the event storage; `record` puts a result into both.
        error: what ended the run, None while all is well.

    What is going on:
        task: "fit", "evaluate" or "predict".
        feed: the data that is being read.
        steps_per_epoch, total_steps: None where a loader without length leaves them unknown.
        updated: whether the step in hand has changed the parameters.
        checked: whether the first output of this fit has been looked at.
        val_names: the validation loaders: ("val",), ("val/<name>", …) where they have names, or ().
        val_name: the one at work, or the last that was.
    """

    __slots__ = (
        "_folder",
        "batches",
        "calls",
        "checked",
        "current_epoch",
        "engine",
        "epoch",
        "error",
        "events",
        "feeder",
        "fire",
        "max_epochs",
        "max_steps",
        "metrics",
        "outputs",
        "requests",
        "samples",
        "sizes",
        "skip_reason",
        "step",
        "steps_per_epoch",
        "task",
        "updated",
        "val_name",
        "val_names",
    )

    def __init__(self, engine: Engine, folder: RunFolder | None = None) -> None:
        self.engine = engine
        self.events = EventStorage()
        self.fire: Callable[[str], None] = _nobody_listens
        self.calls: Mapping[str, Collection[object]] = defaultdict(tuple)
        self.step = 0
        self.epoch = 0
        self.current_epoch = 0
        self.samples = 0
        self.max_epochs: int | None = None
        self.max_steps: int | None = None
        self.steps_per_epoch: int | None = None
        self.feeder: BatchFeeder | None = None
        self.metrics: dict[str, float] = {}
        self.val_name = "val"
        self.val_names: tuple[str, ...] = ()
        self.task: Task = "fit"
        self.updated = False
        self.checked = False
        self.skip_reason: str | None = None
        self.error: BaseException | None = None
        self.batches: Sequence[Batch]
        self.sizes: list[int]
        self.outputs: list[Output]
        self.requests = Requests()
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        if name in _IN_HAND:
            raise AttributeError(
                f"run.{name} belongs to the step in hand and there is none: it exists from "
                "before_step (outputs and loss: from the forward pass) to the end of after_step"
            )
        raise AttributeError(f"a run has no {name!r}{did_you_mean(name, self.__slots__)}")

    # What hooks may do

    def stop(self, reason: str) -> None:
        """End the run after the step in hand, in all processes. The first reason given is kept."""
        self.requests.stop(reason)

    def request(self, request: Request) -> None:
        """Have something done after the step in hand: "evaluate", "log", "save", "end_epoch"."""
        if request not in get_args(Request):
            near = did_you_mean(str(request), get_args(Request))
            raise ValueError(
                f"a run cannot be asked to {request!r}{near} (it takes {get_args(Request)})"
            )
        self.requests.add(request)

    def requested(self, request: Request) -> bool:
        """Whether someone has asked for it since the last step."""
        return request in self.requests.active

    def skip_update(self, reason: str) -> None:
        """From ``before_update``: leave out the update, which then does not count as a step."""
        self.skip_reason = reason

    def record(self, name: str, value: Scalar) -> None:
        """Keep a result: visible in `metrics`, carried out by every writer."""
        self.metrics[name] = float(value)
        self.events.put_scalar(name, value, smoothing_hint=False)

    # What hooks may ask

    @property
    def loss(self) -> Tensor | None:
        """The mean loss over the samples of the step in hand, detached; None without samples.

        Of a criterion that sums, it is the sum.
        """
        outputs = self.outputs
        if not outputs and self.engine.stages is not None:
            return None  # the process with the last stage has it
        if not outputs:
            raise AttributeError
        if len(outputs) == 1:
            loss = outputs[0].loss
            return loss.detach() if loss is not None and outputs[0].weight else None
        return mean_loss(outputs, sums=self.engine.sums)

    @property
    def expected(self) -> float:
        """The samples of the step in hand in a process that has its even share of them."""
        assert self.feeder is not None
        return self.feeder.global_size(self.sizes) / self.engine.parallel_model.parts

    @property
    def wishes(self) -> set[str]:
        """What was asked for and comes true with the step in hand."""
        return self.requests.active

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends, None while it goes on."""
        return self.requests.stop_reason

    @property
    def dir(self) -> Path | None:
        """The run folder, None for a run without one. Whoever writes into it first makes it."""
        return self._folder.path if self._folder is not None else None

    @property
    def done(self) -> bool:
        """Whether no further step will be made."""
        return self.stop_reason is not None or self.limit_reached

    @property
    def limit_reached(self) -> bool:
        """Whether all epochs or steps asked for are finished."""
        if self.max_steps is not None and self.step >= self.max_steps:
            return True
        return self.max_epochs is not None and self.epoch >= self.max_epochs

    @property
    def leaves_epoch(self) -> bool:
        """Whether the step in hand is the last of its epoch, whatever data there may be."""
        requests = self.requests
        return (
            requests.stop_reason is not None
            or self.step == self.max_steps
            or "end_epoch" in requests.active
        )

    @property
    def total_steps(self) -> int | None:
        """How many updates the run will have at its end, None where that is not known."""
        limits = [] if self.max_steps is None else [self.max_steps]
        if self.max_epochs is not None and self.steps_per_epoch is not None:
            limits.append(self.max_epochs * self.steps_per_epoch)
        return min(limits, default=None)

    def where(self) -> str:
        """The place in the run, as people are told it: what is finished."""
        of = f" of {self.max_epochs}" if self.max_epochs is not None else ""
        return f"step {self.step} ({self.epoch}{of} epochs finished)"

    # What the loop does

    def begin(self, task: Task, goes_on: MayContinue | None = None) -> None:
        """A task begins: what the last one left is forgotten, and the folder has its name.

        The folder of a run that ``goes_on`` is taken as it is; of one with checkpoints, when not
        given.
        """
        self.task, self.error = task, None
        self.requests.forget_stop()
        self.checked = False
        if self._folder is not None:
            self._folder.choose(goes_on or has_checkpoints)

    def begin_epoch(self, feeder: BatchFeeder) -> None:
        """Take up a pass over the training data; results are those of this epoch."""
        self.feeder, self.metrics, self.current_epoch = feeder, {}, self.epoch + 1
        feeder.epoch = self.epoch

    def end_epoch(self) -> bool:
        """Let go of the last step, and count the epoch if it was whole; whether it was."""
        assert self.feeder is not None
        whole = self.feeder.exhausted or "end_epoch" in self.requests.active
        if whole:
            self.feeder.end_pass()
        self.drop_step()
        self.epoch += whole
        return whole

    def begin_step(self, batches: Sequence[Batch]) -> None:
        """Take a step in hand."""
        self.batches = batches
        self.sizes = list(map(batch_size, batches))
        self.outputs = []
        if self.feeder is not None and (padding := self.feeder.padding):
            self.sizes[-padding:] = [0] * padding

    def add_output(self, output: Output, size: int | None = None) -> None:
        """Add the output of a micro-batch, which weighs its samples unless it says otherwise.

        One without samples only keeps other processes company and weighs nothing.
        """
        outputs = self.outputs
        if size is None:
            size = self.sizes[len(outputs)]
        output.weight = size if output.weight is None or not size else float(output.weight)
        outputs.append(output)

    def count_step(self) -> None:
        """Count the step in hand, if it changed the parameters, and its samples."""
        if self.updated:
            self.step += 1
        self.events.step = self.step
        assert self.feeder is not None
        self.samples += self.feeder.global_size(self.sizes)

    def end_step(self) -> None:
        """Let go of the step in hand, and of its tensors."""
        del self.batches, self.sizes, self.outputs
        self.skip_reason = None
        if self.requests.active:
            self.requests.active.clear()

    def drop_step(self) -> None:
        """The same for a step that was left before its end, if there is one."""
        for name in ("batches", "sizes", "outputs"):
            if hasattr(self, name):
                delattr(self, name)
        self.skip_reason = None
        self.requests.active.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it, another step may be taken in hand; afterwards this one is there again."""
        names = ("batches", "sizes", "outputs", "feeder", "skip_reason")
        kept = {name: getattr(self, name) for name in names if hasattr(self, name)}
        wishes, self.requests.active = self.requests.active, set()
        try:
            yield
        finally:
            self.drop_step()
            for name, value in kept.items():
                setattr(self, name, value)
            self.requests.active = wishes


def _nobody_listens(point: str) -> None:
    """Before hooks are attached."""
