"""``run:`` the part of a config that says how to train, typed, with a help text per field."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from stoker.config.lazy import Section
from stoker.config.other_trainers import use_instead
from stoker.config.resolve import has_references
from stoker.config.signature import described, fits
from stoker.core.errors import UnsupportedURLError, did_you_mean
from stoker.storage import local_path


def _is(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Parallel:
    """How the job is split over processes."""

    replicate: int = _is(-1, "copies of the model, each with its share of every batch; -1: fill")
    shard: int = _is(1, "ways in which parameters and optimizer state are sharded")
    tensor: int = _is(1, "ways in which single layers are split")
    pipeline: int = _is(1, "stages that the model is cut into")
    blocks: str | None = _is(None, "shards: modules gathered one at a time, such as blocks.*")
    reshard: bool = _is(True, "shards: gather again for the backward pass, which saves memory")
    offload: bool = _is(False, "shards: keep them in the memory of the CPU")
    dtype: Literal["bf16", "fp16", "fp32"] | None = _is(None, "shards: gather and compute in it")
    plan: str | dict[str, str] = _is("auto", "tensor: a word for each layer by its name, or auto")  # noqa: RUF009
    sequence: list[str] | None = _is(None, "pipeline: the parts of the model in their order")  # noqa: RUF009
    split: list[str] | None = _is(None, "pipeline: the first part of each stage but the first")  # noqa: RUF009
    schedule: str = _is("1f1b", "pipeline: gpipe, 1f1b, interleaved or zero-bubble")
    microbatches: int | None = _is(None, "pipeline: micro-batches that a batch is cut into")
    virtual: int | None = _is(None, "pipeline: stages in each process")
    unused: bool = _is(False, "copies: allow parameters that take no part in a step")


@dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved, and what is kept."""

    every: str | int | None = _is("1ep", "2ep, 500st, 10min, auto; null only at first and last")
    max_overhead: float = _is(0.01, "for auto: the share of time that saves may take")
    keep: int | None = _is(3, "how many of the newest stay; null keeps all")
    keep_every: int | None = _is(None, "those whose step is a multiple of it stay for good")
    best: str | None = _is(None, "a result, such as val/loss, whose best ones stay, too")
    mode: Literal["min", "max"] | None = _is(None, "which is best, where the name does not say")


