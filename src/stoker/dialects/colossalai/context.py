"""The config of a job, and how its reserved keys translate to Stoker.

    parallel = dict(pipeline=2, tensor=dict(size=1, mode=None))    Layout(replicate=-1, pipeline=2)
    zero = dict(level=3, cpu_offload=False)                        Layout(shard=-1)
    torch_ddp = dict(find_unused_parameters=True)                  Layout(unused=True)
    fp16 = dict(mode=AMP_TYPE.TORCH, init_scale=2**16)             Engine(precision="fp16")
    clip_grad_norm (or clip_grad), gradient_accumulation           see `Engine`
    gradient_handler                                               see `Engine`
    NUM_MICRO_BATCHES, model = dict(num_chunks=2), TENSOR_SHAPE    see `PipelineSchedule`
    cudnn_benchmark, cudnn_deterministic                           torch.backends.cudnn

All other keys belong to the script, which reads them from ``gpc.config``.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stoker import Layout, seed_all
from stoker.config import ConfigError
from stoker.config.files import executed
from stoker.config.lazy import Section
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.dialects.colossalai.ranks import Ranks

_RESERVED = (
    *("parallel", "fp16", "zero", "gradient_accumulation", "gradient_handler", "torch_ddp"),
    *("clip_grad_norm", "clip_grad", "cudnn_benchmark", "cudnn_deterministic"),
    *("NUM_MICRO_BATCHES", "TENSOR_SHAPE"),
)
_SCALER = {  # the names of the scaler's options in each kind of mixed precision
    "torch": {"init_scale": "scale", "enabled": "enabled"},
    "naive": {"initial_scale": "scale"},
    "apex": {"opt_level": "opt_level"},
}
_ALSO = {name: name for name in ("growth_factor", "backoff_factor", "growth_interval")}
_FIXED: dict[str, tuple[Any, ...]] = {  # options of the naive scaler that only have these values
    "min_scale": (None, 1, 1.0),
    "max_scale": (None, -1),
    "hysteresis": (1, 2),
    "dynamic_grad_scale": (True,),
    "clip_grad_norm": (0, 0.0),
    "log_num_zeros_in_grad": (False,),
    "verbose": (True, False),
}


class AMP_TYPE(Enum):  # noqa: N801
    """Kinds of mixed precision; all of them use autocast to fp16 with loss scaling."""

    TORCH = "torch"
    APEX = "apex"
    NAIVE = "naive"
    PARALLEL = "naive"  # noqa: PIE796


class Config(Section):
    """A dict whose keys are also attributes."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            {k: Config(v) if isinstance(v, Mapping) else v for k, v in (values or {}).items()}
        )

    @staticmethod
    def from_file(path: str | Path) -> "Config":
        """Load the names of a Python file, except modules, classes and names with ``__``."""
        if not Path(path).is_file() or Path(path).suffix != ".py":
            raise ConfigError(f"config '{path}' is not a Python file")
        found = vars(executed(Path(path).resolve()))
        ours = {k: v for k, v in found.items() if not isinstance(v, type | ModuleType)}
        return Config({k: v for k, v in ours.items() if not k.startswith("__")})


