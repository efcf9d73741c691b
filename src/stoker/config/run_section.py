"""The ``run`` section of a config: how to train, with a type and a help text per field."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from stoker.config import rules
from stoker.config.check import described, fits, near_value
from stoker.config.lazy import Section
from stoker.config.other_trainers import use_instead
from stoker.config.resolve import has_references
from stoker.config.rules import Rule
from stoker.core.errors import did_you_mean


def _option(default: Any, help: str, rule: Rule | None = None) -> Any:
    return field(default=default, metadata={"help": help, "rule": rule})


@dataclass(frozen=True)
class Parallel:
    """How the job is split over processes."""

    replicate: int = _option(
        -1, "Data-parallel replicas of the model; -1 uses all processes.", rules.SIZE
    )
    shard: int = _option(1, "Number of shards of parameters and optimizer state.", rules.SIZE)
    tensor: int = _option(
        1, "Tensor-parallel degree: ways in which each layer is split.", rules.SIZE
    )
    pipeline: int = _option(1, "Number of pipeline stages.", rules.SIZE)
    context: int = _option(1, "Parts into which each sequence is split.", rules.SIZE)
    blocks: str | None = _option(
        None, "Sharding: modules to gather one at a time, such as blocks.*."
    )
    reshard: bool = _option(True, "Sharding: gather again for the backward pass to save memory.")
    offload: bool = _option(False, "Sharding: keep the shards in CPU memory.")
    dtype: Literal["bf16", "fp16", "fp32"] | None = _option(
        None, "Sharding: gather and compute in this dtype."
    )
    plan: str | dict[str, str] = _option("auto", "Tensor: the operation per layer, or auto.")  # noqa: RUF009
    sequence_parallel: bool = _option(
        False, "Tensor: run norms and dropout on parts of the sequence."
    )
    loss_parallel: bool = _option(False, "Tensor: compute the loss on parts of the vocabulary.")
    sequence: list[str] | None = _option(None, "Pipeline: the submodules in order.")  # noqa: RUF009
    split: list[str] | None = _option(None, "Pipeline: the first submodule of each later stage.")  # noqa: RUF009
    schedule: str = _option("1f1b", "Pipeline: gpipe, 1f1b, interleaved or zero-bubble.")
    microbatches: int | None = _option(
        None, "Pipeline: number of micro-batches per batch.", rules.at_least(1)
    )
    virtual: int | None = _option(None, "Pipeline: stages per process.", rules.at_least(1))
    unused: bool = _option(False, "Replicas: allow parameters that a step does not use.")
    sync_batchnorm: bool = _option(
        False, "Batch norms use the statistics of the batches of all processes."
    )
    logical_ranks: int | None = _option(
        None,
        "Replicas: the arithmetic of this many ranks, on any number of processes.",
        rules.at_least(2),
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are saved, and which are kept."""

    every: str | int | None = _option(
        "epoch", "epoch, 2ep, 500st, 10min or auto; null: first and last step.", rules.save_period
    )
    max_overhead: float = _option(
        0.01, "For epoch and auto: the largest share of time spent on saves.", rules.SHARE
    )
    keep: int | None = _option(
        3, "Number of newest checkpoints to keep; null keeps all.", rules.at_least(1)
    )
    keep_every: int | None = _option(
        None, "Also keep checkpoints at multiples of this step.", rules.at_least(1)
    )
    best: str | None = _option(
        None, "Also keep the best checkpoints by this metric, such as val/loss.", rules.NOT_EMPTY
    )
    mode: Literal["min", "max"] | None = _option(
        None, "Which is best, if the metric's name does not show it."
    )
    upload_every: str | int | None = _option(
        None, "For a run in a store: how often a checkpoint is copied there.", rules.period
    )
    upload_timeout: float = _option(
        600.0, "For a run in a store: seconds its end waits for the last copy.", rules.SECONDS
    )


