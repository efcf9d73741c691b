"""What the processes of a job tell each other about a checkpoint, as JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.checkpoint.format.state_tree import Json
from stoker.core import dist
from stoker.core.errors import CheckpointError


class RankChannel:
    """All processes of the job, on a channel of their own.

    A save is finished by a thread beside the training. On the channel of the training its words
    would get between gradients; here only one save speaks at a time. Every process makes it, and
    every process takes part in each exchange.
    """

    def __init__(self) -> None:
        self.rank = dist.rank()
        self.world_size = dist.world_size()
        self._group = c10d.new_group(backend="gloo") if self.world_size > 1 else None

    def exchange(self, value: Json) -> list[Json]:
        """The values of all processes, by rank."""
        if self._group is None:
            return [value]
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        c10d.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        longest = max(int(size) for size in sizes)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        c10d.all_gather(texts, _fill_up(mine, longest), group=self._group)
        return [
            json.loads(text[: int(size)].numpy().tobytes())
            for text, size in zip(texts, sizes, strict=True)
        ]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails in one process fails in all: its own error there, a word about it elsewhere.

        Without it the others would wait for one that has gone its own way.
        """
        failed = None
        try:
            yield
        except Exception as error:
            failed = str(error) or type(error).__name__
            raise
        finally:
            if self._group is not None:
                words = self.exchange(failed)
                self._raise_of_others(words, failed)

    def _raise_of_others(self, words: list[str | None], own: str | None) -> None:
        for rank, word in enumerate(words):
            if own is None and word is not None:
                raise CheckpointError(f"rank {rank} failed: {word}")


def _fill_up(text: Tensor, length: int) -> Tensor:
    whole = torch.zeros(length, dtype=torch.uint8)
    whole[: len(text)] = text
    return whole