class GlobalContext(Ranks):
    """The config and the ranks that all parts of a script share."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def load_config(self, config: str | Path | Mapping[str, Any]) -> None:
        """Load a config, and reject misspelt reserved keys."""
        read = Config(config) if isinstance(config, Mapping) else Config.from_file(config)
        for key in read:
            near = get_close_matches(key, _RESERVED, n=1, cutoff=0.85)
            if key not in _RESERVED and near:
                raise ConfigError(f"unknown config key {key!r}; did you mean {near[0]!r}?")
        self.config, self.knows_stage = read, False
        self.layout(None, {})  # raises now if the config is invalid
        self.precision()
        self.clip_norm()
        torch.backends.cudnn.benchmark = bool(read.get("cudnn_benchmark", False))
        torch.backends.cudnn.deterministic = bool(read.get("cudnn_deterministic", False))

    set_seed = staticmethod(seed_all)

    def get_layout(self) -> Layout:
        """Return the layout of the job."""
        return self.layout(None, {}).filled(dist.world_size())

    def clip_norm(self) -> float:
        """Return the maximum norm of the gradients; 0 for none."""
        given = [self.config[key] for key in ("clip_grad_norm", "clip_grad") if key in self.config]
        if len(given) == 2:
            raise ConfigError("clip_grad is another name of clip_grad_norm: remove one of them")
        return float(given[0] or 0.0) if given else 0.0

    def layout(self, pipeline_schedule: str | None, options: dict[str, Any]) -> Layout:
        """Return the layout of the config; ``options`` are those of the pipeline schedule."""
        parallel, config = self.config.get("parallel", {}), self.config
        check_section("parallel", parallel, ("data", "pipeline", "tensor"))
        pipeline, _ = _part(parallel, "pipeline")
        tensor, mode = _part(parallel, "tensor")
        if tensor > 1 and mode not in (None, "1d"):
            raise ConfigError(
                f"parallel.tensor has mode {mode!r}, but layers are split in one dimension: '1d'"
            )
        zero, ddp = config.get("zero"), config.get("torch_ddp", {})
        check_section("torch_ddp", ddp, ("find_unused_parameters",))
        more: dict[str, Any] = {"replicate": _part(parallel, "data", -1)[0]}
        if zero is not None:
            check_section("zero", zero, ("level", "cpu_offload"))
            offload, reshard = zero.get("cpu_offload", False), zero.get("level", 3) == 3
            more = {"shard": -1, "offload": offload, "reshard": reshard}
        elif ddp.get("find_unused_parameters"):
            more["unused"] = True
        if pipeline > 1 and pipeline_schedule is not None:
            more |= {"schedule": pipeline_schedule, **options}
        return Layout(pipeline=pipeline, tensor=tensor, **more)

    def precision(self, fp16: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the precision (by default of the config) and the state of its loss scaler."""
        fp16 = fp16 or self.config.get("fp16")
        if not fp16:
            return "fp32", {}
        if not isinstance(fp16, Mapping) or "mode" not in fp16:
            raise ConfigError(f"fp16 is {fp16!r}, expected a dict(mode=AMP_TYPE.TORCH, …)")
        mode = fp16["mode"]
        kind = getattr(mode, "value", mode)
        if kind is None:
            return "fp32", {}
        if self.config.get("zero") is not None:
            raise ConfigError("fp16 and zero cannot be combined: remove one of them")
        if kind not in _SCALER:
            raise ConfigError(f"fp16 has mode {mode!r}, expected one such as AMP_TYPE.TORCH")
        known = _SCALER[kind] | (_ALSO if kind != "apex" else {})
        fixed = _FIXED if kind == "naive" else {}
        check_section("fp16", fp16, ("mode", *known, *fixed))
        for key in fixed.keys() & fp16.keys():
            if fp16[key] not in fixed[key]:
                raise ConfigError(
                    f"fp16 has {key}={fp16[key]!r}, which Stoker's scaler does not offer: "
                    f"expected {' or '.join(map(repr, fixed[key]))}"
                )
        state = {known[key]: value for key, value in fp16.items() if key in known}
        off = state.pop("enabled", True) is False or state.pop("opt_level", "O1") == "O0"
        return ("fp32", {}) if off else ("fp16", state)


global_context = GlobalContext()
"""The context of this process."""


def check_section(where: str, section: Any, known: tuple[str, ...]) -> None:
    """Reject unknown keys."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where} is {section!r}, expected a dict({'=…, '.join(known)}=…)")
    for key in section:
        if key not in known:
            raise ConfigError(
                f"{where} has {key!r}{did_you_mean(key, known)} (it takes {', '.join(known)})"
            )


def _part(parallel: Mapping[str, Any], name: str, default: int = 1) -> tuple[int, Any]:
    """Return the size and the mode of a part of ``parallel``, which may be the size alone."""
    value = parallel.get(name, default)
    section = value if isinstance(value, Mapping) else {"size": 1 if value is None else value}
    check_section(f"parallel.{name}", section, ("size", "mode"))
    return section.get("size", default), section.get("mode")
