"""Everything a run is: taken down between two steps, and put back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from stoker.checkpoint import CheckpointError, Checkpoints, Loaded
from stoker.checkpoint.format.names import step_in_name
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.seed import random_state, seed_all, set_random_state, undisturbed
from stoker.core.types import Stateful
from stoker.data import BatchFeeder
from stoker.engine import Engine
from stoker.engine.fused import is_fused
from stoker.events import History
from stoker.hooks.base.dispatch import HookList
from stoker.resume.lookup import key_faults, was_arranged_otherwise
from stoker.run import Run
from stoker.step import Step

Stage: TypeAlias = Literal["within", "between"]
"""Whether a state was taken within an epoch, or between two of them."""

_log = get_logger()
_COUNTERS = ("step", "epoch", "samples", "metrics")
_ENGINE = ("criterion", "optimizers", "lr_schedulers", "scaler")


@dataclass
class RunState:
    """Takes down a run and puts it back.

    A state belongs between two steps: whatever a step, its hooks and its validation do is done.
    """

    run: Run
    hooks: HookList
    step: Step
    history: History
    accumulate: int = 1

    def shared(
        self,
        stage: Stage,
        validated_at: int,
        ended: str | None,
        *,
        owes_validation: bool = False,
    ) -> dict[str, Any]:
        """What all processes have together: tensors and plain values, these of the first one."""
        run, engine = self.run, self.run.engine.state_dict()
        together = {
            "model": engine["model"],
            "engine": {part: engine[part] for part in _ENGINE},
            "hooks": {hook.name: hook.state_dict() for hook in self.hooks if hook.replicated_state},
        }
        if not dist.is_main():
            return together
        measured = self._measured()
        return {
            **together,
            **measured,
            "hooks": together["hooks"] | measured["hooks"],
            "history": [dict(row) for row in self.history],
            "run": {
                **{name: getattr(run, name) for name in _COUNTERS},
                "stage": stage,
                "validated_at": validated_at,
                "ended": ended,
                "owes_validation": owes_validation,
                "ends_epoch": stage == "within" and self._epoch_ends(),
                "limits": [run.max_epochs, run.max_steps],
            },
        }

    def _measured(self) -> dict[str, Any]:
        """What each process has seen for itself."""
        return {
            "step_owner": self.step.state_dict() if isinstance(self.step, Stateful) else {},
            "hooks": {
                hook.name: hook.state_dict() for hook in self.hooks if not hook.replicated_state
            },
            "events": self.run.events.state_dict(),
        }

    def _epoch_ends(self) -> bool:
        """Whether no window is left to this epoch, but only its end."""
        feeder = self.run.feeder
        return self.run.requested("end_epoch") or (feeder is not None and feeder.position.ended)

    def own(self, feeder: BatchFeeder | None) -> dict[str, Any]:
        """What belongs to this process alone: random numbers and the place in its data."""
        place = {"feed": feeder.state_dict()} if feeder is not None else {}
        measured = {} if dist.is_main() else self._measured()
        return {"random": random_state(), **place, **measured}

    def info(self, validated_at: int) -> dict[str, Any]:
        """What can be read of a checkpoint without loading it.

        Results of a validation are there only if these weights are those that were judged.
        """
        run = self.run
        fresh = validated_at == run.step
        metrics = {n: v for n, v in run.metrics.items() if fresh or not n.startswith("val/")}
        of_hooks = {name: value for hook in self.hooks for name, value in hook.info().items()}
        return {
            **of_hooks,
            "epoch": run.epoch,
            "samples": run.samples,
            "metrics": {name: float(value) for name, value in metrics.items()},
            "settings": self._settings(),
        }

    def restore(self, saved: Loaded, feeder: BatchFeeder) -> "Resumed":
        """Put everything back but the random numbers, whose turn is just before training.

        Raises:
            CheckpointError: the state belongs to another model or run.
        """
        shared, run = saved.shared, self.run
        rates = _hyperparameters(run.engine)
        self.restore_trained(shared)
        _tell_changes(saved.info.get("settings", {}), self._settings())
        _tell_overruled(rates, _hyperparameters(run.engine))
        if isinstance(self.step, Stateful) and shared["step_owner"]:
            self.step.load_state_dict(shared["step_owner"])
        run.events.load_state_dict(shared["events"])
        self.history[:] = shared["history"]
        self._tell_strangers(shared["hooks"])
        resumed = Resumed(self, saved)
        resumed.restore_hooks()
        if saved.own is not None and "feed" in saved.own:
            feeder.load_state_dict(saved.own["feed"])
        if resumed.was_limited_as(run.max_epochs, run.max_steps):
            run.requests.stop_reason = shared["run"]["ended"]
        return resumed

    def restore_trained(self, shared: Mapping[str, Any]) -> None:
        """Put back the model, what trains it, and how far it was trained."""
        _check_fits(self.run.engine, shared)
        self.run.engine.load_state_dict({"model": shared["model"], **shared["engine"]})
        for name in _COUNTERS:
            setattr(self.run, name, shared["run"][name])

    def save(self, folder: Path, validated_at: int, *, overwrite: bool) -> Path:
        """Save a run that is between two fits; where the checkpoint is."""
        saved = Checkpoints(folder).list()
        there = [path for path in saved if step_in_name(path.name) == self.run.step]
        if there and not overwrite:
            raise FileExistsError(f"'{there[0]}' is there already, and overwrite is False")
        shared, own = self.shared("between", validated_at, None), self.own(self.run.feeder)
        with Checkpoints(folder, keep=None) as checkpoints:
            return checkpoints.save(self.run.step, shared, own, self.info(validated_at), wait=True)

    def _settings(self) -> dict[str, Any]:
        return {**settings_of(self.run), "accumulate": self.accumulate}

    def _tell_strangers(self, states: Mapping[str, Any]) -> None:
        names = {hook.name for hook in self.hooks}
        for name in sorted(names - states.keys()):
            _log.info(f"resume: hook {name!r} is new and starts afresh")
        for name in sorted(name for name in states.keys() - names if states[name]):
            _log.info(f"resume: hook {name!r} is gone, and its state with it")

    @contextmanager
    def untouched(self, feeder: BatchFeeder) -> Iterator[None]:
        """Whatever happens within, the run is afterwards as before."""
        run = self.run
        engine = deepcopy(run.engine.state_dict())
        own: list[Stateful] = [self.step] if isinstance(self.step, Stateful) else []
        own += [hook for hook in self.hooks if not hook.writes]
        states = [(one, deepcopy(one.state_dict())) for one in own]
        events = run.events.state_dict()
        counters = {name: getattr(run, name) for name in _COUNTERS}
        try:
            with undisturbed(*feeder.generators()):
                yield
        finally:
            run.engine.load_state_dict(engine)
            for one, state in states:
                one.load_state_dict(state)
            run.events.load_state_dict(events)
            for name, value in counters.items():
                setattr(run, name, value)


@dataclass
class Resumed:
    """A run that was put back; the last of it comes when hooks have begun their work."""

    state: RunState
    saved: Loaded

    @property
    def within_epoch(self) -> bool:
        """Whether it goes on in the middle of an epoch."""
        return bool(self.saved.shared["run"]["stage"] == "within")

    @property
    def owes_validation(self) -> bool:
        """Whether it was saved before a validation that was due."""
        return bool(self.saved.shared["run"].get("owes_validation"))

    @property
    def validated_at(self) -> int:
        """The step of the last validation."""
        return int(self.saved.shared["run"]["validated_at"])

    def was_limited_as(self, epochs: int | None, steps: int | None) -> bool:
        """Whether it was to have these epochs and steps then."""
        return bool(self.saved.shared["run"]["limits"] == [epochs, steps])

    def restore_hooks(self) -> None:
        """Give every hook the state it had."""
        for hook in self.state.hooks:
            if hook.name in self.saved.shared["hooks"]:
                hook.load_state_dict(self.saved.shared["hooks"][hook.name])

    def go_on(self) -> None:
        """What hooks did on the way here is undone, and random numbers are those of then."""
        self.restore_hooks()
        self.state.run.metrics = dict(self.saved.shared["run"]["metrics"])
        self.state.run.events.step = self.state.run.step
        if self.saved.shared["run"]["ends_epoch"]:
            self.state.run.requests.active.add("end_epoch")
        if self.saved.own is not None:
            set_random_state(self.saved.own["random"])
            part = self.state.run.engine.parallel_model.part
            if part and was_arranged_otherwise(self.saved.info, self.state.run.engine):
                seed_all(int(torch.randint(2**31, ())) + part)  # they are those of the first part


def settings_of(run: Run) -> dict[str, Any]:
    """What, when it changes between two attempts, changes where the run goes."""
    engine = run.engine
    return {
        "precision": engine.precision.name,
        "clip_norm": engine.clip_norm,
        "clip_value": engine.clip_value,
        "lr_step": engine.lr_step,
        "optimizer": {name: type(one).__name__ for name, one in engine.optimizers.items()},
        "fused": {name: is_fused(one) for name, one in engine.optimizers.items()},
        "lr_scheduler": {name: type(one).__name__ for name, one in engine.lr_schedulers.items()},
        "criterion": type(engine.given_criterion).__name__,
        "total_steps": run.total_steps if engine.lr_schedulers else None,
        "layout": str(engine.layout),
    }


def _check_fits(engine: Engine, shared: Mapping[str, Any]) -> None:
    state = engine.state_dict()
    faults = key_faults(state["model"], engine.own(shared["model"]))
    said = [f"{what}: {', '.join(names[:5])}" for what, names in faults.items() if names]
    for part in ("optimizers", "lr_schedulers"):
        own, saved = state[part], shared["engine"][part]
        if own.keys() != saved.keys():
            said.append(f"{part} were {sorted(saved)} and are {sorted(own)}")
    for name, saved in shared["engine"]["optimizers"].items():
        if name in engine.optimizers:
            kind = type(engine.optimizers[name]).__name__
            said += _other_groups(kind, saved["param_groups"], state["optimizers"][name])
    if said:
        raise CheckpointError(
            f"the checkpoint is of another model or run ({'; '.join(said)}): use another run "
            "folder, or resume='never'"
        )


def _other_groups(kind: str, saved: Sequence[Any], state: Mapping[str, Any]) -> list[str]:
    """Whether a state is of another kind of optimizer, or of other groups of parameters."""
    then, now = (
        [[set(group) - {"initial_lr"}, len(group["params"])] for group in groups]
        for groups in (saved, state["param_groups"])
    )
    if then == now:
        return []
    sizes = " and ".join(str([size for _, size in groups]) for groups in (then, now))
    return [f"{kind} has other options or groups: of sizes {sizes}"]


def _hyperparameters(engine: Engine) -> dict[str, Any]:
    found = {}
    for name, optimizer in engine.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key not in ("params", "lr", "initial_lr") and isinstance(value, float | bool):
                    found[f"optimizer{' ' + name if name else ''} group {number} {key}"] = value
            rate = group.get("initial_lr", group.get("lr"))
            found[f"optimizer{' ' + name if name else ''} group {number} lr"] = float(rate or 0)
    return found


def _tell_overruled(given: Mapping[str, Any], restored: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in restored and restored[name] != value:
            _log.warning(
                f"resume: {name} is {restored[name]!r} as before, not the {value!r} given now"
            )


def _tell_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if name in then and then[name] != value:
            _log.warning(
                f"resume: {name} was {then[name]!r} and is {value!r} now, which changes where the "
                "run goes"
            )
