"""The config of a job, and how its reserved keys translate to Stoker.

    parallel = dict(pipeline=2, tensor=dict(size=1, mode=None))    Layout(replicate=-1, pipeline=2)
    zero = dict(level=3, cpu_offload=False)                        Layout(shard=-1)
    torch_ddp = dict(find_unused_parameters=True)                  Layout(unused=True)
    fp16 = dict(mode=AMP_TYPE.TORCH, init_scale=2**16)             Engine(precision="fp16")
    clip_grad_norm, gradient_accumulation, gradient_handler        see `Engine`
    NUM_MICRO_BATCHES, model = dict(num_chunks=2), TENSOR_SHAPE    see `PipelineSchedule`
    cudnn_benchmark, cudnn_deterministic                           torch.backends.cudnn

All other keys belong to the script, which reads them from ``gpc.config``.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from stoker import Layout
from stoker.config import ConfigError
from stoker.config.files import executed
from stoker.core import dist
from stoker.core.errors import did_you_mean

_RESERVED = (
    *("parallel", "fp16", "zero", "gradient_accumulation", "clip_grad_norm", "gradient_handler"),
    *("cudnn_benchmark", "cudnn_deterministic", "torch_ddp", "NUM_MICRO_BATCHES", "TENSOR_SHAPE"),
)
_SCALER = {  # the names of the scaler's options in each kind of mixed precision
    "torch": {"init_scale": "scale", "enabled": "enabled"},
    "naive": {"initial_scale": "scale"},
    "apex": {"opt_level": "opt_level"},
}
_ALSO = {name: name for name in ("growth_factor", "backoff_factor", "growth_interval")}


class AMP_TYPE(Enum):  # noqa: N801
    """Kinds of mixed precision; all of them use autocast to fp16 with loss scaling."""

    TORCH = "torch"
    APEX = "apex"
    NAIVE = "naive"


class ParallelMode(Enum):
    """Kinds of process groups."""

    GLOBAL = "global"
    DATA = "data"
    PIPELINE = "pipe"
    TENSOR = "tensor"


class Config(dict[str, Any]):
    """A dict whose keys are also attributes."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            {k: Config(v) if isinstance(v, Mapping) else v for k, v in (values or {}).items()}
        )

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the config has no {name!r}{did_you_mean(name, self)}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    @staticmethod
    def from_file(path: str | Path) -> "Config":
        """Load the names of a Python file, except modules, classes and names with ``__``."""
        if not Path(path).is_file() or Path(path).suffix != ".py":
            raise ConfigError(f"config '{path}' is not a Python file")
        found = vars(executed(Path(path).resolve()))
        kept = {k: v for k, v in found.items() if not k.startswith("__") and not _is_imported(v)}
        return Config(kept)


class GlobalContext:
    """The config and the ranks that all parts of a script share."""

    def __init__(self) -> None:
        self.config = Config()

    def load_config(self, config: str | Path | Mapping[str, Any]) -> None:
        """Load a config, and reject misspelt reserved keys."""
        read = Config(config) if isinstance(config, Mapping) else Config.from_file(config)
        for key in read:
            near = get_close_matches(key, _RESERVED, n=1, cutoff=0.85)
            if key not in _RESERVED and near:
                raise ConfigError(f"unknown config key {key!r}; did you mean {near[0]!r}?")
        self.config = read
        self.layout(None, {})  # raises now if the config is invalid
        self.precision()
        torch.backends.cudnn.benchmark = bool(read.get("cudnn_benchmark", False))
        torch.backends.cudnn.deterministic = bool(read.get("cudnn_deterministic", False))

    def get_global_rank(self) -> int:
        """Return the rank of this process."""
        return dist.rank()

    def get_world_size(self, mode: ParallelMode = ParallelMode.GLOBAL) -> int:
        """Return the number of processes in a group of this kind."""
        layout = self.layout(None, {}).filled(dist.world_size())
        sizes = {
            ParallelMode.GLOBAL: layout.processes,
            ParallelMode.DATA: layout.data_ranks,
            ParallelMode.PIPELINE: layout.pipeline,
            ParallelMode.TENSOR: layout.tensor,
        }
        return sizes[mode]

    def layout(self, pipeline_schedule: str | None, options: dict[str, Any]) -> Layout:
        """Return the layout of the config; ``options`` are those of the pipeline schedule."""
        parallel, config = self.config.get("parallel", {}), self.config
        _check("parallel", parallel, ("data", "pipeline", "tensor"))
        pipeline, tensor = _size(parallel, "pipeline"), _size(parallel, "tensor")
        mode = _section(parallel, "tensor", ("size", "mode")).get("mode")
        if tensor > 1 and mode not in (None, "1d"):
            raise ConfigError(
                f"parallel.tensor has mode {mode!r}, but layers are split in one dimension: '1d'"
            )
        zero, ddp = config.get("zero"), config.get("torch_ddp", {})
        _check("torch_ddp", ddp, ("find_unused_parameters",))
        more: dict[str, Any] = {"replicate": _size(parallel, "data", -1)}
        if zero is not None:
            _check("zero", zero, ("level", "cpu_offload"))
            offload, reshard = zero.get("cpu_offload", False), zero.get("level", 3) == 3
            more = {"shard": -1, "offload": offload, "reshard": reshard}
        elif ddp.get("find_unused_parameters"):
            more["unused"] = True
        if pipeline > 1 and pipeline_schedule is not None:
            more |= {"schedule": pipeline_schedule, **options}
        return Layout(pipeline=pipeline, tensor=tensor, **more)

    def precision(self) -> tuple[Any, dict[str, Any]]:
        """Return the precision of the config, and the initial state of its loss scaler."""
        fp16 = self.config.get("fp16")
        if not fp16:
            return "fp32", {}
        if self.config.get("zero") is not None:
            raise ConfigError("fp16 and zero cannot be combined: remove one of them")
        mode = fp16["mode"] if isinstance(fp16, Mapping) and "mode" in fp16 else None
        kind = getattr(mode, "value", mode)
        if kind not in _SCALER:
            raise ConfigError(f"fp16 has mode {mode!r}, expected one such as AMP_TYPE.TORCH")
        known = _SCALER[kind] | (_ALSO if kind != "apex" else {})
        _check("fp16", fp16, ("mode", *known))
        state = {known[key]: value for key, value in fp16.items() if key != "mode"}
        off = state.pop("enabled", True) is False or state.pop("opt_level", "O1") == "O0"
        return ("fp32", {}) if off else ("fp16", state)


global_context = GlobalContext()
"""The context of this process."""


def _is_imported(value: Any) -> bool:
    return isinstance(value, type) or type(value).__name__ == "module"


def _check(where: str, section: Any, known: tuple[str, ...]) -> None:
    """Reject unknown keys."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} is {section!r}, expected a dict({'=…, '.join(known)}=…)")
    for key in section:
        if key not in known:
            raise ConfigError(
                f"{where} has {key!r}{did_you_mean(key, known)} (it takes {', '.join(known)})"
            )


def _section(parallel: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    value = parallel.get(name, 1)
    section = {"size": 1 if value is None else value} if not isinstance(value, Mapping) else value
    _check(f"parallel.{name}", section, known)
    return section


def _size(parallel: Mapping[str, Any], name: str, default: int = 1) -> int:
    if name not in parallel:
        return default
    size: int = _section(parallel, name, ("size", "mode")).get("size", default)
    return size
