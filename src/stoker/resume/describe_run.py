"""Describe a run before it starts, so that only the same run is resumed."""

import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from stoker.config.lazy import Section
from stoker.core.attributes import attributes
from stoker.core.bytecode import only_observes, own_functions
from stoker.core.describe import Description
from stoker.core.seed import torch_seed
from stoker.core.timers import timed_guard
from stoker.data import Stream
from stoker.data.dataloader import length_of
from stoker.data.streams.state import describe
from stoker.engine import Engine, unwrap
from stoker.engine.describe_model import add_criterion, add_model, add_scheduler
from stoker.hooks import Callback, Hook
from stoker.run import Run
from stoker.rundir.identity import Identity, flat_params
from stoker.step import Step

_OF_LOADER = frozenset(
    [
        "dataset",
        "sampler",
        "batch_sampler",
        "num_workers",
        "persistent_workers",
        "prefetch_factor",
        "pin_memory",
        "pin_memory_device",
        "timeout",
        "multiprocessing_context",
        "in_order",
        "_iterator",
        "_dataset_kind",
        "_DataLoader__initialized",
        "_DataLoader__multiprocessing_context",
        "_IterableDataset_len_called",
    ]
)
_OF_SAMPLER = frozenset(("num_replicas", "rank", "num_samples", "total_size", "epoch"))
_OF_STEP = frozenset(("schedule", "points", "_checked", "__name__"))


@timed_guard("identity")
def identity_of(
    run: Run,
    step: Step,
    hooks: Iterable[Hook],
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    params: Any = None,
) -> Identity:
    """Return the identity of a run that is about to start.

    Nothing is drawn or read: see `stoker.core.describe`. State that training changes is left out,
    such as weights and counters, so that the same script has the same identity at every start.

    Args:
        run: with its limits, before it is restored.
        step: what one update means.
        hooks: those that only observe are left out.
        data: the loaders, by name.
        settings: plain values, by name.
        params: the resolved config, or what a script wants to record.
    """
    engine, found = run.engine, Description()
    found.hide(run, engine, run.events, engine.parallel_model)
    if engine.described is not None:
        found.values |= engine.described
        found.hide(*engine.model.modules(), *engine.optimizers.values())
    else:
        add_model(found, unwrap(engine.model), engine.optimizers)
    for name, scheduler in engine.lr_schedulers.items():
        add_scheduler(found, name, scheduler)
    add_criterion(found, engine.given_criterion)
    found.add("step", step, skip=_OF_STEP)
    if not str(type(step.schedule).__module__).startswith("stoker."):
        found.add("schedule", step.schedule)
    acting = [hook for hook in hooks if not _is_observer(hook)]
    for hook in acting:
        found.add(f"hooks.{hook.name}", hook)
    if len(acting) > 1:
        found.put("order of hooks", ", ".join(hook.name for hook in acting))
    for name, loader in data.items():
        _add_loader(found, name, loader)
    for name, value in {**_settings(engine), **settings}.items():
        found.add(name, value)
    is_config = isinstance(params, Section)
    return Identity(found.values, flat_params(params), _limits(run), is_config=is_config)


def _settings(engine: Engine) -> dict[str, Any]:
    return {
        "precision": engine.precision.name,
        "clip_norm": engine.clip_norm,
        "clip_value": engine.clip_value,
        "norm_type": engine.norm_type,
        "lr_step": engine.lr_step,
        "compile": engine.compile_mode,
        "torch seed": torch_seed(),
        **{name: value for name, (value, usual) in _of_torch().items() if value != usual},
    }


def _of_torch() -> dict[str, tuple[Any, Any]]:
    """Return the global settings of torch that change results, with their defaults."""
    return {
        "default dtype": (str(torch.get_default_dtype()), "torch.float32"),
        "matmul precision": (torch.get_float32_matmul_precision(), "highest"),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled(), False),
        "cudnn.allow_tf32": (torch.backends.cudnn.allow_tf32, True),
        "cudnn.deterministic": (torch.backends.cudnn.deterministic, False),
        "cudnn.benchmark": (torch.backends.cudnn.benchmark, False),
    }


def _limits(run: Run) -> dict[str, Any]:
    return {
        "epochs": run.max_epochs,
        "max_steps": run.max_steps,
        "total_steps": run.total_steps,
        "data_ranks": run.engine.parallel_model.data_ranks,
        "layout": str(run.engine.layout),
    }


def _is_observer(hook: Hook) -> bool:
    """Return whether a hook can be added, changed or removed without effect on training."""
    if hook.observes or hook.writes:
        return True
    held = attributes(hook)
    functions = [getattr(one, "__func__", one) for one in held.values() if callable(one)]
    kinds = [kind for kind in type(hook).__mro__ if issubclass(kind, Hook)]
    if any(kind not in (Hook, Callback) and _is_stock(kind) for kind in kinds):
        return False
    methods = [one for kind in kinds for one in own_functions(kind) if one.__name__ != "__init__"]
    if not all(isinstance(one, FunctionType) for one in functions):
        return False
    own = {name for name, value in held.items() if _is_of_python(value)}
    return only_observes([*functions, *methods], own | {one.__name__ for one in methods})


def _is_stock(kind: type) -> bool:
    return str(kind.__module__).startswith("stoker.")


def _is_of_python(value: Any) -> bool:
    """Return whether a value is plain, or an object of the standard library."""
    return str(type(value).__module__).partition(".")[0] in sys.stdlib_module_names


# Data


def _add_loader(found: Description, key: str, loader: Any) -> None:
    if isinstance(loader, Stream):
        found.add(key, describe(loader.plan))
        return
    if not isinstance(loader, DataLoader):
        found.add(key, loader, files=True)
        return
    found.add_type(key, loader)
    dataset = loader.dataset
    if hasattr(type(dataset), "__getitem__") and not isinstance(dataset, IterableDataset):
        found.put(f"{key}.length", length_of(dataset))
    found.add(f"{key}.dataset", dataset, files=True)
    plain = type(loader.batch_sampler).__module__ == "torch.utils.data.sampler"
    sampler = loader.sampler if plain or loader.batch_sampler is None else loader.batch_sampler
    found.hide(dataset)
    distributed = type(sampler).__name__ == "DistributedSampler"
    found.add(f"{key}.sampler", sampler, skip=_OF_SAMPLER if distributed else ())
    if plain:
        found.put(f"{key}.batch_size", loader.batch_sampler.batch_size)  # type: ignore[union-attr]
        found.put(f"{key}.drop_last", loader.batch_sampler.drop_last)  # type: ignore[union-attr]
    for name, value in attributes(loader).items():
        if name not in _OF_LOADER and not (plain and name in ("batch_size", "drop_last")):
            found.add(f"{key}.{name.strip('_')}", value)


def loaders_by_name(train_loader: Any, val_loader: Any) -> dict[str, Any]:
    """Return the loaders of a fit, by the names under which they are described."""
    found = {"train data": train_loader}
    if isinstance(val_loader, Mapping):
        found |= {f"val data.{name}": one for name, one in val_loader.items()}
    elif val_loader is not None:
        found["val data"] = val_loader
    return found
