"""Messages between the ranks of a job about a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as c10d

from stoker.core import dist
from stoker.core.errors import CheckpointError


class RankChannel:
    """A process group for checkpoints alone.

    A background thread finishes each save. On the group of the training loop its collectives
    would mix with those of gradients; on this one, only one save communicates at a time. Every
    rank creates it and takes part in each exchange. In an elastic job, rank 0 saves alone.
    """

    def __init__(self) -> None:
        alone = dist.members() is not None
        self.rank, self.world_size = (0, 1) if alone else (dist.rank(), dist.world_size())
        self._group = c10d.new_group(backend="gloo") if self.world_size > 1 else None

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        c10d.all_gather_object(found, value, group=self._group)
        return found

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
