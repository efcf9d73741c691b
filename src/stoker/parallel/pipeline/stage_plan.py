"""Read a model as a sequence of parts, and choose where to cut it into pipeline stages."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias, get_args

from torch import nn

from stoker.core.errors import did_you_mean
from stoker.parallel.pipeline.block_plan import BlockList, find_blocks

ScheduleKind: TypeAlias = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


def check_kind(kind: str) -> None:
    """Raise an error for an unknown kind of schedule."""
    if kind not in get_args(ScheduleKind):
        raise ValueError(
            f"pipeline schedule {kind!r} is unknown: expected "
            f"{', '.join(get_args(ScheduleKind))}{did_you_mean(str(kind), get_args(ScheduleKind))}"
        )


def microbatches_for(kind: str, count: int | None, processes: int, virtual: int) -> int:
    """Return the number of micro-batches, checked against the schedule and the stages.

    Args:
        kind: the kind of schedule.
        count: the requested number; one for each stage if None.
        processes: the number of processes in the pipeline.
        virtual: the number of stages per process.
    """
    stages = processes * virtual
    if kind in ("gpipe", "1f1b") and virtual != 1:
        raise ValueError(
            f"{kind} has one stage per process, but the layout has virtual={virtual}: leave it "
            "out, or use 'interleaved' or 'zero-bubble'"
        )
    if kind == "interleaved" and virtual == 1:
        raise ValueError(
            "interleaved has several stages per process, but the layout has virtual=1: "
            "use Layout(virtual=2) or more"
        )
    count = stages if count is None else count
    problem = microbatch_error(kind, count, processes, virtual)
    if problem is not None:
        raise ValueError(problem)
    return count


def microbatch_error(kind: str, count: int, processes: int, virtual: int) -> str | None:
    """Return why a schedule cannot run that many micro-batches; None if it can."""
    stages = processes * virtual
    if kind == "1f1b" and count < stages:
        return (
            f"{count} micro-batches are too few for {stages} stages: 1f1b needs at least as "
            "many as there are stages"
        )
    if kind in ("interleaved", "zero-bubble") and count % processes:
        return f"{count} micro-batches are not a multiple of {processes} processes, as {kind} needs"
    return None


_Split: TypeAlias = tuple[int, int, list[int]]
"""The weight of the heaviest stage, the sum of squared weights, and where each stage starts."""


def plan_stages(
    model: nn.Module,
    stages: int,
    *,
    sequence: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
) -> list[list[str]]:
    """Return the names of a model's parts, stage by stage.

    Args:
        model: an `nn.Sequential`, a model whose parts run one after another, or any model with a
            list of blocks.
        stages: the number of stages.
        sequence: the parts in the order in which they run, as `parts_of` reads them.
        split: the first part of every stage but the first. Without it the stages are balanced:
            the largest has as few parameters as possible, and a part without parameters stays
            with the part before it.
    """
    blocks = blocks_to_cut(model, sequence, split)
    if blocks is not None:
        return _plan_blocks(model, stages, blocks, split)
    parts = parts_of(model, sequence)
    if len(parts) < stages:
        raise ValueError(
            f"{type(model).__name__} has {len(parts)} parts that run one after another "
            f"({', '.join(parts)}), too few for {stages} pipeline stages"
        )
    if split is None:
        starts = balance([_size(model, [name]) for name in parts], stages)
    else:
        starts = _named_starts(parts, stages, split)
    return [parts[a:b] for a, b in pairwise([*starts, len(parts)])]


def blocks_to_cut(
    model: nn.Module, sequence: Sequence[str] | None = None, split: Sequence[str] | None = None
) -> BlockList | None:
    """Return the blocks by which to cut a model that is no sequence of parts; None if it is one."""
    if sequence is not None or hasattr(model, "pipeline_parts") or _is_sequential(model):
        return None
    return find_blocks(model, split)


def _plan_blocks(
    model: nn.Module, stages: int, found: BlockList, split: Sequence[str] | None
) -> list[list[str]]:
    """Return the parts of a model with blocks, stage by stage."""
    parts, units = found.parts, found.units
    if len(units) < stages:
        raise ValueError(
            f"{type(model).__name__} has {len(found.blocks)} blocks ({found.blocks[0]} to "
            f"{found.blocks[-1]}), too few for {stages} pipeline stages"
        )
    if split is None:
        starts = balance([_size(model, unit) for unit in units], stages)
        return [
            [part for unit in units[a:b] for part in unit]
            for a, b in pairwise([*starts, len(units)])
        ]
    starts = _named_starts(parts, stages, split)
    possible = [unit[0] for unit in units[1:]]
    for start in starts[1:]:
        if parts[start] not in possible:
            raise ValueError(
                f"split point {parts[start]!r} is not one at which {type(model).__name__} can be "
                f"cut: expected some of {', '.join(possible)}"
            )
    return [parts[a:b] for a, b in pairwise([*starts, len(parts)])]


def _size(model: nn.Module, names: Sequence[str]) -> int:
    """Return the number of parameters in these modules."""
    return sum(p.numel() for name in names for p in model.get_submodule(name).parameters())


def parts_of(model: nn.Module, sequence: Sequence[str] | None = None) -> list[str]:
    """Return the names of the parts of a model in the order in which they run.

    Each part takes what the one before it returned: a tensor, or a tuple of tensors as several
    arguments. The parts of an `nn.Sequential` are its modules, including those of Sequentials
    inside it. For any other model, name them in ``sequence`` or in the attribute
    ``pipeline_parts`` of the model, ``("embed", "blocks.*", "norm", "head")``; ``*`` stands for
    all modules at that position, in order.
    """
    patterns = sequence if sequence is not None else getattr(model, "pipeline_parts", None)
    if patterns is None:
        if not _is_sequential(model):
            raise TypeError(
                f"{type(model).__name__} is not an nn.Sequential, so the order in which its parts "
                "run is unknown: keep its blocks in an nn.ModuleList, pass "
                'sequence=("embed", "blocks.*", "head"), or set pipeline_parts = (…) in its '
                "class; each part takes what the one before it returns"
            )
        return _inside(model, "")
    if isinstance(patterns, str):
        raise TypeError(f"sequence must be a tuple of names, got the string {patterns!r}")
    parts = [n for p in patterns for found in _matching(model, p) for n in _inside(*found)]
    _check_parts(model, parts)
    return parts


def balance(weights: Sequence[int], stages: int) -> list[int]:
    """Return where each stage starts, so that the heaviest weighs as little as possible.

    Among equals, weights are spread evenly and stages start late.
    """
    sums = [0, *accumulate(weights)]
    best: list[_Split] = [(weight, weight**2, [0]) for weight in sums]
    for stage in range(1, stages):
        best = [
            min(
                (_with(best[start], start, sums[end] - sums[start]) for start in range(stage, end)),
                key=lambda found: (found[:2], [-start for start in found[2]]),
                default=best[0],
            )
            for end in range(len(sums))
        ]
    return best[-1][2]


def _with(before: _Split, start: int, weight: int) -> _Split:
    heaviest, squares, starts = before
    return max(heaviest, weight), squares + weight**2, [*starts, start]


def _named_starts(parts: list[str], stages: int, split: Sequence[str]) -> list[int]:
    if len(split) != stages - 1:
        raise ValueError(
            f"{len(split)} split points make {len(split) + 1} stages, but the pipeline has "
            f"{stages}: name the first part of every stage but the first, {stages - 1} in all"
        )
    starts = [0]
    for name in split:
        found = next(
            (i for i, p in enumerate(parts) if p == name or p.startswith(f"{name}.")), None
        )
        if found is None:
            raise ValueError(
                f"split point {name!r} is not a part of the model{did_you_mean(name, parts)} "
                f"(its parts: {', '.join(parts)})"
            )
        if found <= starts[-1]:
            raise ValueError(
                f"split point {name!r} leaves a stage before it empty: the parts run in the order "
                f"{', '.join(parts)}, and every stage needs at least one"
            )
        starts.append(found)
    return starts


def _matching(model: nn.Module, pattern: str) -> list[tuple[nn.Module, str]]:
    """Return the modules that match a pattern, each with its name."""
    found = [(model, "")]
    for piece in pattern.split("."):
        found = [
            (child, f"{name}.{key}".lstrip("."))
            for module, name in found
            for key, child in module._modules.items()
            if child is not None and fnmatchcase(key, piece)
        ]
    if not found:
        names = [name for name, _ in model.named_modules() if name]
        raise ValueError(
            f"{type(model).__name__} has no module {pattern!r}{did_you_mean(pattern, names)}"
        )
    return found


def _inside(module: nn.Module, name: str) -> list[str]:
    """Return the parts of a Sequential, recursively; any other module is one part."""
    if not _is_sequential(module):
        if not _runs(module):
            raise ValueError(
                f"{name!r} is a {type(module).__name__}, which cannot be called: name the "
                f"modules in it, '{name}.*'"
            )
        return [name]
    children = [(child, f"{name}.{key}".lstrip(".")) for key, child in module._modules.items()]
    return [
        part for child, inner in children if child is not None for part in _inside(child, inner)
    ]


def _is_sequential(module: nn.Module) -> bool:
    """Return whether a module only runs its children, so that they can be called instead."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return getattr(type(module), "forward", None) is nn.Sequential.forward and not hooked


def _runs(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _check_parts(model: nn.Module, parts: list[str]) -> None:
    """Reject parts that overlap, and parameters that are in no part."""
    for number, name in enumerate(parts):
        for other in parts[number + 1 :]:
            if f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}."):
                raise ValueError(f"parts {name!r} and {other!r} overlap: each runs once")
    for name, _ in model.named_parameters(remove_duplicate=False):
        if stage_of(name, [parts]) is None:
            raise ValueError(
                f"parameter {name!r} is in none of the parts {', '.join(parts)}: every parameter "
                "of a pipeline must belong to the part that uses it"
            )


def stage_of(name: str, plan: Sequence[Sequence[str]]) -> int | None:
    """Return the stage of the parameter or module of that name."""
    for stage, parts in enumerate(plan):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            return stage
    return None
