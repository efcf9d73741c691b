"""The names of data files: which of a folder are taken, and what braces in a name stand for."""

import os
import re
from collections.abc import Iterable
from itertools import product

_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".tgz", ".zip")
_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000


def data_files(names: Iterable[str], suffixes: Iterable[str], folder: str) -> list[str]:
    """Return the names that end in one of the suffixes, sorted.

    Args:
        names: the names of the files in a folder.
        suffixes: the suffixes, in lower case.
        folder: the folder, for errors.

    Raises:
        ValueError: there is none, or one of the files is compressed.
    """
    names, wanted = list(names), {*suffixes}
    found = sorted(name for name in names if _suffix(name) in wanted)
    wanted = {_suffix(name) for name in found} or wanted
    for name in sorted(names):
        if _compressed_suffix(name) in wanted:
            raise ValueError(f"{_is_compressed(name)}; to leave it out, pass a pattern")
    if not found:
        raise ValueError(f"'{folder}' holds no files that end in {_either(suffixes)}")
    return found


def check_not_compressed(path: str) -> None:
    """Raise a `ValueError` if the suffix of a file says that it is compressed."""
    if _suffix(path) in _COMPRESSED:
        raise ValueError(_is_compressed(path))


def _is_compressed(path: str) -> str:
    return (
        f"'{path}' is compressed, so records in it cannot be found without reading it from the "
        "start: decompress it, or convert it to Parquet"
    )


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _compressed_suffix(path: str) -> str | None:
    """Return the suffix that a compressed file has when it is decompressed."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix not in _COMPRESSED:
        return None
    return ".tar" if suffix == ".tgz" else _suffix(stem)


def expand_braces(name: str) -> list[str]:
    """Return the names that a name with braces stands for, as ``{000..127}`` or ``{a,b}``."""
    parts = _BRACES.split(name)  # every other one was in braces
    choices = [[part] if i % 2 == 0 else _choices(part) for i, part in enumerate(parts)]
    count = 1
    for some in choices:
        count *= len(some)
    if count > _MOST_NAMES:
        raise ValueError(f"'{name}' stands for {count:,} names, expected at most {_MOST_NAMES:,}")
    return ["".join(some) for some in product(*choices)]


def _choices(inside: str) -> list[str]:
    if numbers := _NUMBERS.fullmatch(inside):
        first, last = numbers.groups()
        if int(last) - int(first) >= _MOST_NAMES:
            raise ValueError(f"'{{{inside}}}' stands for more than {_MOST_NAMES:,} names")
        width = len(first) if first.startswith("0") else 0
        return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    return inside.split(",") if "," in inside else [f"{{{inside}}}"]


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
