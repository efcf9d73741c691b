"""`Layout`: how a job is split over processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from stoker.core.errors import check_count
from stoker.parallel.pipeline.stage_plan import check_kind, microbatches_for

SIZES = ("replicate", "shard", "tensor", "pipeline", "context")

MESH_ORDER = ("pipeline", "replicate", "context", "shard", "tensor")
"""The dimensions in the order in which they number the processes, the last one fastest."""

_OPTIONS = {
    "shard": ("blocks", "reshard", "offload", "dtype"),
    "tensor": ("plan", "sequence_parallel", "loss_parallel"),
    "pipeline": ("sequence", "split", "schedule", "microbatches", "virtual"),
    "replicate": ("unused",),
    "context": (),
}
"""The options of each dimension."""

_COMBINATIONS = (
    {"replicate", "tensor"},
    {"shard", "tensor"},
    {"replicate", "shard"},
    {"pipeline", "replicate"},
    {"pipeline", "shard"},
    {"pipeline", "tensor"},
    {"pipeline", "replicate", "shard"},
    {"pipeline", "replicate", "tensor"},
    {"pipeline", "shard", "tensor"},
    {"replicate", "shard", "tensor"},
    {"context", "replicate"},
    {"context", "shard"},
    {"context", "tensor"},
)


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "blocks": ((str, type(None)), "a pattern of module names"),
    "plan": ((str, Mapping), "'auto' or operations by layer"),
    **dict.fromkeys(("sequence", "split"), ((Sequence, type(None)), "a list of module names")),
    **dict.fromkeys(("reshard", "offload", "unused", "sync_batchnorm"), ((bool,), "True or False")),
    **dict.fromkeys(("sequence_parallel", "loss_parallel"), ((bool,), "True or False")),
}
"""The types of options, and how a message describes them."""


@dataclass(frozen=True)
class Layout:
    """The number of ways in which a job is split; their product is the number of processes.

        Layout(replicate=4)             4 copies of the model, gradients averaged (DDP)
        Layout(shard=4)                 parameters, gradients, optimizer in 4 shards (FSDP2)
        Layout(replicate=2, shard=4)    2 copies, each in 4 shards (HSDP)
        Layout(shard=2, tensor=2)       each layer split in 2, each half in 2 shards
        Layout(pipeline=2)              2 stages, one after the other
        Layout(pipeline=2, tensor=2)    2 stages, each layer split in 2
        Layout(context=2)               each sequence in 2 parts
        Layout(replicate=-1, logical_ranks=8)    the arithmetic of 8 ranks, on 1 to 8 processes
        Layout(shard=-1, logical_ranks=8)        the same bits, with the optimizer in shards

    One of the sizes may be -1, to fill the processes that the job has.

    Args:
        replicate: the number of copies of the model; each reads its own shard of every batch.
        shard: the number of shards of parameters, gradients and optimizer state.
        tensor: the number of processes that each layer is split over.
        pipeline: the number of processes that the stages of the model are spread over.
        context: the number of processes that each sequence is split over.
        blocks: for shard: the modules that are gathered one at a time, such as "blocks.*"; by
            default the longest list of modules of one class.
        reshard: for shard: free gathered parameters after the forward pass and gather them again
            for the backward pass, which saves memory.
        offload: for shard: keep the shards in CPU memory.
        dtype: for shard: gather and compute in this dtype ("bf16", "fp16"); gradients are reduced
            in float32.
        plan: for tensor: an operation for each layer name, or "auto".
        sequence_parallel: for tensor: each process runs norms, dropout and residual connections
            within the blocks on a part of the sequence, which saves memory.
        loss_parallel: for tensor: compute a cross entropy on parts of the vocabulary, which saves
            memory if it is large.
        sequence: for pipeline: the parts of the model in the order in which they run; needed if
            the model is not an `nn.Sequential` and has no list of blocks.
        split: for pipeline: the first part of every stage but the first; by default stages are
            balanced by their number of parameters.
        schedule: for pipeline: the order of micro-batches: "gpipe", "1f1b", "interleaved" or
            "zero-bubble"; see `PipelineSchedule`.
        microbatches: for pipeline: the number of micro-batches per batch; by default one for each
            stage.
        virtual: for pipeline: the number of stages per process; by default 1, or 2 for
            "interleaved".
        unused: for replicate: allow parameters that are not used in a step.
        sync_batchnorm: for replicate and shard: batch norms use the mean and the variance of the
            batches of all processes instead of their own.
        logical_ranks: for replicate and shard: define the arithmetic of a step for this many
            ranks. Any number of processes up to it executes them, one after another, with the
            same bits.
        threads: for logical_ranks: the number of threads of each process. Kernels that add on
            several threads add in another order.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    blocks: str | None = None
    reshard: bool = True
    offload: bool = False
    dtype: str | None = None
    plan: Mapping[str, str] | str = "auto"
    sequence_parallel: bool = False
    loss_parallel: bool = False
    sequence: Sequence[str] | None = None
    split: Sequence[str] | None = None
    schedule: str = "1f1b"
    microbatches: int | None = None
    virtual: int | None = None
    unused: bool = False
    sync_batchnorm: bool = False
    logical_ranks: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        for name in SIZES:
            size = getattr(self, name)
            if type(size) is not int or (size < 1 and size != -1):
                raise ValueError(
                    f"{name} must be an integer of at least 1, or -1 to fill, got {size!r}"
                )
        open_ = [name for name in SIZES if getattr(self, name) == -1]
        if len(open_) > 1:
            raise ValueError(
                f"{' and '.join(open_)} are both -1, but only one size can be -1: "
                f"set {open_[0]} to 1"
            )
        self._check_options()
        self._check_logical_ranks()
        check_kind(self.schedule)
        if not open_:
            self._check_combination()
            if self.pipeline > 1:
                microbatches_for(self.schedule, self.microbatches, self.pipeline, self.stages)

    @property
    def processes(self) -> int:
        """The number of processes of the job."""
        return prod(getattr(self, name) for name in SIZES)

    @property
    def data_ranks(self) -> int:
        """The number of shards that every batch is divided into."""
        return self.logical_ranks or self.replicate * self.shard

    def peers(self, rank: int, *dims: str) -> list[int]:
        """Return the ranks of the processes that differ from ``rank`` in these dimensions only.

        Args:
            rank: a process of the job, whose size must be filled.
            dims: some of "pipeline", "replicate", "context", "shard" and "tensor".
        """
        place, step, found = rank, 1, [0]
        for dim in reversed(MESH_ORDER):
            size = getattr(self, dim)
            place, index = divmod(place, size)
            chosen = range(size) if dim in dims else [index]
            found = [one * step + other for one in chosen for other in found]
            step *= size
        return found

    @property
    def stages(self) -> int:
        """The number of pipeline stages per process."""
        return self.virtual or (2 if self.schedule == "interleaved" else 1)

    def filled(self, processes: int) -> "Layout":
        """Return the layout for that many processes, with -1 replaced.

        Raises:
            ValueError: the layout needs another number of processes.
        """
        if self.logical_ranks is not None:
            return self._filled_with_logical_ranks(self.logical_ranks, processes)
        open_ = next((name for name in SIZES if getattr(self, name) == -1), None)
        needed = abs(self.processes)
        if open_ is not None and processes % needed == 0:
            size = processes // needed
            unneeded = {*_OPTIONS[open_]} - {"dtype"} if size == 1 else ()  # dtype changes results
            fields = type(self).__dataclass_fields__
            changes: dict[str, Any] = {name: fields[name].default for name in unneeded}
            if processes == 1:
                changes["sync_batchnorm"] = False  # the statistics are those of all processes
            return replace(self, **changes | {open_: size})
        if open_ is None and processes == needed:
            return self
        expected = f"a multiple of {needed}" if open_ is not None else str(needed)
        unit = "process" if processes == 1 else "processes"
        hint = "leave the layout out" if needed == 1 else f"start it with --nproc {needed}"
        raise ValueError(
            f"layout {self} needs {expected} processes, but the run has {processes} {unit}: "
            f"{hint}, or change the layout"
        )

    def _filled_with_logical_ranks(self, ranks: int, processes: int) -> "Layout":
        if processes > ranks:
            raise ValueError(
                f"logical_ranks is {ranks}, but the run has {processes} processes: start it with "
                f"--nproc {ranks} or fewer"
            )
        name = "replicate" if self.shard == 1 else "shard"
        size = getattr(self, name)
        if size not in (-1, processes):
            raise ValueError(
                f"{name} is {size}, but the run has {processes} processes: set {name}=-1, since "
                "logical_ranks run on any number of them"
            )
        changes: dict[str, Any] = {name: processes}
        return replace(self, **changes)

    def __str__(self) -> str:
        if self.logical_ranks is not None:
            threads = f" of {self.threads} threads" if self.threads > 1 else ""
            return f"{self.logical_ranks} logical ranks{threads}"
        sizes = {name: getattr(self, name) for name in SIZES}
        shown = [f"{name} {size}" for name, size in sizes.items() if size not in (1, -1)]
        return " × ".join(shown) or "of one process"

    def _check_options(self) -> None:
        """Reject options of the wrong type, and those that the layout does not use."""
        for name, (kinds, expected) in _TYPES.items():
            if not isinstance(getattr(self, name), kinds):
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")
        if self.dtype not in (None, "bf16", "fp16", "fp32"):
            raise ValueError(f"dtype must be 'bf16', 'fp16' or 'fp32', got {self.dtype!r}")
        for name, least in (
            ("virtual", 1),
            ("microbatches", 1),
            ("threads", 1),
            ("logical_ranks", 2),
        ):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least)
        for size, options in _OPTIONS.items():
            for name in options:
                given = getattr(self, name) != type(self).__dataclass_fields__[name].default
                if given and getattr(self, size) == 1:
                    raise ValueError(
                        f"{name} is an option of {size}, but {size} is 1: leave {name} out"
                    )
        self._check_data_options()

    def _check_data_options(self) -> None:
        if self.sync_batchnorm and (self.data_ranks == 1 or self.pipeline != 1):
            raise ValueError(
                f"sync_batchnorm is an option of replicate and shard, but the layout is {self}: "
                "leave sync_batchnorm out"
            )
        if self.unused and self.replicate != self.processes:
            raise ValueError(
                f"unused is an option of replicate alone: layout {self} allows unused parameters "
                "anyway, so leave unused out"
            )

    def _check_logical_ranks(self) -> None:
        """Reject what cannot be combined with logical ranks, or needs them."""
        if self.logical_ranks is None:
            if self.threads != 1:
                raise ValueError(
                    "threads is an option of logical_ranks, but there are none: leave threads out, "
                    "or call torch.set_num_threads"
                )
            return
        used = [name for name in SIZES if getattr(self, name) != 1]
        other = [name for name in used if name not in ("replicate", "shard")]
        if other:
            raise ValueError(
                f"logical_ranks cannot be combined with {other[0]}: its collectives add in an "
                f"order that depends on the number of processes, so use replicate=-1 or leave "
                "logical_ranks out"
            )
        if len(used) > 1:
            raise ValueError(
                "logical_ranks need replicate=-1 or shard=-1, but both are given: leave one out"
            )
        for name in _OPTIONS["shard"]:
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise ValueError(
                    f"{name} cannot be combined with logical_ranks, which gather the complete "
                    f"model once per step: leave {name} out"
                )
        if self.unused:
            raise ValueError("unused is not needed with logical_ranks: leave unused out")
        if self.sync_batchnorm:
            raise ValueError(
                "sync_batchnorm cannot be combined with logical_ranks, which run one after "
                "another: leave one of them out"
            )

    def _check_combination(self) -> None:
        used = {name for name in SIZES if getattr(self, name) > 1}
        if len(used) > 1 and used not in _COMBINATIONS:
            allowed = "; ".join(" × ".join(sorted(pair)) for pair in _COMBINATIONS)
            raise ValueError(f"layout {self} is not supported: you can combine {allowed}")
        if self.sequence_parallel and {"context", "pipeline"} & used:
            raise ValueError(
                f"sequence_parallel runs all blocks on parts of the sequence, but layout {self} "
                "divides them or the sequence too: leave sequence_parallel out"
            )
        if self.schedule == "zero-bubble" and self.shard > 1:
            raise ValueError(
                "schedule 'zero-bubble' computes gradients in two passes, which shards do not "
                "support: use '1f1b' or 'interleaved', or replicate instead of shard"
            )
