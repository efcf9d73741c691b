"""Capture the complete state of a run between two steps, and restore it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from stoker.checkpoint import Checkpoints, Loaded
from stoker.checkpoint.format.names import step_in_name
from stoker.core import dist
from stoker.core.errors import CheckpointMismatchError
from stoker.core.log import get_logger
from stoker.core.seed import preserve_rng, random_state, seed_all, set_random_state
from stoker.core.types import Stateful
from stoker.core.user_state import UserState
from stoker.data import BatchFeeder
from stoker.engine import Engine
from stoker.engine.fused import is_fused
from stoker.events import History
from stoker.hooks.base.dispatch import HookList
from stoker.resume.carried_gradients import carried_gradients, restore_gradients
from stoker.resume.changed_parts import ChangedParts
from stoker.resume.history_files import HistoryFiles
from stoker.resume.imported import is_imported
from stoker.resume.lookup import was_saved_in_another_layout
from stoker.resume.stretch_schedule import ScheduleLength
from stoker.resume.user_objects import saved_by_others, training_roots
from stoker.resume.weights import compare_weights
from stoker.run import Run
from stoker.step import Step

Stage: TypeAlias = Literal["within", "between"]
"""Whether a state was captured within an epoch, or between two of them."""

_log = get_logger()
_COUNTERS = ("step", "epoch", "samples", "metrics")
_ENGINE = ("criterion", "optimizers", "lr_schedulers", "scaler")


@dataclass
class RunState:
    """Captures and restores a run, between two steps: when a step, its hooks and its validation
    are done.
    """

    run: Run
    hooks: HookList
    step: Step
    history: History
    accumulate: int
    user_state: UserState
    history_files: HistoryFiles = field(default_factory=HistoryFiles)
    parts: ChangedParts = field(default_factory=ChangedParts)

    # Capture

    def shared(
        self,
        stage: Stage,
        validated_at: int,
        ended: str | None,
        *,
        owes_validation: bool = False,
    ) -> dict[str, Any]:
        """Return the state that all ranks share: tensors, and on rank 0 plain values."""
        run, engine = self.run, self.run.engine.state_dict()
        shared = {
            "model": engine["model"],
            "engine": {part: engine[part] for part in _ENGINE},
            "hooks": {hook.name: hook.state_dict() for hook in self.hooks if hook.replicated_state},
        }
        if not dist.is_main():
            return shared
        observed = self._observed()
        return {
            **shared,
            **observed,
            "hooks": shared["hooks"] | observed["hooks"],
            "history": self.history_files.save(self.history),
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

    def own(self, feeder: BatchFeeder | None) -> dict[str, Any]:
        """Return the state of this rank alone: RNG, data position, and what it has observed."""
        position = {"feeder": feeder.state_dict()} if feeder is not None else {}
        observed = {} if dist.is_main() else self._observed()
        captured = self.user_state.capture() if self.user_state.begun else []
        self.parts.report(self.run.engine)
        carried = carried_gradients(self.step, self.run.engine)
        gradients = {"gradients": carried} if carried else {}
        own = {"random": random_state(), "user_state": captured, **gradients}
        return {**own, **position, **observed}

    def info(self, validated_at: int) -> dict[str, Any]:
        """Return what can be read from a checkpoint without loading it.

        Validation results are included only if they were measured with these weights.
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

    def save(self, folder: Path, validated_at: int, *, overwrite: bool) -> Path:
        """Save a run between two fits; return the path of the checkpoint."""
        existing = [p for p in Checkpoints(folder).list() if step_in_name(p.name) == self.run.step]
        if existing and not overwrite:
            raise FileExistsError(f"'{existing[0]}' exists already, and overwrite is False")
        shared, own = self.shared("between", validated_at, None), self.own(self.run.feeder)
        with Checkpoints(folder, keep=None) as checkpoints:
            return checkpoints.save(self.run.step, shared, own, self.info(validated_at), wait=True)

    def _observed(self) -> dict[str, Any]:
        """What each rank observes for itself."""
        schedule = self.step.schedule
        return {
            "step": self.step.state_dict() if isinstance(self.step, Stateful) else {},
            "schedule": schedule.state_dict() if isinstance(schedule, Stateful) else {},
            "hooks": {h.name: h.state_dict() for h in self.hooks if not h.replicated_state},
            "events": self.run.events.state_dict(),
        }

    def _epoch_ends(self) -> bool:
        """Whether no step is left in this epoch, but only its end."""
        feeder = self.run.feeder
        return self.run.requested("end_epoch") or (feeder is not None and feeder.position.ended)

    def _settings(self) -> dict[str, Any]:
        return {**settings_of(self.run), "accumulate": self.accumulate}

    def track(self, feeder: BatchFeeder) -> None:
        """Track state without a ``state_dict``, and report what of it cannot be saved."""
        self.parts.begin(self.run.engine)
        feeder.track_state()
        feeder.report_unsaved()
        if not self.user_state.begun:
            self.user_state.begin()
        self.user_state.report_unsavable()

    def user_state_digests(self) -> dict[str, str]:
        """Return a digest of every value of user code, saved or not, by a name for messages."""
        run, hooks, step = self.run, self.hooks, self.step
        training = UserState(
            lambda: training_roots(run, hooks, step, {}, stateful=True),
            lambda: saved_by_others(run, (), step),
        )
        data = run.feeder.user_state if run.feeder is not None else None
        return training.digests() | (data.digests() if data is not None else {})

    # Restore

    def restore(self, saved: Loaded, feeder: BatchFeeder) -> "Restored":
        """Restore everything but the RNG, which follows just before training.

        Raises:
            CheckpointError: the state belongs to another model or run.
        """
        shared, run = saved.shared, self.run
        length = ScheduleLength(run)
        self.restore_trained(saved)
        length.restore(saved.info["settings"]["total_steps"], shared["run"]["limits"][0])
        if isinstance(self.step, Stateful) and shared["step"]:
            self.step.load_state_dict(shared["step"])
        schedule = self.step.schedule
        if isinstance(schedule, Stateful) and shared.get("schedule"):
            schedule.load_state_dict(shared["schedule"])
        run.events.load_state_dict(shared["events"])
        self.history[:] = shared["history"]
        self._log_unmatched_hooks(shared["hooks"])
        restored = Restored(self, saved)
        restored.restore_hooks()
        if saved.own is not None:
            if not isinstance(saved.own.get("user_state"), list):
                raise ValueError("it has no state of user code: another version of Stoker saved it")
            with preserve_rng():
                set_random_state(saved.own["random"])  # raises now what `finish` would raise
            restore_gradients(saved.own.get("gradients", {}), run.engine)
        if saved.own is not None and "feeder" in saved.own:
            feeder.load_state_dict(saved.own["feeder"])
        if shared["run"]["limits"] == [run.max_epochs, run.max_steps]:
            run.requests.stop_reason = shared["run"]["ended"]
        return restored

    def restore_trained(self, saved: Loaded) -> None:
        """Restore the model, what trains it, and the counters."""
        shared = saved.shared
        _check_counters(shared["run"])
        _check_fits(self.run.engine, shared)
        saved.finish_reading()
        self.run.engine.load_state_dict({"model": shared["model"], **shared["engine"]})
        for name in _COUNTERS:
            setattr(self.run, name, shared["run"][name])

    def _log_unmatched_hooks(self, states: Mapping[str, Any]) -> None:
        names = {hook.name for hook in self.hooks}
        new = {hook.name for hook in self.hooks if not hook.observes} - states.keys()
        for name in sorted(new):
            _log.info(f"resume: hook {name!r} is new and has no saved state")
        for name in sorted(name for name in states.keys() - names if states[name]):
            _log.info(f"resume: hook {name!r} is missing, its saved state is dropped")

    @contextmanager
    def unchanged(self, feeder: BatchFeeder) -> Iterator[None]:
        """Restore the run after the block, whatever happens within."""
        run = self.run
        engine = deepcopy(run.engine.state_dict())
        own: list[Stateful] = [self.step] if isinstance(self.step, Stateful) else []
        own += [hook for hook in self.hooks if not hook.writes]
        states = [(one, deepcopy(one.state_dict())) for one in own]
        events = run.events.state_dict()
        counters = {name: getattr(run, name) for name in _COUNTERS}
        try:
            with preserve_rng(*feeder.generators()):
                yield
        finally:
            run.engine.load_state_dict(engine)
            for one, state in states:
                one.load_state_dict(state)
            run.events.load_state_dict(events)
            for name, value in counters.items():
                setattr(run, name, value)


