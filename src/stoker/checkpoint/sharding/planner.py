"""Divide the shared tensors of several ranks among them, by torch's save planner.

A tensor that all ranks hold is written once, by the lowest rank; of a sharded tensor each rank
writes its piece. The ranks exchange what they hold, and each computes the same division.
"""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from stoker.checkpoint.format.names import tensor_file, tensor_place
from stoker.checkpoint.format.tensor_file import DTYPES
from stoker.checkpoint.sharding.write_plan import WritePlan


def local_items(tensors: Mapping[str, Tensor]) -> list[WriteItem]:
    """Return what this rank could write; it need not hold a piece of every tensor."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors))
    return [item for item in planner.create_local_plan().items if not _is_empty_piece(item)]


def _is_empty_piece(item: WriteItem) -> bool:
    assert item.tensor_data is not None
    return 0 in item.tensor_data.chunk.sizes and 0 not in item.tensor_data.size


def plan_for_rank(items_by_rank: list[list[WriteItem]], rank: int) -> WritePlan:
    """Return the plan of one rank, given the `local_items` of all."""
    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    divided, _ = planner.create_global_plan([SavePlan(items) for items in items_by_rank])
    writers = _count_writers(divided)
    plan = WritePlan()
    for writer, share in enumerate(divided):
        for item in share.items:
            key = item.index.fqn
            kind, name = tensor_place(key)
            file = tensor_file(kind, writer, writers[kind], len(items_by_rank))
            name = _add_piece(plan, item, file, name)
            if writer == rank:
                plan.pieces.setdefault(file, {})[name] = key
    return plan


def _add_piece(plan: WritePlan, item: WriteItem, file: str, name: str) -> str:
    """Record the place of a piece and return its name in the file; a full tensor keeps its name."""
    assert item.tensor_data is not None
    chunk, global_shape = item.tensor_data.chunk, item.tensor_data.size
    if chunk.sizes == global_shape:
        return name
    name = f"{name}@{','.join(map(str, chunk.offsets))}"
    dtype = DTYPES[item.tensor_data.properties.dtype]
    entry = plan.split.setdefault(
        item.index.fqn, {"dtype": dtype, "shape": list(global_shape), "pieces": []}
    )
    entry["pieces"].append({"file": file, "name": name, "offset": list(chunk.offsets)})
    return name


def _count_writers(plans: list[SavePlan]) -> dict[str, int]:
    kinds = [{tensor_place(item.index.fqn)[0] for item in plan.items} for plan in plans]
    return {kind: sum(kind in found for found in kinds) for kind in ("model", "state")}
