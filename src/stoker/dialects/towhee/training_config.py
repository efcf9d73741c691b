"""`TrainingConfig`: the training settings, as a dataclass or as YAML in sections."""
# ruff: noqa: RUF009

import json
import os
from dataclasses import InitVar, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeAlias, get_type_hints

import torch

from stoker.config.check import described, fits
from stoker.config.files import read_yaml
from stoker.config.yaml_text import write
from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger

_log = get_logger()

Switch: TypeAlias = dict[str, Any] | str | bool | None
Spec: TypeAlias = dict[str, Any] | str

_OLD: dict[str, dict[str, Any]] = {
    "device": {"n_gpu": -1, "sync_bn": False},
    "logging": {"logging_dir": None, "logging_strategy": "steps"},
    "train": {"max_steps": -1, "resume_from_checkpoint": None},
}
"""Keys in files of older versions, and the values at which they have no effect."""
_STOPPING = {"monitor": "eval_epoch_metric", "patience": 4, "mode": "max"}
_SAVING, _WRITING = {"every_n_epoch": 1}, {"log_dir": None, "comment": ""}
STRATEGIES = ("epoch", "eval_epoch", "steps", "step", "no")


def off(value: Any) -> bool:
    """Return whether a setting is switched off."""
    return value is None or value is False or value in ("no", "null", "None")


def _is(section: str, default: Any, help: str) -> Any:
    kept = {"category": section, "help": help}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=kept)
    return field(default=default, metadata=kept)