@dataclass
class Restored:
    """A restored run; `finish` follows when hooks have begun their work."""

    state: RunState
    saved: Loaded

    @property
    def within_epoch(self) -> bool:
        """Whether the run resumes in the middle of an epoch."""
        return bool(self.saved.shared["run"]["stage"] == "within")

    @property
    def is_imported(self) -> bool:
        """Whether the state was saved by another trainer, without random numbers and data."""
        return is_imported(self.saved.info)

    @property
    def owes_validation(self) -> bool:
        """Whether the run was saved just before a validation that was due."""
        return bool(self.saved.shared["run"].get("owes_validation"))

    @property
    def validated_at(self) -> int:
        """The step of the last validation."""
        return int(self.saved.shared["run"]["validated_at"])

    def restore_hooks(self) -> None:
        """Give every hook its saved state."""
        for hook in self.state.hooks:
            if hook.name in self.saved.shared["hooks"]:
                hook.load_state_dict(self.saved.shared["hooks"][hook.name])

    def finish(self) -> None:
        """Undo what hooks did since `RunState.restore`, and restore the RNG."""
        self.restore_hooks()
        run = self.state.run
        run.metrics = dict(self.saved.shared["run"]["metrics"])
        run.events.step = run.step
        if self.saved.shared["run"]["ends_epoch"]:
            run.requests.active.add("end_epoch")
        if self.saved.own is not None:
            with _criterion_kept(run.engine):
                self.state.user_state.restore(self.saved.own["user_state"])
            set_random_state(self.saved.own["random"])
            shard = run.engine.parallel_model.data_rank
            if shard and was_saved_in_another_layout(self.saved.info, run.engine):
                seed_all(int(torch.randint(2**31, ())) + shard)  # the saved ones are rank 0's


