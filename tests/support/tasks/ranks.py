"""What the processes of `pool` do in `multiprocess/test_pool.py`."""

import torch
import torch.distributed as dist


def sum_of_ranks():
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item()


def fail_on_one():
    if dist.get_rank() == 1:
        raise RuntimeError("rank 1 is tired")
