"""Compare streams with raw reading and with other libraries: records per second, time to resume.

All variants read the same records. JSON lines, text, Parquet and tar files are the same files for
everyone; MosaicML streaming and LitData read their own formats, written from these records. Each
variant decodes a record to the same value, shuffles (raw reading does not), and yields every record
once. All run in one process without workers, in interleaved rounds; the figures are medians, of
wall time and of processor time, which a busy machine distorts less.

The others are installed into a virtual environment of their own, with the project's torch.

    python benchmarks/streams.py [--records 100000] [--size 1000] [--rounds 3] [--resume 1000000]
        [--seek 10000000] [--raw-only] [--data FOLDER]

The data is written to a temporary folder, or once to that of ``--data``.
"""

import argparse
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OTHERS = ("webdataset==1.0.2", "litdata==0.2.76", "mosaicml-streaming==0.13.0", "datasets==5.0.1")
WINDOW = 8192
FILES = 8


def environment(folder: Path) -> Path:
    """Return the Python of the environment with all libraries, which is created if needed."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"creating {folder}", flush=True)
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "-q", "install", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, "torch"], check=True)
        subprocess.run([*pip, ROOT, *OTHERS], check=True)
        (folder / "installed").touch()
    return python


# Data


def record(number: int, size: int) -> dict[str, Any]:
    words = random.Random(number)
    text = "".join(words.choices("abcdefgh ijklmnop", k=min(size, 64))) * (size // 64 + 1)
    return {"number": number, "text": text[:size]}


def parts(records: int) -> Iterator[tuple[int, range]]:
    for part in range(FILES):
        yield part, range(records * part // FILES, records * (part + 1) // FILES)


def write(folder: Path, records: int, size: int, kinds: set[str]) -> None:
    kinds = {kind for kind in kinds if not (folder / kind).exists()}
    for part, numbers in parts(records) if kinds - {"mds", "litdata"} else ():
        rows = [record(number, size) for number in numbers]
        if "jsonl" in kinds:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            _file(folder, "jsonl", part, "jsonl").write_text(lines)
        if "text" in kinds:
            lines = "".join(f"{row['text']}\n" for row in rows)
            _file(folder, "text", part, "txt").write_text(lines)
        if "parquet" in kinds:
            import pyarrow as pa
            from pyarrow import parquet

            path = _file(folder, "parquet", part, "parquet")
            parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=2000)
        if "tar" in kinds:
            with tarfile.open(_file(folder, "tar", part, "tar"), "w") as archive:
                for row in rows:
                    info = tarfile.TarInfo(f"{row['number']:09}.txt")
                    info.size = len(row["text"])
                    archive.addfile(info, io.BytesIO(row["text"].encode()))
    if "mds" in kinds:
        write_mds(folder / "mds", records, size)
    if "litdata" in kinds:
        write_litdata(folder / "litdata", records, size)


def _file(folder: Path, kind: str, part: int, suffix: str) -> Path:
    (folder / kind).mkdir(parents=True, exist_ok=True)
    return folder / kind / f"{part:03}.{suffix}"


def mosaicml_streaming() -> Any:
    """Import MosaicML streaming, which imports torchvision, which has no build for this torch."""
    import torch

    if "torchvision" not in sys.modules:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["torchvision_library"] = library  # it lasts as long as this object
    import streaming

    return streaming


def write_mds(folder: Path, records: int, size: int) -> None:
    columns = {"number": "int", "text": "str"}
    with mosaicml_streaming().MDSWriter(
        out=str(folder), columns=columns, size_limit=16 << 20
    ) as out:
        for number in range(records):
            out.write(record(number, size))


def write_litdata(folder: Path, records: int, size: int) -> None:
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(parents=True)
    writer = BinaryWriter(str(folder), chunk_bytes=16 << 20)
    for number in range(records):
        writer.add_item(number, record(number, size))
    writer.done()
    writer.merge()


# Variants: functions that return an iterator over all records


def raw_text(folder: Path) -> Iterator[Any]:
    for path in sorted((folder / "text").glob("*.txt")):
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield line[:-1]


def raw_jsonl(folder: Path) -> Iterator[Any]:
    for path in sorted((folder / "jsonl").glob("*.jsonl")):
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def raw_parquet(folder: Path) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    for path in sorted((folder / "parquet").glob("*.parquet")):
        for batch in ParquetFile(path).iter_batches(2000, use_threads=False):
            yield from batch.to_pylist()


def raw_tar(folder: Path) -> Iterator[Any]:
    for path in sorted((folder / "tar").glob("*.tar")):
        with tarfile.open(path, "r|") as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                yield {"__key__": member.name.split(".")[0], "txt": file.read()}


def stoker(kind: str) -> Callable[[Path], Iterator[Any]]:
    from stoker import data

    return lambda folder: iter(data.stream(folder / kind, shuffle=WINDOW, seed=1))


def hugging_face(kind: str) -> Callable[[Path], Iterator[Any]]:
    return lambda folder: iter(hugging_face_dataset(folder, kind))


def hugging_face_dataset(folder: Path, kind: str) -> Any:
    import datasets

    suffix = {"text": "txt"}.get(kind, kind)
    builder = {"jsonl": "json", "tar": "webdataset"}.get(kind, kind)
    files = str(folder / kind / f"*.{suffix}")
    found = datasets.load_dataset(builder, data_files=files, streaming=True, split="train")
    return found.shuffle(seed=1, buffer_size=WINDOW)


def webdataset(folder: Path) -> Iterator[Any]:
    import webdataset as wds

    urls = [str(path) for path in sorted((folder / "tar").glob("*.tar"))]
    found = wds.WebDataset(urls, shardshuffle=FILES, seed=1, empty_check=False)
    return iter(found.shuffle(WINDOW))


def mosaicml(folder: Path) -> Iterator[Any]:
    return iter(mosaicml_dataset(folder))


def mosaicml_dataset(folder: Path) -> Any:
    library = mosaicml_streaming()
    library.base.util.clean_stale_shared_memory()
    path = str(folder / "mds")
    return library.StreamingDataset(local=path, shuffle=True, shuffle_seed=1, batch_size=32)


def litdata(folder: Path) -> Iterator[Any]:
    return iter(litdata_dataset(folder))


def litdata_dataset(folder: Path) -> Any:
    from litdata import StreamingDataset

    return StreamingDataset(str(folder / "litdata"), shuffle=True, seed=1)


VARIANTS: dict[str, dict[str, Callable[[Path], Iterator[Any]]]] = {
    "text": {"raw": raw_text, "Hugging Face": hugging_face("text")},
    "jsonl": {"raw": raw_jsonl, "Hugging Face": hugging_face("jsonl")},
    "parquet": {"raw": raw_parquet, "Hugging Face": hugging_face("parquet")},
    "tar": {"raw": raw_tar, "WebDataset": webdataset, "Hugging Face": hugging_face("tar")},
    "their own": {"MosaicML streaming": mosaicml, "LitData": litdata},
}


def throughput(folder: Path, options: argparse.Namespace) -> None:
    write(folder, options.records, options.size, {"text", "jsonl", "parquet", "tar"})
    if not options.raw_only:
        write(folder, options.records, options.size, {"mds", "litdata"} - set(options.without))
    variants: dict[tuple[str, str], Callable[[Path], Iterator[Any]]] = {}
    for kind, some in VARIANTS.items():
        names = [name for name in some if name == "raw" or not options.raw_only]
        variants |= {(kind, name): some[name] for name in names}
        if kind != "their own":
            variants[kind, "Stoker"] = stoker(kind)
    for name in [] if options.raw_only else options.without:
        variants.pop(("their own", {"mds": "MosaicML streaming", "litdata": "LitData"}[name]))
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in variants}
    for number in range(options.rounds + 1):
        for key, make in variants.items():
            began, cpu = time.perf_counter(), time.process_time()
            count = sum(1 for _ in make(folder))
            if number:  # the first is warm-up: files are cached, indexes are built
                seconds[key].append((time.perf_counter() - began, time.process_time() - cpu))
            assert count == options.records, (key, count)
    print(f"\n{options.records:,} records of {options.size:,} bytes, {options.rounds} rounds")
    for clock, name in enumerate(("wall time", "processor time")):
        rates = {
            key: options.records / statistics.median(times[clock] for times in found)
            for key, found in seconds.items()
        }
        print_rates(name, rates)


def print_rates(clock: str, rates: dict[tuple[str, str], float]) -> None:
    print(f"\nper second of {clock}")
    print(f"{'files':12}{'reader':22}{'records/s':>12}{'of raw':>10}{'Stoker is':>12}")
    for (kind, name), rate in rates.items():
        of_raw = f"{rate / rates[kind, 'raw']:.2f}" if (kind, "raw") in rates else ""
        own = rates.get((kind, "Stoker"), rates["parquet", "Stoker"])  # rows of the same fields
        faster = "" if name == "Stoker" else f"{own / rate:.2f} ×"
        print(f"{kind:12}{name:22}{rate:12,.0f}{of_raw:>10}{faster:>12}", flush=True)


# Resuming


def resume_times(folder: Path, options: argparse.Namespace) -> None:
    after, size = options.resume, 100
    kinds = {"jsonl", "tar", "mds", "litdata"} - set(options.without)
    write(folder, after + 20_000, size, kinds)
    print(f"\nseconds from a new process state to the first record after {after:,} of {size} bytes")
    for name, measure in {
        "Stoker, JSON lines": lambda: resume_stoker(folder, "jsonl", after),
        "Stoker, tar": lambda: resume_stoker(folder, "tar", after),
        "Hugging Face, JSON lines": lambda: resume_hugging_face(folder, after),
        "WebDataset (reads again)": lambda: resume_by_reading(webdataset(folder), after),
        "MosaicML streaming": lambda: resume_stateful(mosaicml_dataset, folder, after),
        "LitData": lambda: resume_litdata(folder, after),
    }.items():
        if any(word in name.lower() for word in options.without):
            continue
        try:
            print(f"  {name:28}{measure():10.3f}", flush=True)
        except Exception as error:
            print(f"  {name:28}  {type(error).__name__}: {str(error)[:80]}", flush=True)


def resume_stoker(folder: Path, kind: str, after: int) -> float:
    from stoker import data

    stream = data.stream(folder / kind, shuffle=WINDOW, seed=1)
    state = {**stream.state_dict(), "outputs": after, "record": after}
    began = time.perf_counter()
    resumed = data.stream(folder / kind, shuffle=WINDOW, seed=1)
    resumed.load_state_dict(state)
    next(iter(resumed))
    return time.perf_counter() - began


def seek_times(folder: Path, position: int) -> None:
    """Print how long it takes to open a stream with an index and read one record far inside."""
    from stoker import data

    for part, numbers in parts(position + 100_000) if not (folder / "text").exists() else ():
        path = _file(folder, "text", part, "txt")
        path.write_text("".join(f"{number:019}\n" for number in numbers))
    data.stream(folder / "text")
    for shuffle in (False, WINDOW):
        found = [seek(folder / "text", shuffle, position) for _ in range(9)]
        wall, cpu = (statistics.median(times) * 1000 for times in zip(*found, strict=True))
        print(f"  seek to record {position:,}, shuffle={shuffle}: {wall:.1f} ms, {cpu:.1f} of CPU")


def seek(source: Path, shuffle: int, position: int) -> tuple[float, float]:
    from stoker import data

    began, cpu = time.perf_counter(), time.process_time()
    stream = data.stream(source, shuffle=shuffle)
    stream.load_state_dict({**stream.state_dict(), "outputs": position, "record": position})
    next(iter(stream))
    return time.perf_counter() - began, time.process_time() - cpu


def resume_hugging_face(folder: Path, after: int) -> float:
    """Resume without a shuffle buffer, whose contents a state does not include."""
    import datasets

    def make() -> Any:
        files = str(folder / "jsonl" / "*.jsonl")
        return datasets.load_dataset("json", data_files=files, streaming=True, split="train")

    found = make()
    for _ in islice(found, after):
        pass
    state = found.state_dict()
    began = time.perf_counter()
    resumed = make()
    resumed.load_state_dict(state)
    next(iter(resumed))
    return time.perf_counter() - began


def resume_by_reading(records: Iterator[Any], after: int) -> float:
    began = time.perf_counter()
    for _ in islice(records, after + 1):
        pass
    return time.perf_counter() - began


def resume_stateful(make: Callable[[Path], Any], folder: Path, after: int) -> float:
    dataset = make(folder)
    state = dataset.state_dict(after, from_beginning=True)
    del dataset
    began = time.perf_counter()
    resumed = make(folder)
    resumed.load_state_dict(state)
    next(iter(resumed))
    return time.perf_counter() - began


def resume_litdata(folder: Path, after: int) -> float:
    from litdata import StreamingDataLoader

    def make() -> Any:
        return StreamingDataLoader(litdata_dataset(folder), batch_size=1000, num_workers=0)

    loader = make()
    for _ in islice(loader, after // 1000):
        pass
    state = loader.state_dict()
    began = time.perf_counter()
    resumed = make()
    resumed.load_state_dict(state)
    next(iter(resumed))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="0 leaves out the throughput")
    parser.add_argument("--resume", type=int, default=1_000_000, help="0 leaves this part out")
    parser.add_argument("--seek", type=int, default=10_000_000, help="0 leaves this part out")
    parser.add_argument("--raw-only", action="store_true", help="compare with raw reading alone")
    parser.add_argument("--data", type=Path, help="keep the data in this folder")
    parser.add_argument("--without", action="append", default=[], choices=("mds", "litdata"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--env", type=Path, default=cache / "stoker" / ".venv-streams")
    parser.add_argument("--in-env", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.in_env:
        python = Path(sys.executable) if options.raw_only else environment(options.env)
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        sys.exit(subprocess.call([python, __file__, "--in-env", *sys.argv[1:]], env=env))
    folder = options.data or Path(tempfile.mkdtemp(prefix="stoker-streams-"))
    try:
        if options.rounds:
            throughput(folder / "throughput", options)
        if options.resume and not options.raw_only:
            resume_times(folder / "resume", options)
        if options.seek:
            seek_times(folder / "seek", options.seek)
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