@dataclass(frozen=True)
class RunConfig:
    """How to train. Every field is used, or refused in words."""

    name: str | None = _is(None, "the run's name; the config file's when not given")
    dir: str | None = _is("runs", "run folders are made in here; null writes nothing")
    seed: int | None = _is(0, "seeds everything, before the model is made")
    epochs: int | None = _is(None, "passes over the data")
    max_steps: int | None = _is(None, "updates; the run may end within an epoch")
    device: str = _is("auto", "auto, cpu, cuda, cuda:2, mps, …")
    precision: Literal["fp32", "bf16", "fp16"] = _is("fp32", "fewer bits where they do")
    compile: bool | str = _is(
        False, "torch.compile model and loss; a word names the backend, or is 'blocks'"
    )
    deterministic: bool = _is(False, "let torch use deterministic algorithms only")
    threads: int | None = _is(None, "threads for one operation on the CPU")
    micro_batch: int | None = _is(None, "samples that go forward at a time, in each process")
    accumulate: int | None = _is(None, "micro-batches that make one step; 1 when not given")
    global_batch: int | None = _is(None, "samples in a step: micro × processes × accumulate")
    last_window: Literal["flush", "drop"] = _is("flush", "a last step with fewer batches")
    clip_norm: float | None = _is(None, "bound on the norm of all gradients")
    clip_value: float | None = _is(None, "bound on each element of the gradients")
    lr_step: Literal["step", "epoch"] = _is("step", "when the scheduler moves the rate")
    validate_every: str | int | None = _is("1ep", "2ep, 500st, 10min, or null for never")
    log_every: int = _is(50, "steps between rows of metrics.jsonl")
    progress: bool = _is(True, "a bar, or plain lines where there is no terminal")
    resume: str = _is("auto", "auto, must, never, or a checkpoint to go on from")
    grace: float = _is(30.0, "seconds to save and leave in after SIGTERM")
    dead_after: float = _is(10.0, "seconds in which the job ends after the death of a process")
    hung_after: float | None = _is(1800.0, "seconds without progress that end one of several")
    default_hooks: bool = _is(True, "hooks.default() beside the hooks of the config")
    limit_train_batches: int | float | None = _is(None, "so many batches of an epoch, or a share")
    limit_val_batches: int | float | None = _is(None, "the same for validation")
    overfit_batches: int | float | None = _is(None, "train and validate on these first batches")
    checkpoint: CheckpointConfig = field(
        default_factory=CheckpointConfig, metadata={"help": "when a run is saved, what is kept"}
    )
    parallel: Parallel = field(
        default_factory=Parallel, metadata={"help": "how the job is split over processes"}
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def filled(section: Mapping[str, Any], kind: type = RunConfig, where: str = "") -> Section:
    """The section with the default of every field that it does not give."""
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
_PATHS = ("dir", "resume")


def faults_of(section: Any, kind: type = RunConfig, path: str = "run") -> list[str]:
    """What is wrong with the section: unknown keys and values of the wrong type."""
    if not isinstance(section, Mapping):
        return [f"'{path}' is {section!r}, expected a mapping such as {{epochs: 10}}"]
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
            found.append(f"{place}'{path}.{key}' is {value!r}, expected {expected}")
        elif key in _PATHS and isinstance(value, str):
            try:
                local_path(value, f"{path}.{key}")
            except UnsupportedURLError as error:
                found.append(f"{place}{error}")
    return found


def read(section: Mapping[str, Any], kind: type = RunConfig) -> Any:
    """The section as an object; it has been checked."""
    values = {}
    for one in fields(kind):
        inner = section_type(kind, one.name)
        value = section.get(one.name, default_of(one))
        values[one.name] = read(value, inner) if inner and isinstance(value, Mapping) else value
    return kind(**values)


def section_type(kind: type, name: str) -> type | None:
    """The dataclass of a field that is a section of its own, else None."""
    hint = _hints(kind).get(name)
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def default_of(one: "Field[Any]") -> Any:
    """The default of a dataclass field."""
    if one.default_factory is not MISSING:
        return one.default_factory()
    return one.default


def help_lines(kind: type = RunConfig, path: str = "run") -> list[tuple[str, str, str, str]]:
    """Every field as (name, type, default, help), for people."""
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
    micro: int | None, accumulate: int | None, whole: int | None, processes: int
) -> tuple[int | None, int, int | None]:
    """The micro-batch, the accumulation and the global batch, of which two give the third.

    Raises:
        ValueError: they do not agree, or do not divide; with the numbers.
    """
    sum_up = "micro_batch × processes × accumulate = global_batch"
    for name, value in (
        ("micro_batch", micro),
        ("accumulate", accumulate),
        ("global_batch", whole),
    ):
        if value is not None and value < 1:
            raise ValueError(f"run.{name} is a whole number from 1, got {value}")
    if whole is None:
        steps = accumulate or 1
        return micro, steps, None if micro is None else micro * processes * steps
    if micro is None:
        steps = accumulate or 1
        if whole % (processes * steps):
            raise ValueError(
                f"run.global_batch {whole} does not divide by {processes} processes × "
                f"accumulate {steps} ({sum_up})"
            )
        return whole // (processes * steps), steps, whole
    if accumulate is None:
        if whole % (micro * processes):
            raise ValueError(
                f"run.global_batch {whole} does not divide by micro_batch {micro} × {processes} "
                f"processes ({sum_up})"
            )
        return micro, whole // (micro * processes), whole
    if micro * processes * accumulate != whole:
        raise ValueError(
            f"run.micro_batch {micro} × {processes} processes × accumulate {accumulate} is "
            f"{micro * processes * accumulate}, but run.global_batch is {whole} ({sum_up})"
        )
    return micro, accumulate, whole
