"""Divide the shared tensors of several ranks among them, by torch's save planner.

A tensor that all ranks hold is written once, by the lowest rank; of a sharded tensor each rank
writes its piece. The ranks exchange what they hold as JSON, and each computes the same division.
"""

from collections.abc import Mapping

from torch import Size, Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from stoker.checkpoint.format.names import tensor_file, tensor_place
from stoker.checkpoint.format.state_tree import Json
from stoker.checkpoint.format.tensor_file import DTYPES, DTYPES_BY_NAME
from stoker.checkpoint.sharding.write_plan import WritePlan


def local_items(tensors: Mapping[str, Tensor]) -> Json:
    """Return what this rank could write; it need not hold a piece of every tensor."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors))
    items = [_to_json(item) for item in planner.create_local_plan().items]
    return [item for item in items if 0 not in item["shape"] or 0 in item["global_shape"]]


def plan_for_rank(items_by_rank: list[Json], rank: int) -> WritePlan:
    """Return the plan of one rank, given the `local_items` of all."""
    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    divided, _ = planner.create_global_plan(
        [SavePlan([_from_json(item) for item in items]) for items in items_by_rank]
    )
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


def _to_json(item: WriteItem) -> Json:
    assert item.tensor_data is not None
    return {
        "key": item.index.fqn,
        "at": None if item.index.offset is None else list(item.index.offset),
        "type": item.type.name,
        "offset": list(item.tensor_data.chunk.offsets),
        "shape": list(item.tensor_data.chunk.sizes),
        "global_shape": list(item.tensor_data.size),
        "dtype": DTYPES[item.tensor_data.properties.dtype],
    }


def _from_json(item: Json) -> WriteItem:
    chunk = ChunkStorageMetadata(Size(item["offset"]), Size(item["shape"]))
    properties = TensorProperties(dtype=DTYPES_BY_NAME[item["dtype"]])
    return WriteItem(
        MetadataIndex(item["key"], item["at"]),
        WriteItemType[item["type"]],
        tensor_data=TensorWriteData(chunk, properties, Size(item["global_shape"])),
    )
