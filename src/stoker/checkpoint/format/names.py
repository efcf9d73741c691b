"""The names of the files of a checkpoint, and of the folders of checkpoints."""

import re
from pathlib import Path

from stoker.storage import Storage, local_path, open_storage, store_url, url_of

MANIFEST = "MANIFEST.json"
STATE = "state.json"

MODEL = "model."
"""The prefix of tensors that go into ``model.safetensors``, under the names of the model."""

FILE_NAME = re.compile(
    r"state\.json|(model|state)(-frozen)?(-\d{5,9}-of-\d{5,9})?\.safetensors"
    r"|rank-\d{5,9}\.(json|safetensors)",
    re.ASCII,
)
"""The names that the files of a checkpoint can have, besides the manifest."""

_FROZEN = "-frozen"
_NAME = re.compile(r"step-(\d{8,15})")


def checkpoint_name(step: int) -> str:
    """Return the folder name of a step: ``"step-00000500"``."""
    return f"step-{step:08}"


def step_in_name(name: str) -> int | None:
    """Return the step of a folder name, None if it is not the name of a checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def open_checkpoint(location: str | Path | Storage) -> Storage:
    """Return the storage of a checkpoint.

    A link that has the name of a checkpoint is not followed; a link of another name is. A folder
    that stands for a place in a store, and has no manifest, is read from the store.
    """
    if not isinstance(location, str | Path):
        return location
    if (url := store_url(location)) is not None:
        folder, _, name = url.rpartition("/")
        return open_storage(folder).below(name)
    path = local_path(location)
    if step_in_name(path.name) is None:
        return open_storage(path)
    return (None if is_here(path) else stored_copy(path)) or _below(path)


def _below(path: Path) -> Storage:
    return open_storage(path.parent).below(path.name)


def is_here(checkpoint: Path) -> bool:
    """Return whether a checkpoint is on the local disk."""
    return (checkpoint / MANIFEST).is_file()


def stored_copy(checkpoint: Path) -> Storage | None:
    """Return the checkpoint in the store that a folder stands for, None for other folders."""
    url = url_of(checkpoint.parent)
    return open_storage(url).below(checkpoint.name) if url is not None else None


def list_steps(storage: Storage) -> dict[int, str]:
    """Return step → folder name of every checkpoint that has a manifest, oldest first."""
    named = {step: name for name in storage.list() if (step := step_in_name(name)) is not None}
    found = {s: n for s, n in named.items() if storage.below(n).size(MANIFEST) is not None}
    return dict(sorted(found.items()))


def rank_file(rank: int, suffix: str) -> str:
    """Return the name of a file with the state of one rank."""
    return f"rank-{rank:05}.{suffix}"


def tensor_place(key: str) -> tuple[str, str]:
    """Return the kind of file that holds a shared tensor, "model" or "state", and its name there.

    The model has a file of its own so that it can be loaded without Stoker.
    """
    return ("model", key.removeprefix(MODEL)) if key.startswith(MODEL) else ("state", key)


def tensor_key(file: str, name: str) -> str:
    """Return the key of the tensor called ``name`` in a file: the inverse of `tensor_place`."""
    return MODEL + name if file.startswith("model") else name


def tensor_file(kind: str, rank: int, writers: int, world_size: int) -> str:
    """Return the name of a file of shared tensors; ranks are numbered if several write one kind."""
    if writers == 1:
        return f"{kind}.safetensors"
    return f"{kind}-{rank:05}-of-{world_size:05}.safetensors"


def frozen_file(file: str) -> str:
    """Return the name of the file for those tensors of a file that do not change."""
    kind = file[: len("model")]  # "state" is as long
    return f"{kind}{_FROZEN}{file.removeprefix(kind)}"


def unfrozen_file(file: str) -> str | None:
    """Return the file whose tensors that do not change are in this one; None for other files."""
    return file.replace(_FROZEN, "", 1) if _FROZEN in file else None
