"""Who writes which piece of the shared tensors, decided by torch's planner.

What all processes hold alike is written once, by the lowest rank; of what is sharded, each writes
its own piece. Plans travel as JSON and every rank comes to the same division, so that nobody has
to be told.
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

from stoker.checkpoint.format.state_tree import Json
from stoker.checkpoint.format.tensor_file import BY_NAME, DTYPES
from stoker.checkpoint.sharding.write_plan import WritePlan, part_of


def local_plan(tensors: Mapping[str, Tensor]) -> Json:
    """What this process could write; it need not hold a part of every tensor."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors))
    plan = [_to_json(item) for item in planner.create_local_plan().items]
    return [item for item in plan if 0 not in item["shape"] or 0 in item["whole"]]


def share_among(plans: list[Json], rank: int) -> WritePlan:
    """The share of one rank, given what each could write."""
    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    divided, _ = planner.create_global_plan(
        [SavePlan([_from_json(item) for item in plan]) for plan in plans]
    )
    writers = _writers(divided)
    share = WritePlan()
    for writer, plan in enumerate(divided):
        for item in plan.items:
            key = item.index.fqn
            part, name = part_of(key)
            file = _file(part, writer, writers[part], len(plans))
            name = _note_piece(share, item, file, name)
            if writer == rank:
                share.pieces.setdefault(file, {})[name] = key
    return share


def _note_piece(share: WritePlan, item: WriteItem, file: str, name: str) -> str:
    """Remember where a piece stands; the name in the file, which a whole tensor keeps."""
    assert item.tensor_data is not None
    chunk, whole = item.tensor_data.chunk, item.tensor_data.size
    if chunk.sizes == whole:
        return name
    name = f"{name}@{','.join(map(str, chunk.offsets))}"
    dtype = DTYPES[item.tensor_data.properties.dtype]
    entry = share.split.setdefault(
        item.index.fqn, {"dtype": dtype, "shape": list(whole), "pieces": []}
    )
    entry["pieces"].append({"file": file, "name": name, "offset": list(chunk.offsets)})
    return name


def _writers(plans: list[SavePlan]) -> dict[str, set[int]]:
    writers: dict[str, set[int]] = {"model": set(), "state": set()}
    for writer, plan in enumerate(plans):
        for item in plan.items:
            writers[part_of(item.index.fqn)[0]].add(writer)
    return writers


def _file(part: str, writer: int, writers: set[int], world_size: int) -> str:
    if len(writers) == 1:
        return f"{part}.safetensors"
    return f"{part}-{writer:05}-of-{world_size:05}.safetensors"


def _to_json(item: WriteItem) -> Json:
    assert item.tensor_data is not None
    return {
        "key": item.index.fqn,
        "at": None if item.index.offset is None else list(item.index.offset),
        "type": item.type.name,
        "offset": list(item.tensor_data.chunk.offsets),
        "shape": list(item.tensor_data.chunk.sizes),
        "whole": list(item.tensor_data.size),
        "dtype": DTYPES[item.tensor_data.properties.dtype],
    }


def _from_json(item: Json) -> WriteItem:
    chunk = ChunkStorageMetadata(Size(item["offset"]), Size(item["shape"]))
    properties = TensorProperties(dtype=BY_NAME[item["dtype"]])
    return WriteItem(
        MetadataIndex(item["key"], item["at"]),
        WriteItemType[item["type"]],
        tensor_data=TensorWriteData(chunk, properties, Size(item["whole"])),
    )
