"""`Run`: counters, limits and the current step, as hooks see them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from stoker.core.errors import did_you_mean
from stoker.core.run_requests import Request, Requests
from stoker.core.tree import batch_size
from stoker.core.types import Batch, Output, Scalar
from stoker.data import BatchFeeder
from stoker.engine import Engine
from stoker.engine.schedule import mean_loss
from stoker.events import EventStorage
from stoker.rundir.folder import RunFolder
from stoker.rundir.identity import Identity

Task: TypeAlias = Literal["fit", "evaluate", "predict"]

_OF_THE_STEP = ("batches", "sizes", "outputs")


class Run:
    """What hooks see of a run, and what they may request of it.

    Counters (in ``after_step`` and ``after_epoch`` they are already advanced):
        step: finished updates. A step is an update; micro-batches are inside a step.
        epoch: finished epochs.
        current_epoch: the number of the epoch in progress, or of the last one, counted from 1.
        samples: samples processed so far, including those of skipped steps.

    The current step (from ``before_step`` to the end of ``after_step``, and likewise in
    validation and prediction; reading it elsewhere raises `AttributeError`):
        batches: its micro-batches.
        sizes: the number of samples in each.
        outputs: an `Output` for each micro-batch that has been through the forward pass.
        loss: the mean loss over the samples of the step, detached; None if there is none.
        updated: whether the step changed the parameters.

    Results:
        metrics: the results of this epoch by name, such as ``val/accuracy``, as far as known.
        events: the event storage; `record` adds a result to both.
        error: the exception that ended the run, None while all is well.

    Context:
        task: "fit", "evaluate" or "predict".
        dir: the run folder, None for a run without one.
        feeder: the data being read.
        steps_per_epoch, total_steps, final_step: None if a loader without a length leaves them
            unknown.
        val_names: the validation loaders: ("val",), ("val/<name>", …) if they are named, or ().
        val_name: the validation loader being read, or the last one that was.
        requests: what hooks and signals have requested, see `request`.
    """

    __slots__ = (
        "_epoch_began",
        "_folder",
        "batches",
        "current_epoch",
        "engine",
        "epoch",
        "error",
        "events",
        "feeder",
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
        self.skip_reason: str | None = None
        self.error: BaseException | None = None
        self.batches: Sequence[Batch]
        self.sizes: list[int]
        self.outputs: list[Output]
        self.requests = Requests()
        self._folder = folder
        self._epoch_began = (0, 0)  # the step and the epoch at which the epoch in progress began

    def __getattr__(self, name: str) -> Any:
        if name in (*_OF_THE_STEP, "loss"):
            raise AttributeError(
                f"run.{name} belongs to the current step and there is none: it exists from "
                "before_step (outputs and loss: from the forward pass) to the end of after_step"
            )
        raise AttributeError(f"a run has no {name!r}{did_you_mean(name, dir(type(self)))}")

    # What hooks may do

    def stop(self, reason: str) -> None:
        """End the run after the current step, on all ranks. The first reason given is kept."""
        self.requests.stop(reason)

    def request(self, what: Request) -> None:
        """Request an action after the current step: "evaluate", "log", "save" or "end_epoch"."""
        if what not in get_args(Request):
            near = did_you_mean(str(what), get_args(Request))
            raise ValueError(
                f"unknown request {what!r}{near} (expected one of {get_args(Request)})"
            )
        self.requests.add(what)

    def requested(self, what: Request) -> bool:
        """Return whether this action has been requested since the last step."""
        return what in self.requests.active

    def skip_update(self, reason: str) -> None:
        """Skip the update of this step, which then does not count; call it in before_update."""
        self.skip_reason = reason

    def record(self, name: str, value: Scalar) -> None:
        """Record a result: it appears in `metrics` and goes to every writer."""
        self.metrics[name] = float(value)
        self.events.put_scalar(name, value, smoothing_hint=False)

    def add_output(self, output: Output, size: float | None = None) -> None:
        """Add the output of a micro-batch; its weight defaults to the number of samples.

        The output of a padding batch, which has no samples, always has weight 0.
        """
        outputs = self.outputs
        if size is None:
            size = self.sizes[len(outputs)]
        output.weight = size if output.weight is None or not size else float(output.weight)
        outputs.append(output)

    # What hooks may read

    @property
    def loss(self) -> Tensor | None:
        """The mean loss over the samples of the current step, detached; None without samples.

        For a criterion that sums, it is the sum.
        """
        outputs = self.outputs
        if not outputs and self.engine.stages is not None:
            return None  # the rank with the last pipeline stage has it
        if not outputs:
            raise AttributeError
        if len(outputs) == 1:
            loss = outputs[0].loss
            return loss.detach() if loss is not None and outputs[0].weight else None
        return mean_loss(outputs, sums=self.engine.loss_is_sum)

    @property
    def expected(self) -> float:
        """The samples of the current step on a rank that has an even share of them."""
        assert self.feeder is not None
        return self.feeder.global_size(self.sizes) / self.engine.parallel_model.data_ranks

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends, None while it continues."""
        return self.requests.stop_reason

    @property
    def dir(self) -> Path | None:
        """The run folder, None for a run without one. The first to write into it creates it."""
        return self._folder.path if self._folder is not None else None

    @property
    def done(self) -> bool:
        """Whether there will be no further step."""
        return self.stop_reason is not None or self.limit_reached

    @property
    def limit_reached(self) -> bool:
        """Whether all requested epochs or steps are finished."""
        if self.max_steps is not None and self.step >= self.max_steps:
            return True
        return self.max_epochs is not None and self.epoch >= self.max_epochs

    @property
    def leaves_epoch(self) -> bool:
        """Whether the current step is the last of its epoch, even if there is more data."""
        requests = self.requests
        return (
            requests.stop_reason is not None
            or self.step == self.max_steps
            or "end_epoch" in requests.active
        )

    @property
    def total_steps(self) -> int | None:
        """The number of updates of a run with these limits and this data, None if unknown."""
        return total_steps(self.max_epochs, self.max_steps, self.steps_per_epoch)

    @property
    def final_step(self) -> int | None:
        """The step at which this fit ends if nothing stops it, None if unknown.

        It counts from the epoch in progress, because an earlier fit may have had other data.
        """
        began = self._epoch_began
        step, epoch = began if began[1] == self.epoch else (self.step, self.epoch)
        epochs = None if self.max_epochs is None else max(0, self.max_epochs - epoch)
        left = None if self.max_steps is None else max(0, self.max_steps - step)
        total = total_steps(epochs, left, self.steps_per_epoch)
        return None if total is None else step + total

    def where(self) -> str:
        """Return the progress of the run for messages: what is finished."""
        of = f" of {self.max_epochs}" if self.max_epochs is not None else ""
        return f"step {self.step} ({self.epoch}{of} epochs finished)"


