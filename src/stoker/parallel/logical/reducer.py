"""`TreeReducer`: gradients of logical ranks, added in a fixed tree."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn

from stoker.core import dist
from stoker.parallel.logical.tree import Node, complete_nodes, finish, is_node, ranks_of, split

_BUCKET_BYTES = 8 * 2**20
_CHUNK_BYTES = 64 * 2**10  # at least, so that messages do not get small with many processes


class TreeReducer:
    """Adds the gradients of all logical ranks in the order of the tree, on any processes.

    A process adds the gradients of the logical ranks that it executes into complete nodes of the
    tree. Then every process gets its chunk of all nodes (an all-to-all), finishes the tree, and
    sends the result to the others: the traffic of an all-reduce if each process holds one node.

    Buckets of parameters start during the backward pass of the last logical rank.

    Args:
        parameters: those whose gradients are added.
        process: the number of this process.
        processes: the number of processes.
        total: the number of logical ranks.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], process: int, processes: int, total: int
    ) -> None:
        self.ranks = ranks_of(process, processes, total)
        self._nodes = [
            complete_nodes(ranks_of(one, processes, total), total) for one in range(processes)
        ]
        self._process, self._processes, self._total = process, processes, total
        size = max(_BUCKET_BYTES, _CHUNK_BYTES * processes)
        self._buckets = [_Bucket(some, processes) for some in _buckets(parameters, size)]
        self._started = self._finished = 0
        self._armed = False
        self.bytes_sent = 0
        self._handles = [] if processes == 1 else list(self._watch())

    def close(self) -> None:
        """Stop watching the parameters."""
        for handle in self._handles:
            handle.remove()

    def begin(self) -> None:
        """Begin a step; gradients that are there are dropped."""
        self._started = self._finished = 0
        self._armed = False
        for bucket in self._buckets:
            bucket.begin()

    def add(self, rank: int) -> None:
        """Add the gradients of a logical rank after its backward passes, and drop them."""
        if rank == self.ranks[-1]:
            self._armed = False
            self._start(len(self._buckets))
        else:
            for bucket in self._buckets:
                bucket.add(rank, self._total)

    def arm(self) -> None:
        """Start buckets when they are complete in the backward pass that follows, the last one."""
        self._armed = self._processes > 1

    def finish(self) -> None:
        """Leave the sums in the gradients of the parameters, the same on all processes."""
        self._finish(len(self._buckets))
        for bucket in self._buckets:
            bucket.finish()

    def _watch(self) -> Iterator[Any]:
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                add: Any = parameter.register_post_accumulate_grad_hook
                yield add(self._on_gradient(bucket))

    def _on_gradient(self, bucket: "_Bucket") -> Callable[[Tensor], None]:
        def on_gradient(parameter: Tensor) -> None:
            if not self._armed:
                return
            bucket.missing -= 1
            if bucket.missing < 0:
                raise RuntimeError(
                    "a parameter got a gradient twice in one backward pass, after it was sent to "
                    "other processes: use checkpoint(…, use_reentrant=False)"
                )
            ready = self._started
            while ready < len(self._buckets) and not self._buckets[ready].missing:
                ready += 1
            self._start(ready)

        return on_gradient

    def _start(self, count: int) -> None:
        """Start the buckets up to this one in order; the one before each is finished then."""
        while self._started < count:
            bucket = self._buckets[self._started]
            bucket.add(self.ranks[-1], self._total)
            self._exchange(bucket)
            self._started += 1
            self._finish(self._started - 1)

    def _exchange(self, bucket: "_Bucket") -> None:
        """Send every process its chunk of the nodes that this one holds."""
        if self._processes == 1:
            return
        chunk = bucket.length // self._processes
        held = [bucket.nodes[node] for node in self._nodes[self._process]]
        sent = held[0]
        if len(held) > 1:
            sent = torch.stack([flat.view(-1, chunk) for flat in held], dim=1).view(-1)
        counts = [len(nodes) * chunk for nodes in self._nodes]
        bucket.received = bucket.buffer("received", sum(counts))
        bucket.work = c10d.all_to_all_single(
            bucket.received, sent, counts, [len(held) * chunk] * self._processes, async_op=True
        )
        bucket.sent = sent  # until it has arrived
        self._count(len(held) * chunk, sent)

    def _finish(self, count: int) -> None:
        """Finish the tree for the buckets up to this one, and send the results."""
        while self._finished < count:
            bucket = self._buckets[self._finished]
            self._finished += 1
            if self._processes == 1:
                continue
            dist.wait_for(bucket.work)
            chunk = bucket.length // self._processes
            nodes = [node for held in self._nodes for node in held]
            parts = dict(zip(nodes, torch.split(bucket.received, chunk), strict=True))
            result = finish(parts, self._total, Tensor.add_)
            bucket.sent = bucket.buffer("sent", bucket.length)
            bucket.sent.view(-1, chunk).copy_(result.expand(self._processes, chunk))
            bucket.work = c10d.all_to_all_single(bucket.result, bucket.sent, async_op=True)
            self._count(chunk, bucket.sent)

    def _count(self, elements: int, tensor: Tensor) -> None:
        self.bytes_sent += elements * (self._processes - 1) * tensor.element_size()


