"""Hooks about weights: averaging, keeping the best, freezing, saving, and the rate they move at."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from stoker.core import dist
from stoker.core.every import Every
from stoker.core.tree import local_part
from stoker.engine import bare
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.monitor import Mode, Monitor
from stoker.hooks.base.periodic import Periodic
from stoker.nn import LayerFreezer
from stoker.run import Run
from stoker.storage import atomic_file


class EMA(Hook):
    """An exponential moving average of the parameters.

    Args:
        decay: how much of the average stays at each step.
        validate: judge the averaged weights when a fit validates; training goes on with its own.
        use_at_end: leave the averaged weights in the model when training ends well. Not beside
            `KeepBest`, which keeps the average that was judged best.
    """

    priority = 65  # after what judges and keeps a validation, before what saves
    same_on_all_ranks = True
    replicated_state = True

    def __init__(
        self, decay: float = 0.999, *, validate: bool = True, use_at_end: bool = False
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is from 0 up to, but not, 1, got {decay}")
        self.decay = decay
        self.validate = validate
        self.use_at_end = use_at_end
        self._average: dict[str, Tensor] = {}
        self._swapped = False

    def before_train(self, run: Run) -> None:
        """Start from the weights there are."""
        if not self._average:
            self._average = {n: p.detach().clone() for n, p in self._named(run)}

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        """Move the average towards the new weights."""
        if not run.updated:
            return
        pairs = [(self._average[name], parameter.detach()) for name, parameter in self._named(run)]
        averages, weights = ([*map(local_part, one)] for one in zip(*pairs, strict=True))
        torch._foreach_lerp_(averages, weights, 1 - self.decay)

    def before_val(self, run: Run) -> None:
        """Put the average in place."""
        if self.validate and self._average and run.task == "fit":
            self._swap(run)

    def after_val(self, run: Run) -> None:
        """Put the weights of training back."""
        if self._swapped:
            self._swap(run)

    def on_exception(self, run: Run) -> None:
        """A validation that failed must not leave the average in place."""
        if self._swapped:
            self._swap(run)

    def after_train(self, run: Run) -> None:
        """Leave the average in the model, where asked; it then is the model."""
        if self.use_at_end and run.error is None and self._average:
            self._swap(run)
            self._average, self._swapped = {}, False

    def state_dict(self) -> dict[str, Any]:
        """The average."""
        return {"average": {name: average.clone() for name, average in self._average.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._average = {name: average.clone() for name, average in state["average"].items()}

    @torch.no_grad()
    def _swap(self, run: Run) -> None:
        for name, parameter in self._named(run):
            average = self._average[name]
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)
        self._swapped = not self._swapped

    def _named(self, run: Run) -> Iterator[tuple[str, nn.Parameter]]:
        return bare(run.engine.model).named_parameters()


class KeepBest(Hook):
    """Leaves the weights of the best result in the model when training ends well.

    They are those that were judged: with `EMA`, the averaged ones.
    """

    priority = Priority.EVALUATE
    same_on_all_ranks = True
    replicated_state = True

    def __init__(self, monitor: str = "val/loss", *, mode: Mode | None = None) -> None:
        self.monitor = Monitor(monitor, mode)
        self.consumes = (self.monitor.name,)
        self.step: int | None = None
        self._weights: dict[str, Tensor] = {}

    def before_train(self, run: Run) -> None:
        """See that there will be something to watch."""
        self.monitor.check(run)

    def after_val(self, run: Run) -> None:
        """Keep the weights of a better validation result."""
        self._keep(run, self.monitor.fresh(run, at_epoch=False))

    def after_epoch(self, run: Run) -> None:
        """Keep the weights of a better result of training."""
        self._keep(run, self.monitor.fresh(run, at_epoch=True))

    def after_train(self, run: Run) -> None:
        """Put the best weights into the model."""
        if run.error is None and self._weights:
            bare(run.engine.model).load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """The best value, its step, and its weights."""
        return {
            "monitor": self.monitor.state_dict(),
            "step": self.step,
            "weights": dict(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.monitor.load_state_dict(state["monitor"])
        self.step = state["step"]
        self._weights = dict(state["weights"])

    def _keep(self, run: Run, value: float | None) -> None:
        if value is not None and self.monitor.improves(value):
            self.step = run.step
            weights = bare(run.engine.model).state_dict()
            self._weights = {
                name: weight.detach().cpu().clone() for name, weight in weights.items()
            }


class FreezeLayers(Hook):
    """Freezes layers before training; see `stoker.nn.LayerFreezer`.

    Args:
        names: layers by name; a dotted name reaches inside.
        indices: top-level layers by position; negative ones count from the end.
        up_to: the top-level layers before this position (-1: all but the last), or a slice.
        freeze_bn: keep the running statistics of every batch norm.
        until_epoch: thaw them again when so many epochs are finished.
    """

    priority = Priority.ADJUST
    same_on_all_ranks = True

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        indices: Sequence[int] = (),
        up_to: int | slice | None = None,
        freeze_bn: bool = False,
        until_epoch: int | None = None,
    ) -> None:
        if isinstance(names, str):
            names = [names]
        self.names, self.indices, self.up_to = names, indices, up_to
        self.freeze_bn = freeze_bn
        self.until_epoch = until_epoch

    def before_train(self, run: Run) -> None:
        """Freeze."""
        if self.until_epoch is None or run.epoch < self.until_epoch:
            self._set(run, freeze=True)
            if self.freeze_bn:
                LayerFreezer(bare(run.engine.model)).freeze_bn()

    def before_epoch(self, run: Run) -> None:
        """Thaw when the time has come."""
        if self.until_epoch is not None and run.epoch == self.until_epoch:
            self._set(run, freeze=False)
            if self.freeze_bn:
                LayerFreezer(bare(run.engine.model)).freeze_bn(freeze=False)

    def _set(self, run: Run, *, freeze: bool) -> None:
        freezer = LayerFreezer(bare(run.engine.model))
        freezer.by_names(self.names, freeze)
        freezer.by_idx(self.indices, freeze)
        if self.up_to is not None:
            freezer.set_slice(self.up_to, freeze)


class SaveWeights(Periodic):
    """Writes the weights as ``model.safetensors``: at the end, each ``every``, and when asked.

    The file is written aside and renamed, so that there is always a whole one.

    Args:
        path: where; None means the run folder.
        every: when, beside the end and `run.request("save")`.
        optional: write nothing, instead of an error, for a run without a folder.
    """

    priority = Priority.SAVE
    same_on_all_ranks = True
    writes = True
    request = "save"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        every: int | str | Every | None = None,
        optional: bool = False,
    ) -> None:
        super().__init__(every)
        self.path = Path(path) if path is not None else None
        self.optional = optional

    def before_train(self, run: Run) -> None:
        """Refuse a run that leaves no place to write to."""
        super().before_train(run)
        if self.path is not None and self.path.is_dir():
            raise ValueError(f"SaveWeights writes a file, but '{self.path}' is a folder")
        if self.path is None and run.dir is None and not self.optional:
            raise ValueError(
                "SaveWeights has nowhere to write: give the Trainer a run_dir, or the hook a path"
            )

    def after_train(self, run: Run) -> None:
        """Write what the run leaves in the model, which may be the best weights or an average."""
        if run.error is None:
            self.act(run)

    def act(self, run: Run) -> None:
        """Write the file."""
        path = self.path or (run.dir / "model.safetensors" if run.dir is not None else None)
        if path is None:
            return
        weights = run.engine.weights()
        if dist.is_main():
            self._write(path, weights, run.step)
        dist.barrier()  # nobody goes on to read a file that is not there yet

    def _write(self, path: Path, weights: dict[str, Tensor], step: int) -> None:
        from safetensors.torch import save_file

        with atomic_file(path) as temporary:
            save_file(weights, str(temporary), metadata={"step": str(step)})


class Plateau(Hook):
    """Lowers the learning rate when a result stops to improve, by torch's ReduceLROnPlateau."""

    priority = Priority.EVALUATE
    same_on_all_ranks = True

    def __init__(self, scheduler: ReduceLROnPlateau, monitor: str = "val/loss") -> None:
        if not isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(f"Plateau takes a ReduceLROnPlateau, got a {type(scheduler).__name__}")
        self.scheduler = scheduler
        self.monitor = Monitor(monitor, scheduler.mode)
        self.consumes = (self.monitor.name,)

    def before_train(self, run: Run) -> None:
        """See that there will be something to watch."""
        self.monitor.check(run)

    def after_val(self, run: Run) -> None:
        """Show the scheduler a validation result."""
        self._show(self.monitor.fresh(run, at_epoch=False))

    def after_epoch(self, run: Run) -> None:
        """Show the scheduler a result of training."""
        self._show(self.monitor.fresh(run, at_epoch=True))

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler."""
        return {"scheduler": self.scheduler.state_dict(), "monitor": self.monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.scheduler.load_state_dict(state["scheduler"])
        self.monitor.load_state_dict(state["monitor"])

    def _show(self, value: float | None) -> None:
        if value is not None:
            self.scheduler.step(value)
