"""The same records in every format that streams read."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import data

RECORDS = 700
FILES = 3


def text_of(number: int) -> str:
    return f"{number} " + "x" * (number % 37)


def write_jsonl(folder: Path) -> Any:
    for name, numbers in _parts("jsonl"):
        lines = [json.dumps({"number": n, "text": text_of(n)}) + "\n" for n in numbers]
        (folder / name).write_text("".join(lines))
    return folder


def write_text(folder: Path) -> Any:
    for name, numbers in _parts("txt"):
        (folder / name).write_text("\n".join(map(text_of, numbers)))
    return folder


def write_parquet(folder: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    for name, numbers in _parts("parquet"):
        table = pa.table({"number": list(numbers), "text": [text_of(n) for n in numbers]})
        parquet.write_table(table, folder / name, row_group_size=50)
    return folder


def write_tar(folder: Path) -> Any:
    for name, numbers in _parts("tar"):
        with tarfile.open(folder / name, "w") as archive:
            for n in numbers:
                long = "long/" * 30 if n % 100 == 7 else ""  # headers that need tarfile
                for suffix, content in (("cls", str(n)), ("txt", text_of(n))):
                    info = tarfile.TarInfo(f"{long}sample{n:05}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content.encode()))
    return folder


def hugging_face(folder: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    rows = {"number": list(range(RECORDS)), "text": list(map(text_of, range(RECORDS)))}
    return datasets.Dataset.from_dict(rows)


def hugging_face_iterable(folder: Path) -> Any:
    return hugging_face(folder).to_iterable_dataset(num_shards=4)


def _parts(suffix: str) -> list[tuple[str, range]]:
    bounds = [RECORDS * i // FILES for i in range(FILES + 1)]
    return [(f"{i}.{suffix}", range(bounds[i], bounds[i + 1])) for i in range(FILES)]


FORMATS: dict[str, Callable[[Path], Any]] = {
    "jsonl": write_jsonl,
    "text": write_text,
    "parquet": write_parquet,
    "webdataset": write_tar,
    "datasets": hugging_face,
    "iterable": hugging_face_iterable,
}
RANDOM_ACCESS = [name for name in FORMATS if name != "iterable"]


def number_in(record: Any) -> int:
    """The number of a record of any format."""
    if isinstance(record, str):
        return int(record.split()[0])
    return int(record["cls"]) if "cls" in record else int(record["number"])


def tokens_in(record: Any) -> list[int]:
    number = number_in(record)
    return [number] * (number % 11)


def numbers(source: Any, **options: Any) -> "data.Stream":
    """The numbers of a source, shuffled within windows that are small enough to be many."""
    return data.stream(source, **{"shuffle": 64, "seed": 5, **options}).map(number_in)