@dataclass
class _Bucket:
    """Parameters whose gradients lie in one flat tensor for each node.

    A flag for each parameter follows the gradients: how many logical ranks have a gradient.
    """

    parameters: list[nn.Parameter]
    processes: int
    nodes: dict[Node, Tensor] = field(default_factory=dict)
    missing: int = 0
    work: Any = None

    received: Tensor = field(init=False)
    sent: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._sizes = [parameter.numel() for parameter in self.parameters]
        elements = sum(self._sizes) + len(self.parameters)
        self.length = -(-elements // self.processes) * self.processes
        self._free: list[Tensor] = []
        self._buffers: dict[str, Tensor] = {}
        self._used: list[bool] = []

    def begin(self) -> None:
        self._free += self.nodes.values()
        self.nodes, self.missing, self.work = {}, len(self.parameters), None
        self._used = [False] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def buffer(self, name: str, length: int) -> Tensor:
        """Return a tensor that is kept for the next step."""
        if name not in self._buffers:
            self._buffers[name] = self._zeros(length)
        return self._buffers[name]

    @property
    def result(self) -> Tensor:
        """Where the sum of all logical ranks arrives."""
        return next(iter(self.nodes.values()))

    def add(self, rank: int, total: int) -> None:
        """Add the gradients of a logical rank to the nodes, and drop them."""
        last = next(reversed(self.nodes), None)
        if last is not None and is_node(last[0], rank + 1, total) and last[1] == rank:
            self._add_to(self.nodes[last])
            self.nodes[(last[0], rank + 1)] = self.nodes.pop(last)
        else:
            self.nodes[(rank, rank + 1)] = self._copied()
        for parameter in self.parameters:
            parameter.grad = None
        self._merge(total)

    def _merge(self, total: int) -> None:
        """Add the last two nodes for as long as they are the halves of one."""
        while len(self.nodes) > 1:
            (begin, middle), (_, end) = list(self.nodes)[-2:]
            if not is_node(begin, end, total) or split((begin, end)) != middle:
                return
            right = self.nodes.pop((middle, end))
            self.nodes[(begin, end)] = self.nodes.pop((begin, middle)).add_(right)
            self._free.append(right)

    def finish(self) -> None:
        """Set the gradients of the parameters; None where no logical rank has one."""
        if self.work is not None:
            dist.wait_for(self.work)
        views, flags = self._views(self.result)
        for index, parameter in enumerate(self.parameters):
            if self._used[index] or bool(flags[index]):
                parameter.grad = views[index].view_as(parameter)

    def _copied(self) -> Tensor:
        flat = self._free.pop() if self._free else self._zeros(self.length)
        views, flags = self._views(flat)
        gradients = self._gradients()
        if len(gradients) < len(views):
            flat.zero_()
        flags.zero_()
        if gradients:
            torch._foreach_copy_([views[index] for index in gradients], [*gradients.values()])
            flags[list(gradients)] = 1
        return flat

    def _add_to(self, flat: Tensor) -> None:
        views, flags = self._views(flat)
        gradients = self._gradients()
        if gradients:
            torch._foreach_add_([views[index] for index in gradients], [*gradients.values()])
            flags[list(gradients)] += 1
        for index in range(len(views)):
            if index not in gradients:
                views[index].add_(0.0)  # turns -0.0 into 0.0, as on a process that adds zeros

    def _gradients(self) -> dict[int, Tensor]:
        found = {}
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                if parameter.grad.layout is not torch.strided:
                    raise ValueError(
                        "a parameter has a sparse gradient, which logical ranks cannot add: use "
                        "sparse=False in its layer"
                    )
                self._used[index] = True
                found[index] = parameter.grad.flatten()
        return found

    def _views(self, flat: Tensor) -> tuple[list[Tensor], Tensor]:
        count = len(self._sizes)
        rest = self.length - sum(self._sizes) - count
        *views, flags, _ = torch.split(flat, [*self._sizes, count, rest])
        return views, flags

    def _zeros(self, length: int) -> Tensor:
        like = self.parameters[0]
        return torch.zeros(length, dtype=like.dtype, device=like.device)


def _buckets(parameters: Sequence[nn.Parameter], limit: int) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one dtype and device, the last first, as their gradients arrive."""
    kinds = list(dict.fromkeys((p.dtype, p.device) for p in reversed(parameters)))
    for kind in kinds:
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in reversed(parameters):
            if (parameter.dtype, parameter.device) != kind:
                continue
            bucket.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= limit:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket
