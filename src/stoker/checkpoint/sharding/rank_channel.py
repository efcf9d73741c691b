"""Messages between the ranks of a job about a checkpoint, as JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as c10d

from stoker.checkpoint.format.state_tree import Json
from stoker.core import dist
from stoker.core.errors import CheckpointError


class RankChannel:
    """A process group for checkpoints alone.

    A background thread finishes each save. On the group of the training loop its collectives
    would mix with those of gradients; on this one, only one save communicates at a time. Every
    rank creates it and takes part in each exchange.
    """

    def __init__(self) -> None:
        self.rank = dist.rank()
        self.world_size = dist.world_size()
        self._group = c10d.new_group(backend="gloo") if self.world_size > 1 else None

    def all_gather(self, value: Json) -> list[Json]:
        """Return the values of all ranks, by rank."""
        if self._group is None:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        c10d.all_gather(sizes, torch.tensor([len(text)]), group=self._group)
        longest = max(int(size) for size in sizes)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        padded = torch.nn.functional.pad(text, (0, longest - len(text)))
        c10d.all_gather(texts, padded, group=self._group)
        return [
            json.loads(text[: int(size)].numpy().tobytes())
            for text, size in zip(texts, sizes, strict=True)
        ]

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Make an error on one rank an error on all, so that none waits for a rank that left.

        The rank that failed raises its own error, the others a `CheckpointError` that quotes it.
        """
        message = None
        try:
            yield
        except Exception as error:
            message = str(error) or type(error).__name__
            raise
        finally:
            if self._group is not None:
                self._raise_remote_error(self.all_gather(message), message)

    def _raise_remote_error(self, messages: list[str | None], own: str | None) -> None:
        for rank, message in enumerate(messages):
            if own is None and message is not None:
                raise CheckpointError(f"rank {rank} failed: {message}")
