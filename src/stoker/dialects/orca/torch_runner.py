"""`TorchRunner`: the run, as callbacks see it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stoker import Engine, Run
from stoker.core import dist
from stoker.core.errors import CheckpointError, did_you_mean
from stoker.core.log import get_logger
from stoker.core.types import Output
from stoker.dialects import torch_files
from stoker.dialects.script_step import model_for
from stoker.storage import local_path

_PER_ITERATION = ("batch", "batch_idx", "output", "loss", "target")
STOPPED = "runner.stop was set"


class TorchRunner:
    """The run, as callbacks see it.

    Always: num_epochs, epochs (finished ones), epoch (the current one, from 1), global_step,
    train_loader, val_loader, rank, size, model, optimizer, scheduler, criterion, config, metrics,
    stop, and stored values: `put`, `get`, `update`, `remove`. After an epoch: epoch_stats.

    Only within an iteration: batch, batch_idx, output, loss, target, metrics_stats.
    """

    def __init__(self, engine: Engine, config: Mapping[str, Any]) -> None:
        self.engine = engine
        self.config = config
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.run = Run(engine)
        self.model: Any = model_for(engine)
        self.finished: int | None = None  # how many epochs are, within an epoch
        self.logger = get_logger()
        self.pocket: dict[str, Any] = {}
        self.epoch_stats: dict[str, Any] = {}
        self.batch: Any
        self.batch_idx: int
        self.output: Any
        self.loss: Any
        self.target: Any

    def __getattr__(self, name: str) -> Any:
        if name in _PER_ITERATION:
            raise AttributeError(
                f"runner.{name} belongs to an iteration and there is none, or nobody has set it yet"
            )
        known = [*vars(self), *_PER_ITERATION, *(n for n in dir(type(self)) if n[0] != "_")]
        raise AttributeError(f"a runner has no {name!r}{did_you_mean(name, known)}")

    # Counters and limits

    @property
    def epochs(self) -> int:
        """Finished epochs; the current one is finished after its validation."""
        return self.run.epoch if self.finished is None else self.finished

    epoch = property(lambda self: self.run.current_epoch, doc="The current epoch, from 1.")
    global_step = property(lambda self: self.run.step, doc="Finished updates.")
    rank = property(lambda self: dist.rank(), doc="The number of this process.")
    size = property(lambda self: dist.world_size(), doc="How many processes there are.")

    @property
    def num_epochs(self) -> int | None:
        """The total number of epochs, or None if unknown."""
        run = self.run
        if run.max_epochs is None and run.max_steps and run.steps_per_epoch:
            return math.ceil(run.max_steps / run.steps_per_epoch)
        return run.max_epochs

    @num_epochs.setter
    def num_epochs(self, count: int) -> None:
        self.run.max_epochs = count

    @property
    def stop(self) -> bool:
        """Whether the run stops after the current iteration."""
        return self.run.stop_reason is not None

    @stop.setter
    def stop(self, value: bool) -> None:
        if value:
            self.run.request("end_epoch")
            self.run.stop(STOPPED)

    # What is trained

    optimizer = property(lambda self: self.engine.optimizer, doc="What its creator made.")
    criterion = property(lambda self: self.engine.criterion, doc="The loss function.")
    metrics = property(
        lambda self: {name.replace("/", "_"): v for name, v in self.run.metrics.items()},
        doc="The results so far: ``val_loss`` and so on.",
    )
    models = property(lambda self: [self.engine.model], doc="The model, in a list.")
    optimizers = property(lambda self: list(self.engine.optimizers.values()), doc="All of them.")
    schedulers = property(lambda self: list(self.engine.lr_schedulers.values()), doc="All.")

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None."""
        return next(iter(self.schedulers), None)

    lr_scheduler = scheduler

    @property
    def outputs(self) -> Any:
        """The older spelling of ``output``."""
        return self.output

    @outputs.setter
    def outputs(self, outputs: Any) -> None:
        self.output = outputs

    @property
    def metrics_stats(self) -> dict[str, Any]:
        """Loss and samples of the current iteration; reading it synchronizes with the device."""
        return {"train_loss": float(self.loss.detach()), "num_samples": self.run.sizes[0]}

    # The state

    def get_state_dict(self) -> dict[str, Any]:
        """Return epoch, updates, and the states of model, optimizer and scheduler."""
        return state_of(self.engine, self.run)

    def save_checkpoint(self, filepath: str | Path, save_weights_only: bool = False) -> str:
        """Save the state, or epoch and weights, to a file that `torch.load` reads."""
        state = self.get_state_dict()
        if save_weights_only:
            state = {name: state[name] for name in ("epoch", "models")}
        torch_files.write(local_path(filepath), state)
        return str(filepath)

    # The pocket

    def put(self, key: str, value: Any) -> None:
        """Store a value under a new name. Plain values and tensors are saved in checkpoints."""
        if key in self.pocket:
            raise KeyError(f"the pocket has {key!r} already: use update()")
        self.pocket[key] = value

    def update(self, key: str, value: Any) -> None:
        """Store or replace a value under a name."""
        self.pocket[key] = value

    def get(self, key: str) -> Any:
        """Return the value of a name."""
        if key not in self.pocket:
            raise KeyError(f"the pocket has no {key!r}{did_you_mean(key, self.pocket)}")
        return self.pocket[key]

    def remove(self, key: str) -> None:
        """Remove a value."""
        self.get(key)
        del self.pocket[key]

    # What the loop does

    def take(self, batch: Any, index: int) -> None:
        """Begin an iteration."""
        self.batch, self.batch_idx = batch, index

    def drop(self) -> None:
        """End an iteration and clear its attributes."""
        for name in _PER_ITERATION:
            self.__dict__.pop(name, None)

    def result(self, owner: Any, stage: str) -> Output:
        """Return the output that the owner's forward has set.

        Raises:
            ValueError: An attribute is missing.
        """
        left = self.__dict__
        for name in ("output", "loss") if stage == "train" else ("output",):
            if name not in left:
                own = f"on_{stage}_forward" in vars(type(owner))
                method = f"on_{stage}_forward" if own or stage == "pred" else "on_iter_forward"
                raise ValueError(
                    f"{type(owner).__name__}.{method} did not set runner.{name}: a forward assigns "
                    "runner.output and runner.loss"
                )
        batch = self.batch
        last = batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
        return Output(left.get("loss"), left["output"], left.get("target", last))


