"""The objects of a training, apart from its data, that may keep state without a ``state_dict``."""

from collections.abc import Iterable, Iterator
from typing import Any

from stoker.core.object_search import Attributes, is_of_stoker
from stoker.core.types import Stateful
from stoker.data.dataloader import roots_of
from stoker.hooks import Metrics
from stoker.hooks.base.hook import Hook
from stoker.run import Run
from stoker.step import Step

_SETTINGS = ("given_criterion", "criterion", "clip_norm", "clip_value", "norm_type", "lr_step")
"""What of an engine hooks may set during training."""


def training_roots(
    run: Run,
    hooks: Iterable[Hook],
    step: Step,
    val_loaders: dict[str, Any],
    *,
    stateful: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Yield what takes part in a training, apart from its training data, with names.

    Steps and hooks with a ``state_dict`` are left out unless ``stateful`` asks for them, and
    Stoker's own hooks that only observe always.
    """
    engine = run.engine
    yield "model", engine.model
    if engine.given_criterion is not None:
        yield "criterion", engine.given_criterion
    if stateful or not isinstance(step, Stateful):
        yield "step", step
    for hook in hooks:
        if (stateful or not _saves_itself(hook)) and not _is_stock_observer(hook):
            yield f"hook {hook.name}", hook
        for name, metric in hook.unsaved.items() if isinstance(hook, Metrics) else ():
            yield f"hook {hook.name} {name}", metric
    yield "engine", Attributes(engine, _SETTINGS)
    for name, optimizer in engine.optimizers.items():
        yield f"optimizer {name}".rstrip(), optimizer
    for name, scheduler in engine.lr_schedulers.items():
        yield f"lr_scheduler {name}".rstrip(), vars(scheduler).get("lr_lambdas", [])
    for name, loader in val_loaders.items():
        yield from roots_of(loader, f"{name} loader")


def saved_by_others(run: Run, hooks: Iterable[Hook], step: Step) -> list[Any]:
    """Return the objects whose state is saved anyway, or that hold no state of the training."""
    engine = run.engine
    known = [
        *engine.optimizers.values(),
        *engine.lr_schedulers.values(),
        *filter(_saves_itself, hooks),
    ]
    return [run, engine, run.events, run.feeder, hooks, vars(step).get("points"), *known]


def _saves_itself(hook: Hook) -> bool:
    """Return whether a user has written a ``state_dict`` for this hook."""
    owner = next(cls for cls in type(hook).__mro__ if "state_dict" in vars(cls))
    return not is_of_stoker(owner)


def _is_stock_observer(hook: Hook) -> bool:
    """Return whether nothing that a hook holds has an effect on training, such as a trial."""
    return hook.observes and is_of_stoker(type(hook))