@contextmanager
def _criterion_kept(engine: Engine) -> Iterator[None]:
    """Give the engine a criterion that the block restores, with what depends on it."""
    before = engine.given_criterion
    yield
    if engine.given_criterion is not before:
        engine.set_criterion(engine.given_criterion)


def is_beyond(saved: Loaded, epochs: int | None, steps: int | None) -> bool:
    """Return whether a state lies within an epoch that a fit with these limits does not reach."""
    run = saved.shared["run"]
    if run["stage"] != "within" or run["limits"] == [epochs, steps]:
        return False
    return bool(
        (epochs is not None and run["epoch"] >= epochs)
        or (steps is not None and run["step"] > steps)
    )


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings that a run has to keep to reproduce the original when it resumes."""
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


def _check_counters(saved: Mapping[str, Any]) -> None:
    """Raise an error if the counters of a checkpoint are of another kind."""
    counts = [saved[name] for name in ("step", "epoch", "samples")]
    if any(type(one) not in (int, float) or not 0 <= one < 2**63 for one in counts):
        raise ValueError(
            f"step, epoch and samples are {str(counts)[:100]}, expected numbers from 0"
        )
    metrics, limits = saved["metrics"], saved["limits"]
    numbers = metrics.values() if isinstance(metrics, dict) else [None]
    if any(not hasattr(one, "__float__") for one in numbers) or not isinstance(limits, list):
        raise ValueError("metrics or limits are not numbers")
    flags = [saved[name] for name in ("ends_epoch", "owes_validation")]
    kinds = (saved["stage"], str), (saved["ended"], str | None), (saved["validated_at"], int)
    if not all(isinstance(value, kind) for value, kind in (*kinds, *((f, bool) for f in flags))):
        raise ValueError("the stage of the run is of another kind")


def _check_fits(engine: Engine, shared: Mapping[str, Any]) -> None:
    state = engine.state_dict()
    mismatches = compare_weights(state["model"], engine.local_weights(shared["model"]))
    faults = [f"{what}: {', '.join(names[:5])}" for what, names in mismatches.items() if names]
    for part in ("optimizers", "lr_schedulers"):
        own, saved = state[part], shared["engine"][part]
        if own.keys() != saved.keys():
            faults.append(f"{part} were {sorted(saved)} and are {sorted(own)}")
    for name, saved in shared["engine"]["optimizers"].items():
        if name in engine.optimizers:
            kind = type(engine.optimizers[name])
            faults += _compare_groups(kind, saved["param_groups"], state["optimizers"][name])
    if faults:
        raise CheckpointMismatchError(
            f"the checkpoint is of another model or run ({'; '.join(faults)}): use another run "
            "folder, or resume='never'"
        )


def _compare_groups(kind: type[Any], saved: Sequence[Any], state: Mapping[str, Any]) -> list[str]:
    """Return how the saved parameter groups differ from the optimizer's.

    Optimizers that are not torch's own, and hooks, may add options to groups during training.
    """
    if len(saved) == len(state["param_groups"]):
        pairs = zip(saved, state["param_groups"], strict=True)
        saved = [{k: v for k, v in one.items() if k in own} for one, own in pairs]
    before, now = (
        [[set(group) - {"initial_lr"}, len(group["params"])] for group in groups]
        for groups in (saved, state["param_groups"])
    )
    if before == now:
        return []
    sizes = " and ".join(str([size for _, size in groups]) for groups in (before, now))
    return [f"{kind.__name__} has other options or groups: of sizes {sizes}"]