def state_of(engine: Engine, run: Run) -> dict[str, Any]:
    """Return the state in Orca's form; what there is none of is left out."""
    state = engine.state_dict()
    optimizers, schedulers = state["optimizers"], state["lr_schedulers"]
    return {
        "epoch": run.epoch,
        "iteration": run.step,
        "global_step": run.step,
        "models": [state["model"]],
        **({"optimizers": list(optimizers.values())} if optimizers else {}),
        **({"schedulers": list(schedulers.values())} if schedulers else {}),
    }


def as_state(found: Any) -> dict[str, Any]:
    """Return the state in what a file holds: a state, the weights of a model, or models."""
    if isinstance(found, Mapping) and "models" in found:
        for name in ("models", "optimizers", "schedulers"):
            held = found.get(name, [])
            if not isinstance(held, list | tuple) or len(held) > 1:
                what = len(held) if isinstance(held, list | tuple) else type(held).__name__
                raise CheckpointError(f"the state has {what} as {name!r}, expected a list of one")
        return dict(found)
    several = found if isinstance(found, list | tuple) else [found]
    weights = [one.state_dict() if isinstance(one, nn.Module) else one for one in several]
    if not all(isinstance(one, Mapping) for one in weights):
        raise CheckpointError(
            f"the file holds a {type(found).__name__}, expected a state with 'models', or weights"
        )
    return {"models": weights}
