"""The sections ``train`` and ``graph`` of a config: defaults, unknown keys, and limits."""

import logging
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, open_dict

from stoker.config.run_section import batch_sizes
from stoker.dialects.libai.config import get_config, try_get_key
from stoker.dialects.libai.distributed import layout_of, setup_dist_util
from stoker.dialects.libai.lazy import as_config

_log = logging.getLogger("libai.config")

_MISSPELLED = 0.88
"""How similar a misspelled key is to the one that is meant: "log_perod"."""

_WRITTEN = {
    "train": ("samples", "warmup_iter"),
    "train.dist": (
        "num_nodes",
        "num_gpus_per_node",
        "auto_pipeline_stage_id",
        "actual_pipeline_stage_id",
        "device_type",
    ),
}
"""Keys without a default, which a trainer writes into the config."""

_LIMITS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train.consumed_train_samples": ((0,), "checkpoints store the position in the data"),
    "train.consumed_valid_samples": ((0,), "every evaluation starts at the first sample"),
    "train.train_samples": ((None,), "set train.train_iter or train.train_epoch"),
    "train.nccl_fusion_threshold_mb": ((16, 0), "it belongs to OneFlow"),
    "train.nccl_fusion_max_ops": ((24, 0), "it belongs to OneFlow"),
    "train.zero_optimization.stage": ((1, 2, 3), "these are the stages of ZeRO"),
    "graph.debug": ((-1,), "set TORCH_LOGS in the environment instead"),
    "graph.auto_parallel.enabled": ((False,), "set train.dist instead"),
    "graph.global_mode.enabled": ((False,), "it belongs to OneFlow"),
}
"""The values of options that Stoker cannot or need not do, and why."""


def prepared(cfg: Any) -> Any:
    """Fill in defaults and batch sizes, check all options, and return the ``train`` section."""
    cfg._set_flag("allow_objects", True)
    unknown: list[str] = []
    with open_dict(cfg):
        for name, file in (("train", "common/train.py"), ("graph", "common/models/graph.py")):
            if cfg.get(name) is None:
                cfg[name] = as_config({})
            unknown += _filled(cfg[name], get_config(file)[name], name)
    if unknown:
        _log.warning(f"the trainer does not use {', '.join(unknown)}")
    for path, (values, why) in _LIMITS.items():
        if (value := try_get_key(cfg, path)) not in values:
            allowed = " or ".join(map(repr, values))
            raise ValueError(f"{path} is {value!r}, expected {allowed}: {why}")
    train = cfg["train"]
    setup_dist_util(train["dist"])
    names = ("train_micro_batch_size", "num_accumulation_steps", "global_batch_size")
    micro, accumulate, total = (train[name] for name in names)
    if micro is None and total is None:
        raise ValueError("set train.train_micro_batch_size or train.global_batch_size")
    try:
        sizes = batch_sizes(micro, accumulate, total, layout_of(train).data_ranks)
    except ValueError as error:
        text = str(error).replace("run.", "train.").replace("micro_batch", names[0])
        text = text.replace("accumulate", names[1]).replace("global_batch", names[2])
        raise ValueError(text) from None
    train.update(zip(names, sizes, strict=True))
    train["samples"] = train["train_iter"] * train["global_batch_size"]
    return train


def _filled(given: Any, known: Any, at: str) -> Iterator[str]:
    """Add missing keys to a section, and yield those that it should not have.

    A misspelled key is an error. Any other may be a key of the script itself.
    """
    for name in [name for name in given if name not in known]:
        if name in _WRITTEN.get(at, ()):
            continue
        if near := get_close_matches(name, list(known), n=1, cutoff=_MISSPELLED):
            raise ValueError(f"{at} has no {name!r}; did you mean {near[0]!r}?")
        yield f"{at}.{name}"
    for name, value in known.items():
        if name not in given:
            given[name] = value
        elif isinstance(value, DictConfig) and "_target_" not in value:
            if not isinstance(given[name], DictConfig):
                raise TypeError(f"{at}.{name} is {given[name]!r}, expected a section")
            yield from _filled(given[name], value, f"{at}.{name}")
