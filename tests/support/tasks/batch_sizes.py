"""What ranks do that search for a batch size together."""

from typing import Any

from stoker import data
from stoker.core import dist
from stoker.data import planning


def batch_sizes(limits: list[int]) -> Any:
    """The size that a search finds if ranks run out of memory at different sizes."""

    def attempt(size: int) -> None:
        if size > limits[dist.rank()]:
            raise MemoryError

    return data.find_batch_size(attempt)


def stuck_batch_size() -> str:
    """The error if one rank runs out of memory while another waits for it."""

    def attempt(size: int) -> None:
        if size > 2 and dist.rank() == 1:
            raise MemoryError
        dist.barrier()

    patience, planning._PATIENCE = planning._PATIENCE, 0.2
    try:
        data.find_batch_size(attempt, largest=4)
    except RuntimeError as error:
        dist.barrier()  # the other rank waits for it
        return str(error)
    finally:
        planning._PATIENCE = patience
    return ""