@dataclass(frozen=True)
class RunConfig:
    """How to train. A field that cannot take effect is rejected with an error."""

    name: str | None = _option(
        None, "Name of the run. Default: the name of the config file.", rules.NAME
    )
    dir: str | None = _option("runs", "Folder of the run folders; null writes nothing.", rules.path)
    seed: int | None = _option(0, "Seed of all random generators.", rules.SEED)
    epochs: int | None = _option(None, "Number of passes over the data.", rules.at_least(1))
    max_steps: int | None = _option(
        None, "Number of updates; the run may end within an epoch.", rules.at_least(1)
    )
    device: str = _option("auto", "auto, cpu, cuda, cuda:2 or mps.", rules.device)
    precision: Literal["fp32", "bf16", "fp16"] = _option(
        "fp32", "Use lower precision where it is numerically safe (autocast)."
    )
    compile: bool | str = _option(
        False, "Compile model and loss: true, the name of a backend, or 'blocks'."
    )
    activation_checkpointing: Literal["full", "selective", "blocks"] | None = _option(
        None, "Compute activations again in the backward pass: full, selective or blocks."
    )
    deterministic: bool = _option(False, "Use only deterministic algorithms.")
    threads: int | None = _option(None, "CPU threads per operation.", rules.THREADS)
    micro_batch: int | Literal["auto"] | None = _option(
        None, "Samples per forward pass and process; auto: what fits.", rules.at_least_or_auto(1)
    )
    accumulate: int | None = _option(None, "Micro-batches per step. Default: 1.", rules.at_least(1))
    global_batch: int | None = _option(
        None, "Samples per step: micro × processes × accumulate.", rules.at_least(1)
    )
    last_window: Literal["flush", "drop"] = _option(
        "flush", "What to do with an incomplete last step of an epoch."
    )
    clip_norm: float | None = _option(
        None, "Clip the norm of all gradients to this value.", rules.CLIP
    )
    clip_value: float | None = _option(
        None, "Clip each gradient element to this value.", rules.CLIP
    )
    lr_step: Literal["step", "epoch"] = _option("step", "When the LR scheduler steps.")
    validate_every: str | int | None = _option(
        "1ep", "2ep, 500st or 10min; null never validates.", rules.period
    )
    log_every: int = _option(50, "Steps between rows of metrics.jsonl.", rules.at_least(1))
    progress: bool = _option(True, "Show a progress bar, or plain lines without a terminal.")
    resume: str = _option("auto", "auto, must, never, or the path of a checkpoint.", rules.path)
    grace: float = _option(
        30.0, "Seconds allowed for the final checkpoint after SIGTERM.", rules.SECONDS
    )
    dead_after: float = _option(
        10.0, "Seconds within which the job ends after a process died.", rules.SECONDS
    )
    hung_after: float | None = _option(
        300.0,
        "Seconds after which a process of several that stands still is ended.",
        rules.SECONDS,
    )
    default_hooks: bool = _option(True, "Add hooks.default() to the hooks of the config.")
    limit_train_batches: int | float | None = _option(
        None, "Batches per epoch: a number or a fraction.", rules.BATCHES
    )
    limit_val_batches: int | float | None = _option(
        None, "Batches per validation: a number or a fraction.", rules.BATCHES
    )
    overfit_batches: int | float | None = _option(
        None, "Train and validate on the first batches only.", rules.BATCHES
    )
    checkpoint: CheckpointConfig = field(
        default_factory=CheckpointConfig,
        metadata={"help": "When checkpoints are saved, and which are kept."},
    )
    parallel: Parallel = field(
        default_factory=Parallel, metadata={"help": "How the job is split over processes."}
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _fields(kind: type) -> "dict[str, Field[Any]]":
    return {one.name: one for one in fields(kind)}


def filled(section: Mapping[str, Any], kind: type = RunConfig, where: str = "") -> Section:
    """Return the section with the defaults of all missing fields."""
    full = Section(where=getattr(section, "where", where) or where)
    full.origins = dict(getattr(section, "origins", {}))
    for one in fields(kind):
        inner = section_type(kind, one.name)
        given = section.get(one.name)
        if inner is not None and (given is None or isinstance(given, Mapping)):
            full[one.name] = filled(given or {}, inner, full.origin(one.name))
            if given is None:
                full.origins[one.name] = _DEFAULT
        elif one.name in section:
            full[one.name] = given
        else:
            full[one.name] = default_of(one)
            full.origins[one.name] = _DEFAULT
    full.update({key: value for key, value in section.items() if key not in full})
    return full


_DEFAULT = "default"


def faults_of(section: Any, kind: type = RunConfig, path: str = "run") -> list[str]:
    """Return the faults of the section: unknown keys and values of the wrong type."""
    if not isinstance(section, Mapping):
        example = "epochs: 10" if kind is RunConfig else f"{fields(kind)[0].name}: …"
        return [f"'{path}' is {section!r}, expected a mapping such as {{{example}}}"]
    hints, found = _hints(kind), []
    where = getattr(section, "origin", lambda _: "")
    for key, value in section.items():
        place = f"{where(key)}: " if where(key) not in ("", _DEFAULT) else ""
        if key not in hints:
            near = use_instead(str(key)) or did_you_mean(str(key), hints)
            found.append(f"{place}'{path}' has no field '{key}'{near}")
        elif (inner := section_type(kind, key)) is not None and not has_references(value):
            found += faults_of(value, inner, f"{path}.{key}")
        elif not fits(value, hints[key]):
            expected = described(hints[key])
            near = near_value(value, hints[key])
            found.append(f"{place}'{path}.{key}' is {value!r}, expected {expected}{near}")
        elif fault := fault_of_value(kind, key, value, f"{path}.{key}"):
            found.append(f"{place}{fault}")
    return found


def fault_of_value(kind: type, key: str, value: Any, path: str) -> str | None:
    """Return the fault of a value of the right type that the rule of its field rejects."""
    rule: Rule | None = _fields(kind)[key].metadata.get("rule")
    if rule is None or value is None or has_references(value):
        return None
    return rule(path, value)


def read(section: Mapping[str, Any], kind: type = RunConfig) -> Any:
    """Return a checked section as an object."""
    values = {}
    for one in fields(kind):
        inner = section_type(kind, one.name)
        value = section.get(one.name, default_of(one))
        values[one.name] = read(value, inner) if inner and isinstance(value, Mapping) else value
    return kind(**values)


def section_type(kind: type, name: str) -> type | None:
    """Return the dataclass of a field that is itself a section, else None."""
    hint = _hints(kind).get(name)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def default_of(one: "Field[Any]") -> Any:
    """Return the default of a dataclass field."""
    if one.default_factory is not MISSING:
        return one.default_factory()
    return one.default


def help_lines(kind: type = RunConfig, path: str = "run") -> list[tuple[str, str, str, str]]:
    """Return every field as (name, type, default, help)."""
    hints, lines = _hints(kind), []
    for one in fields(kind):
        inner = section_type(kind, one.name)
        if inner is not None:
            lines += help_lines(inner, f"{path}.{one.name}")
            continue
        shown = json.dumps(default_of(one)).strip('"')
        lines.append(
            (f"{path}.{one.name}", described(hints[one.name]), shown, one.metadata["help"])
        )
    return lines


def batch_sizes(
    micro: int | None,
    accumulate: int | None,
    total: int | None,
    processes: int,
    names: tuple[str, str, str] = ("micro_batch", "accumulate", "global_batch"),
    section: str = "run",
) -> tuple[int | None, int, int | None]:
    """Return micro-batch, accumulation and global batch; two of them define the third.

    Args:
        micro: samples in a micro-batch.
        accumulate: micro-batches in a step of a process.
        total: samples in a step of all processes.
        processes: how many processes there are.
        names: how the first three are called in the config.
        section: the section of the config that has them.

    Raises:
        ValueError: they contradict each other or are not divisible.
    """
    small, times, large = names
    rule = f"{small} × processes × {times} = {large}"
    for name, value in zip(names, (micro, accumulate, total), strict=True):
        if value is not None and value < 1:
            raise ValueError(f"{section}.{name} must be at least 1, got {value}")
    if total is None:
        steps = accumulate or 1
        return micro, steps, None if micro is None else micro * processes * steps
    if micro is None:
        steps = accumulate or 1
        if total % (processes * steps):
            raise ValueError(
                f"{section}.{large} {total} is not divisible by {processes} processes × "
                f"{times} {steps} ({rule})"
            )
        return total // (processes * steps), steps, total
    if accumulate is None:
        if total % (micro * processes):
            raise ValueError(
                f"{section}.{large} {total} is not divisible by {small} {micro} × {processes} "
                f"processes ({rule})"
            )
        return micro, total // (micro * processes), total
    if micro * processes * accumulate != total:
        raise ValueError(
            f"{section}.{small} {micro} × {processes} processes × {times} {accumulate} is "
            f"{micro * processes * accumulate}, but {section}.{large} is {total} ({rule})"
        )
    return micro, accumulate, total
