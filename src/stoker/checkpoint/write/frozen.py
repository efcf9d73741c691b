"""Tensors that stay the same from save to save: in files of their own, which are linked.

    step-00000500/model.safetensors           what training changes
    step-00000500/model-frozen.safetensors    what has not changed so far
    step-00001000/model-frozen.safetensors    a hard link to the file above

Each checkpoint is complete in itself: it is copied, moved and removed like any other folder. The
file system counts the links, so the bytes are there as long as one checkpoint has them.
"""

import xxhash

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import unfrozen_file
from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.checkpoint.write.snapshot import Blocks, Snapshot, StagedFile
from stoker.core.errors import CheckpointError
from stoker.storage import FileRecord, LocalStorage, Storage

_LEAST = 1 << 20
"""Bytes from which tensors are worth a file of their own."""


class FrozenTensors:
    """Finds the tensors that do not change, by the checksums of consecutive saves.

    A tensor that was seen to change counts as changing from then on, and is not hashed again. So
    the file of frozen tensors is written again only when one of them begins to change.
    """

    def __init__(self) -> None:
        self._checksums: dict[tuple[str, str], str] = {}
        self._changing: set[tuple[str, str]] = set()
        self._frozen: set[tuple[str, str]] = set()
        self._step: int | None = None
        self._base: Storage | None = None
        self._files: dict[str, FileRecord] = {}

    @property
    def is_new(self) -> bool:
        """Whether there is no checkpoint yet whose files could be linked."""
        return self._base is None

    def continue_from(self, checkpoint: Storage) -> None:
        """Link the files of a checkpoint from now on, and expect its frozen tensors to stay."""
        self._base, self._files = checkpoint, {}
        try:
            for file, record in Manifest.read(checkpoint).files.items():
                if (other := unfrozen_file(file)) is not None:
                    self._files[file] = record
                    found = {(other, name) for name in TensorReader(checkpoint, file).entries}
                    self._frozen |= found - self._changing
        except (CheckpointError, OSError):
            self._base = None  # it was removed or damaged

    def find(self, snapshot: Snapshot) -> dict[str, set[str]]:
        """Return file → the names of its tensors that go into a file of their own."""
        staged = snapshot.staged.items()
        shared = {file: one for file, one in staged if not file.startswith("rank-")}
        unchanged = {
            (file, name)
            for file, one in shared.items()
            for name in one.layout.offsets
            if self._is_unchanged((file, name), one)
        }
        if snapshot.step != self._step:  # otherwise nothing was trained since the last save
            self._frozen |= unchanged
            self._step = snapshot.step
        found = {}
        for file, one in shared.items():
            names = {name for name in one.layout.offsets if (file, name) in self._frozen}
            if one.layout.only(names).size >= _LEAST:
                found[file] = names
        return found

    def _is_unchanged(self, key: tuple[str, str], staged: StagedFile) -> bool:
        if key in self._changing:
            return False
        checksum = xxhash.xxh3_128(staged.bytes_of(key[1])).hexdigest()
        before = self._checksums.get(key)
        if before is None or before == checksum:
            self._checksums[key] = checksum
            return before is not None
        self._changing.add(key)
        self._frozen.discard(key)
        return False

    def link(self, partial: Storage, name: str, blocks: Blocks) -> FileRecord | None:
        """Link a file from the checkpoint before, if its bytes are the same and intact there.

        Returns:
            Its record; None if it has to be written.
        """
        record, base = self._files.get(name), self._base
        if record is None or not isinstance(base, LocalStorage):
            return None
        if not isinstance(partial, LocalStorage) or _checksum(blocks) != record.xxh3_128:
            return None
        try:
            if base.checksum(name) != record.xxh3_128:
                return None
            partial.link(name, base)
        except OSError:  # another disk, or one without links
            return None
        return record


def _checksum(blocks: Blocks) -> str:
    checksum = xxhash.xxh3_128()
    for block in blocks:
        checksum.update(block)
    return checksum.hexdigest()