class RunControl:
    """The trainer's side of a `Run`: it advances the counters and swaps the current step."""

    __slots__ = ("run",)

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(
        self, task: Task, resume: str | Path = "auto", identity: Identity | None = None
    ) -> None:
        """Begin a task: clear what the last one left, and choose the run folder."""
        run = self.run
        run.task, run.error = task, None
        run.requests.clear_stop()
        if run._folder is not None:
            run._folder.choose(resume, identity)

    def begin_epoch(self, feeder: BatchFeeder) -> None:
        """Begin a pass over the training data; results start empty."""
        run = self.run
        run.feeder, run.metrics, run.current_epoch = feeder, {}, run.epoch + 1
        run._epoch_began = (run.step - feeder.first_step, run.epoch)
        feeder.epoch = run.epoch

    def end_epoch(self) -> bool:
        """Drop the last step and count the epoch if it is complete; return whether it is."""
        run = self.run
        assert run.feeder is not None
        complete = run.feeder.exhausted or "end_epoch" in run.requests.active
        if complete:
            run.feeder.end_pass()
        self.drop_step()
        run.epoch += complete
        return complete

    def begin_step(self, batches: Sequence[Batch]) -> None:
        """Make these batches the current step."""
        run = self.run
        run.batches = batches
        run.sizes = list(map(batch_size, batches))
        run.outputs = []
        if run.feeder is not None and (padding := run.feeder.padding):
            run.sizes[-padding:] = [0] * padding

    def count_step(self, *, updated: bool) -> None:
        """Count the current step, if it changed the parameters, and its samples."""
        run = self.run
        run.updated = updated
        if updated:
            run.step += 1
        run.events.step = run.step
        assert run.feeder is not None
        run.samples += run.feeder.global_size(run.sizes)

    def end_step(self) -> None:
        """Release the current step and its tensors."""
        run = self.run
        del run.batches, run.sizes, run.outputs
        run.skip_reason = None
        if run.requests.active:
            run.requests.active.clear()

    def drop_step(self) -> None:
        """Release the current step if there is one, finished or not."""
        run = self.run
        for name in _OF_THE_STEP:
            if hasattr(run, name):
                delattr(run, name)
        run.skip_reason = None
        run.requests.active.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Set the current step aside, so that a validation can have steps of its own."""
        run = self.run
        names = (*_OF_THE_STEP, "feeder", "skip_reason")
        kept = {name: getattr(run, name) for name in names if hasattr(run, name)}
        active, run.requests.active = run.requests.active, set()
        try:
            yield
        finally:
            self.drop_step()
            for name, value in kept.items():
                setattr(run, name, value)
            run.requests.active = active


def refresh_window(run: Run) -> None:
    """Read the batches of the current step again if this process has other logical ranks now."""
    if run.feeder is not None and run.feeder.is_outdated:
        repeat_window(run)


def repeat_window(run: Run) -> None:
    """Read the batches of the current step again, for the logical ranks that this process has now.

    Raises:
        RuntimeError: a hook has replaced the batches, which reading them again would undo.
    """
    assert run.feeder is not None
    if run.batches is not run.feeder.window:
        raise RuntimeError(
            "a hook has replaced run.batches, so that an elastic run cannot repeat the step for "
            "the process that was lost: change batches in the dataset, in collate_fn or in a Step"
        )
    RunControl(run).begin_step(run.feeder.repeat())


def total_steps(
    epochs: int | None, max_steps: int | None, steps_per_epoch: int | None
) -> int | None:
    """Return the number of updates of a run, or None if it is unknown."""
    limits = [] if max_steps is None else [max_steps]
    if epochs is not None and steps_per_epoch is not None:
        limits.append(epochs * steps_per_epoch)
    return min(limits, default=None)