@dataclass
class TrainingConfig:
    """The training settings. `get_config_help` describes each field.

    "no", "null", "None", None and False switch off what can be switched off.
    """

    output_dir: str = _is("train", "./output_dir", "the folder that checkpoints go into")
    overwrite_output_dir: bool = _is("train", True, "replace another run's results in output_dir")
    eval_strategy: str | bool | None = _is("train", "epoch", f"one of {STRATEGIES}")
    eval_steps: int | None = _is("train", None, "for eval_strategy steps: after how many batches")
    batch_size: int = _is("train", 8, "samples in a training batch")
    val_batch_size: int = _is("train", -1, "samples in an evaluation batch; -1: as in training")
    seed: int = _is("train", 42, "of all random numbers")
    epoch_num: int = _is("train", 2, "passes over the training data")
    dataloader_pin_memory: bool = _is("train", True, "faster copies to a GPU, where there is one")
    dataloader_drop_last: bool = _is("train", True, "leave out a last, smaller training batch")
    dataloader_num_workers: int = _is("train", 0, "processes that load data; -1: as fits here")
    lr: float = _is("learning", 5e-5, "the learning rate, from which the schedule starts")
    metric: str | bool | None = _is("metrics", "Accuracy", "a metric by its name")
    print_steps: int | str | None = _is("logging", None, "the steps between lines; None: a bar")
    load_best_model_at_end: bool = _is("train", False, "end with the best weights, not the last")
    early_stopping: Switch = _is("callback", _STOPPING, "arguments of EarlyStoppingCallback")
    model_checkpoint: Switch = _is("callback", _SAVING, "arguments of ModelCheckpointCallback")
    tensorboard: Switch = _is("callback", _WRITING, "arguments of TensorBoardCallBack")
    loss: Spec = _is("learning", "CrossEntropyLoss", "a class of torch.nn, or a dict with name_")
    optimizer: Spec = _is("learning", "Adam", "a class of torch.optim, or a dict with name_")
    lr_scheduler_type: Spec = _is("learning", "linear", "linear, cosine, … or a dict with name_")
    warmup_ratio: float = _is("learning", 0.0, "the share of all updates in which the rate rises")
    warmup_steps: int = _is("learning", 0, "the same in updates; wins over warmup_ratio")
    device_str: str | None = _is("device", None, "cpu, cuda:2, or cuda for all; found if None")
    freeze_bn: bool = _is("train", False, "keep the running statistics of batch norms")
    sync_bn: InitVar[bool] = False
    """Of older versions, and always False."""

    def __post_init__(self, sync_bn: bool) -> None:
        _check_old("device", "sync_bn", sync_bn, "TrainingConfig")
        self.output_dir = os.path.expanduser(self.output_dir)
        self.check()

    def check(self) -> None:
        """Check the values; each train() does this, too."""
        kinds = get_type_hints(type(self))
        for name, kind in ((one.name, kinds[one.name]) for one in fields(self)):
            if not fits(value := getattr(self, name), kind):
                raise TypeError(f"{name} is {value!r}, expected {described(kind)}")
        strategy = self.eval_strategy
        if not off(strategy) and strategy not in STRATEGIES:
            near = did_you_mean(str(strategy), STRATEGIES)
            raise ValueError(f"eval_strategy is {strategy!r}{near} (there is {STRATEGIES})")
        if strategy in ("step", "steps") and not self.eval_steps:
            raise ValueError(f"eval_strategy {strategy!r} needs eval_steps, a number from 1")
        for name in ("batch_size", "epoch_num", "val_batch_size", "print_steps", "eval_steps"):
            value = getattr(self, name)
            unset = off(value) or (name == "val_batch_size" and value == -1)
            if not unset and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} is {value!r}, expected a number from 1")

    @property
    def train_batch_size(self) -> int:
        """The training batch size."""
        return self.batch_size

    @property
    def eval_batch_size(self) -> int:
        """The evaluation batch size."""
        return self.batch_size if self.val_batch_size == -1 else self.val_batch_size

    @property
    def num_workers(self) -> int:
        """The number of data loading processes."""
        if self.dataloader_num_workers != -1:
            return self.dataloader_num_workers
        return min(os.cpu_count() or 1, self.batch_size, 8)

    @property
    def device(self) -> torch.device:
        """The device of ``device_str``."""
        found = "cuda:0" if torch.cuda.is_available() else "cpu"
        return torch.device(self.device_str or found)

    @property
    def config_category_set(self) -> set[str]:
        """The sections of a file."""
        return set(_sections())

    def load_from_yaml(self, path2yaml: str | Path) -> Self:
        """Load values from a file, which may be partial, and return the config.

        Keys of older versions are accepted where they have no effect.
        """
        sections = _sections()
        for name, section in read_yaml(Path(path2yaml)).items():
            if name not in sections or not isinstance(section, dict):
                raise ValueError(
                    f"{path2yaml}: there is no section {name!r}{did_you_mean(name, sections)}"
                )
            for key, value in section.items():
                if key in sections[name]:
                    setattr(self, key, dict(value) if isinstance(value, dict) else value)
                else:
                    _check_old(name, key, value, str(path2yaml))
        self.check()
        return self

    def save_to_yaml(self, path2yaml: str | Path) -> None:
        """Save all values to a file."""
        values = self.to_dict()
        tree = {name: {key: values[key] for key in keys} for name, keys in _sections().items()}
        Path(path2yaml).write_text(write(tree), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        return asdict(self)

    def to_json_string(self) -> str:
        """Return all values as JSON."""
        return json.dumps(self.to_dict(), indent=2)


def _sections() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in fields(TrainingConfig):
        found.setdefault(one.metadata["category"], []).append(one.name)
    return found


def dump_default_yaml(yaml_path: str | Path) -> None:
    """Write a file with all defaults."""
    TrainingConfig().save_to_yaml(yaml_path)


def _check_old(section: str, key: str, value: Any, where: str) -> None:
    """Accept a key of an older version if it has no effect."""
    if key == "args":
        _log.warning(f"{where}: {section}.args is ignored, as by Towhee: move its keys up a level")
        return
    old = _OLD.get(section, {})
    if key not in old:
        near = did_you_mean(key, _sections()[section])
        raise ValueError(f"{where}: {section} has no {key!r}{near}")
    if value != old[key]:
        raise ValueError(
            f"{where}: {key} is {value!r}, but Towhee dropped this key: remove it, or set it to "
            f"{old[key]!r}"
        )


def get_config_help() -> dict[str, dict[str, str]]:
    """Print each field with its default, and return help and category of each by name."""
    usual = TrainingConfig()
    for one in fields(TrainingConfig):
        print(f"[{one.metadata['category']}] {one.name} = {getattr(usual, one.name)!r}")
        print(f"    {one.metadata['help']}")
    return {one.name: dict(one.metadata) for one in fields(TrainingConfig)}
