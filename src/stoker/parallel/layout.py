"""`Layout`: how many ways a job is split, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from stoker.parallel.pipeline.schedules import check_kind, microbatches_for

SIZES = ("replicate", "shard", "tensor", "pipeline")

_OPTIONS = {
    "shard": ("blocks", "reshard", "offload", "dtype"),
    "tensor": ("plan",),
    "pipeline": ("sequence", "split", "schedule", "microbatches", "virtual"),
    "replicate": ("unused",),
}
"""What is said about each of them."""

_TOGETHER = (
    {"replicate", "tensor"},
    {"shard", "tensor"},
    {"replicate", "shard"},
    {"pipeline", "replicate"},
    {"pipeline", "shard"},
)


@dataclass(frozen=True)
class Layout:
    """How many ways a job is split; their product is the number of its processes.

        Layout(replicate=4)             4 copies of the model, gradients shared (DDP)
        Layout(shard=4)                 parameters, gradients, optimizer in 4 shards (FSDP2)
        Layout(replicate=2, shard=4)    2 copies of such shards (HSDP)
        Layout(shard=2, tensor=2)       each layer in 2 parts, those in 2 shards
        Layout(pipeline=2)              2 stages, one after the other

    Args:
        replicate: copies of the model, each with its share of every batch.
        shard: ways in which parameters, gradients and optimizer state are sharded.
        tensor: ways in which single layers are split.
        pipeline: stages that the model is cut into.
        blocks: for shards: the modules that are gathered one at a time, such as "blocks.*"; the
            longest list of like modules when not given.
        reshard: for shards: forget gathered parameters after the forward pass and gather them
            again for the backward pass, which saves memory.
        offload: for shards: keep them in the memory of the CPU.
        dtype: for shards: gather and compute in this ("bf16", "fp16"); gradients are summed up in
            float32.
        plan: for tensor: a word for each layer by its name, or "auto".
        sequence: for a pipeline: the parts of the model in the order in which they run, where the
            model is no `nn.Sequential`.
        split: for a pipeline: the first part of every stage but the first; balanced by numbers of
            parameters when not given.
        schedule: for a pipeline: the order of micro-batches: "gpipe", "1f1b", "interleaved" or
            "zero-bubble"; see `PipelineSchedule`.
        microbatches: for a pipeline: into how many a batch is cut; one for each stage when not
            given.
        virtual: for a pipeline: stages in each process; 1, or 2 for "interleaved", when not given.
        unused: for copies: allow parameters that take no part in a step.

    One of the four numbers may be -1: what is left of the processes.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    blocks: str | None = None
    reshard: bool = True
    offload: bool = False
    dtype: str | None = None
    plan: Mapping[str, str] | str = "auto"
    sequence: Sequence[str] | None = None
    split: Sequence[str] | None = None
    schedule: str = "1f1b"
    microbatches: int | None = None
    virtual: int | None = None
    unused: bool = False

    def __post_init__(self) -> None:
        for name in SIZES:
            size = getattr(self, name)
            if type(size) is not int or (size < 1 and size != -1):
                raise ValueError(f"{name} is a whole number from 1, or -1 to fill, got {size!r}")
        open_ = [name for name in SIZES if getattr(self, name) == -1]
        if len(open_) > 1:
            raise ValueError(f"{' and '.join(open_)} are both -1, but only one of them can fill")
        self._check_options()
        check_kind(self.schedule)
        if not open_:
            self._check_together()
            if self.pipeline > 1:
                microbatches_for(self.schedule, self.microbatches, self.pipeline, self.stages)

    @property
    def processes(self) -> int:
        """How many processes the job has."""
        return prod(getattr(self, name) for name in SIZES)

    @property
    def parts(self) -> int:
        """Into how many parts every batch is divided."""
        return self.replicate * self.shard

    @property
    def stages(self) -> int:
        """How many stages of a pipeline each process holds."""
        return self.virtual or (2 if self.schedule == "interleaved" else 1)

    def filled(self, processes: int) -> "Layout":
        """The layout for that many processes.

        Raises:
            ValueError: it is for another number of them.
        """
        open_ = next((name for name in SIZES if getattr(self, name) == -1), None)
        needed = abs(self.processes)
        if open_ is not None and processes % needed == 0:
            size = processes // needed
            idle = {*_OPTIONS[open_]} - {"dtype"} if size == 1 else ()  # dtype changes results
            fields = type(self).__dataclass_fields__
            changes: dict[str, Any] = {name: fields[name].default for name in idle}
            return replace(self, **changes | {open_: size})
        if open_ is None and processes == needed:
            return self
        what = f"a multiple of {needed}" if open_ is not None else str(needed)
        many = "process" if processes == 1 else "processes"
        hint = "leave the layout out" if needed == 1 else f"start it with --nproc {needed}"
        raise ValueError(
            f"layout {self} needs {what} processes, but the run has {processes} {many}: {hint}, "
            "or change the layout"
        )

    def __str__(self) -> str:
        sizes = {name: getattr(self, name) for name in SIZES}
        shown = [f"{name} {size}" for name, size in sizes.items() if size not in (1, -1)]
        return " × ".join(shown) or "of one process"

    def _check_options(self) -> None:
        """What a layout does not use is refused."""
        if self.dtype not in (None, "bf16", "fp16", "fp32"):
            raise ValueError(f"dtype is 'bf16', 'fp16' or 'fp32', got {self.dtype!r}")
        for name in ("virtual", "microbatches"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError(f"{name} is a whole number from 1, got {number!r}")
        for size, options in _OPTIONS.items():
            for name in options:
                given = getattr(self, name) != type(self).__dataclass_fields__[name].default
                if given and getattr(self, size) == 1:
                    raise ValueError(f"{name} is about {size}, but {size} is 1: leave {name} out")
        if self.unused and self.replicate != self.processes:
            raise ValueError(
                f"unused is about copies alone: in layout {self} a parameter may take no part in a "
                "step anyway, so leave unused out"
            )

    def _check_together(self) -> None:
        used = {name for name in SIZES if getattr(self, name) > 1}
        if len(used) > 1 and used not in _TOGETHER:
            can = "; ".join(" × ".join(sorted(pair)) for pair in _TOGETHER)
            raise ValueError(f"layout {self} cannot be combined: what goes together is {can}")
        if self.schedule == "zero-bubble" and self.shard > 1:
            raise ValueError(
                "schedule 'zero-bubble' computes gradients in two parts, which shards cannot "
                "reduce: use '1f1b' or 'interleaved', or replicate instead of shard"
            )
