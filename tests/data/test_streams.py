import functools
import json
import operator
import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Trainer, data
from stoker.core.errors import DataError
from stoker.data import BatchFeeder, DataShard
from stoker.data.streams import cursor, formats
from stoker.data.streams.order import Order, permutation
from support.stream_data import (
    FORMATS,
    RANDOM_ACCESS,
    RECORDS,
    number_in,
    numbers,
    tokens_in,
    write_jsonl,
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(formats, "BLOCK_BYTES", 2000)
    monkeypatch.setattr("stoker.data.streams.tar.BLOCK_BYTES", 20_000)
    monkeypatch.setattr("stoker.data.streams.sources.HuggingFaceSource._ROWS", 20)
    monkeypatch.setattr("stoker.data.streams.readers.MIX_BLOCK", 1000)
    monkeypatch.setattr(cursor, "_CHUNK", 10)


@pytest.fixture(params=FORMATS)
def source(request, tmp_path):
    return FORMATS[request.param](tmp_path)


@pytest.fixture
def lines(tmp_path):
    return write_jsonl(tmp_path)


def dealt(parts):
    """Return what several processes yield, in the order in which it was dealt to them."""
    rounds = max(map(len, parts))
    return [part[n] for n in range(rounds) for part in parts if n < len(part)]


def lists(batches):
    return [batch.tolist() for batch in batches]


# Order


def test_each_record_comes_once_in_an_order_of_its_own_in_every_epoch(source):
    stream = numbers(source)
    first, second = list(stream), list(stream)
    assert sorted(first) == sorted(second) == list(range(RECORDS))
    assert first != second != sorted(second)
    assert list(numbers(source)) == first
    assert list(numbers(source, shuffle=False)) == list(range(RECORDS))


def test_another_seed_gives_another_order(lines):
    assert list(numbers(lines, seed=6)) != list(numbers(lines))


def test_the_order_is_the_same_for_ever(lines):
    # a change of the order would resume existing runs at wrong records
    assert permutation(8, 12345).tolist() == [0, 4, 2, 3, 5, 6, 1, 7]
    order = Order(np.array([3, 2, 4]), np.array([9, 9, 9]), 4, key=7)
    found = [(w.start, w.blocks.tolist(), w.records.tolist()) for w in map(order.window, (0, 8))]
    assert found == [(0, [0, 1], [1, 3, 0, 2, 4]), (5, [2], [1, 2, 3, 0])]


def test_windows_have_about_as_many_records_as_requested_and_cover_everything():
    counts = np.array([1, 5, 100, 7, 7, 7, 7, 2] * 10)
    order = Order(counts, counts * 10, 20, key=3)
    at, sizes = 0, []
    while at < len(order):
        start, stop = order.span(at)
        window = order.window(at)
        assert (window.start, window.stop, start) == (start, stop, at)
        assert sorted(window.records.tolist()) == list(range(stop - start))
        sizes.append(stop - start)
        at = stop
    assert at == counts.sum()
    assert max(sizes) < 20 + 100


# Workers and processes


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM_ACCESS)
def test_workers_do_not_change_the_order(name, tmp_path):
    source = FORMATS[name](tmp_path)
    expected = lists(numbers(source).batch(8))
    for workers in (1, 2, 4):
        assert lists(numbers(source, workers=workers).batch(8)) == expected


@pytest.mark.parametrize("kind", ["plain", "filter", "pack"])
def test_processes_share_the_same_sequence_of_batches(source, kind):
    def batches():
        stream = data.stream(source, shuffle=64, seed=5)
        if kind == "pack":
            return stream.map(tokens_in).pack(16, end=-1, pad=-2).batch(3)
        stream = stream.map(number_in)
        return (stream.filter(lambda n: n % 3) if kind == "filter" else stream).batch(8)

    expected = lists(batches())
    for processes in (2, 3):
        parts = [lists(batches().shard(rank, processes)) for rank in range(processes)]
        assert dealt(parts) == expected
    seen = [n for batch in expected for n in batch]
    if kind != "pack":
        assert sorted(seen) == [n for n in range(RECORDS) if kind == "plain" or n % 3]


@pytest.mark.parametrize("kind", ["plain", "filter", "pack"])
def test_each_sample_comes_once_when_the_number_of_processes_changes(source, kind):
    def batches(rank, processes):
        stream = data.stream(source, shuffle=64, seed=5)
        if kind == "pack":
            stream = stream.map(tokens_in).pack(16, end=-1, pad=-2)
        else:
            stream = stream.map(number_in).filter(lambda n: kind == "plain" or n % 3)
        return stream.batch(5).shard(rank, processes)

    expected = lists(batches(0, 1))
    found, state = [], None
    for processes, steps in ((2, 9), (3, 4), (1, None)):
        streams = [batches(rank, processes) for rank in range(processes)]
        parts = []
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
            iterator = iter(stream)
            count = steps if steps is not None else len(expected)
            parts.append([batch.tolist() for _, batch in zip(range(count), iterator, strict=False)])
        states = [json.dumps(stream.state_dict()) for stream in streams]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        found += dealt(parts)
    assert found == expected


# Resuming


@pytest.mark.parametrize("kind", ["plain", "filter", "pack"])
def test_any_position_resumes_with_the_rest_of_the_epoch_and_the_next_one(source, kind):
    def batches():
        stream = data.stream(source, shuffle=64, seed=5).map(number_in)
        if kind == "pack":
            tokens = stream.map(lambda n: [n] * (n % 40))
            return tokens.filter(lambda x: len(x) % 3).pack(16, end=-1).batch(3)
        return (stream.filter(lambda n: n % 3) if kind == "filter" else stream).batch(8)

    stream = batches()
    expected, states = [], [stream.state_dict()]
    for batch in stream:
        expected.append(batch.tolist())
        states.append(json.loads(json.dumps(stream.state_dict())))
    following = lists(stream)
    for at in (0, 1, len(states) // 2, len(states) - 1):
        other = batches()
        other.load_state_dict(states[at])
        assert lists(other) == expected[at:]
        assert lists(other) == following
        assert other.epoch == 2


def test_resuming_reads_one_window_and_nothing_before_it(lines, monkeypatch):
    stream = numbers(lines).batch(4)
    for _, _ in zip(range(100), stream, strict=False):
        state = stream.state_dict()
    read = []
    original = formats.open_range

    def counted(file, start, length):
        read.append(length)
        return original(file, start, length)

    monkeypatch.setattr(formats, "open_range", counted)
    other = numbers(lines).batch(4)
    other.load_state_dict(state)
    next(iter(other))
    assert 0 < sum(read) < 12_000  # of 40,000 bytes


def test_a_position_far_inside_is_found_without_reading_what_is_before(tmp_path):
    # the index of a hundred million records, made by hand
    counts = np.full(100_000, 1000)
    order = Order(counts, counts * 100, 8192, key=1)
    start, stop = order.span(99_999_999)
    assert start <= 99_999_999 < stop == 100_000_000


def test_a_position_saved_with_another_batch_size_is_refused(lines):
    stream = numbers(lines).batch(8)
    next(iter(stream))
    with pytest.raises(ValueError, match="same batch size"):
        numbers(lines).batch(5).load_state_dict(stream.state_dict())


# Functions


def draw(number):
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
    return (number, *drawn)


def test_random_numbers_depend_on_the_position_and_leave_the_generators_alone(lines):
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate()
    stream = numbers(lines).map(draw)
    expected = list(stream)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert len({drawn for _, *drawn in map(tuple, expected) for drawn in drawn}) == 3 * RECORDS
    torch.manual_seed(2)
    part = numbers(lines).map(draw).shard(1, 3)
    assert list(part) == expected[1::3]


def test_a_function_that_rarely_draws_gives_the_same_numbers_from_any_start(lines):
    def rarely(number):
        return random.random() if number == 300 else float(number)

    stream = numbers(lines).map(rarely)
    expected = list(stream)
    other = numbers(lines).map(rarely)
    iterator = iter(other)
    for _ in range(123):
        next(iterator)
    resumed = numbers(lines).map(rarely)
    resumed.load_state_dict(other.state_dict())
    assert list(resumed) == expected[123:]


def test_random_numbers_in_collate_are_those_of_the_batch(lines):
    def noisy(values):
        return torch.tensor(values) + torch.rand(len(values))

    expected = lists(numbers(lines).batch(8, collate=noisy))
    second = numbers(lines).batch(8, collate=noisy).map(lambda batch: batch * 1).shard(1, 2)
    assert lists(second) == expected[1::2]


def test_a_function_with_a_generator_or_a_counter_of_its_own_is_refused(lines):
    generator = np.random.default_rng(1)
    with pytest.raises(ValueError, match="generator"):
        numbers(lines).map(lambda n: generator.random())
    with pytest.raises(TypeError, match="function"):
        numbers(lines).map(3)


def test_steps_in_an_order_that_makes_no_sense_are_refused(lines):
    batched = numbers(lines).batch(2)
    for wrong in (
        lambda: batched.batch(2),
        lambda: batched.pack(2),
        lambda: batched.filter(bool),
        lambda: numbers(lines).pack(4).pack(4),
        lambda: data.mix([batched], [1.0]),
    ):
        with pytest.raises(ValueError, match=r"comes before|twice"):
            wrong()


# Packing


def test_packing_keeps_every_token_in_order(source):
    stream = data.stream(source, shuffle=64, seed=5).map(tokens_in)
    tokens = [token for record in stream for token in [*record, -1]]
    sequences = data.stream(source, shuffle=64, seed=5).map(tokens_in).pack(13, end=-1, pad=-2)
    packed = [sequence.tolist() for sequence in sequences]
    joined = functools.reduce(operator.iadd, packed, [])
    assert {len(sequence) for sequence in packed} == {13}
    assert joined[: len(tokens)] == tokens
    assert set(joined[len(tokens) :]) <= {-2}
    without = data.stream(source, shuffle=64, seed=5).map(tokens_in).pack(13, end=-1)
    assert [x.tolist() for x in without] == packed[: len(tokens) // 13]


def test_what_cannot_be_packed_is_named(lines):
    with pytest.raises(DataError, match="token ids"):
        list(data.stream(lines).pack(4))
    packed = data.stream(lines).map(lambda r: {"ids": [r["number"]]}).pack(4, field="ids")
    assert next(iter(packed)).tolist() == [0, 1, 2, 3]


# Mixtures


def test_a_mixture_has_its_proportions_and_repeats_nothing_within_a_pass_of_each_part(lines):
    few = numbers(lines).filter(lambda n: True)
    negative = numbers(lines, seed=9).map(lambda n: -1 - n)
    mixed = data.mix([few, negative], [3, 1], seed=2)
    found = list(mixed)
    from_first = [n for n in found if n >= 0]
    assert sorted(from_first) == list(range(RECORDS))
    assert len(found) == pytest.approx(RECORDS * 4 / 3, rel=0.05)
    second = [n for n in [*found, *mixed, *mixed, *mixed] if n < 0][:RECORDS]
    assert len(set(second)) == RECORDS
    assert from_first == list(numbers(lines))


def test_a_mixture_until_all_have_ended_and_of_a_fixed_length(lines):
    one, other = numbers(lines), numbers(lines, seed=9).map(lambda n: -1 - n)
    found = list(data.mix([one, other], [3, 1], until="all"))
    assert sorted(n for n in found if n < 0) == list(range(-RECORDS, 0))
    assert found[-1] < 0
    assert len(list(data.mix([one, other], [3, 1], until=123))) == 123
    exact = list(data.mix([one, other], [3, 1], until=3000))
    assert sum(n < 0 for n in exact) == 750


def test_a_mixture_resumes_and_is_shared(lines):
    def mixed():
        parts = [numbers(lines), numbers(lines, seed=9).map(lambda n: -1 - n)]
        return data.mix(parts, [0.9, 0.1], until=2000).batch(7)

    stream = mixed()
    expected = lists(stream) + lists(stream)
    stream = mixed()
    stream.set_epoch(1)
    iterator = iter(stream)
    found = [next(iterator).tolist() for _ in range(40)]
    parts = []
    for rank in range(3):
        other = mixed().shard(rank, 3)
        other.load_state_dict(stream.state_dict())
        parts.append(lists(other))
    assert found + dealt(parts) == expected[-(-2000 // 7) :]


def test_wrong_weights_are_refused(lines):
    stream = numbers(lines)
    for weights in ([1], [1, 0], [1, -1], [1, float("nan")], [1, 1e-9]):
        with pytest.raises(ValueError, match="weight"):
            data.mix([stream, stream], weights)


# Corrupt records


@pytest.fixture
def corrupt(tmp_path):
    good = [json.dumps({"number": n}) for n in range(100)]
    good[41] = '{"number": 41'
    good[77] = '{"number": oops}'
    (tmp_path / "some.jsonl").write_text("\n".join(good) + "\n")
    return tmp_path


def test_a_corrupt_record_is_named_by_file_and_offset_when_it_is_reached(corrupt):
    offset = (corrupt / "some.jsonl").read_bytes().index(b'{"number": 41\n')
    stream, seen = numbers(corrupt, shuffle=False), []
    with pytest.raises(DataError, match=rf"some\.jsonl' at byte {offset} is corrupt: JSON"):
        seen.extend(stream)
    assert seen == list(range(41))


def test_skipped_records_are_counted_the_same_after_a_resume(corrupt, caplog):
    expected = [n for n in list(range(100)) if n not in (41, 77)]
    stream = numbers(corrupt, shuffle=False, on_error="skip").batch(10)
    iterator = iter(stream)
    for _ in range(5):
        next(iterator)
    state = stream.state_dict()
    assert stream.skipped == 1
    assert "byte" in state["named"][0]
    other = numbers(corrupt, shuffle=False, on_error="skip").batch(10)
    other.load_state_dict(state)
    assert [n for batch in other for n in batch.tolist()] == expected[50:]
    assert other.skipped == 2
    assert [n for batch in other for n in batch.tolist()] == expected
    assert other.skipped == 4
    assert [record.message.startswith("skipped") for record in caplog.records] == [True] * 4


def test_a_function_that_fails_names_the_record_and_shows_its_traceback(lines):
    def fail(number):
        return 1 // (number - 5)

    with pytest.raises(DataError, match=r"0\.jsonl' at byte \d+: ZeroDivisionError") as error:
        list(numbers(lines).map(fail))
    assert "in fail" in error.value.__notes__[0]
    assert len(list(numbers(lines, on_error="skip").map(fail))) == RECORDS - 1


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_blocks_of_short_lines_have_a_limited_number_of_them(tmp_path, monkeypatch, end):
    monkeypatch.setattr(formats, "BLOCK_LINES", 8)
    for count in (1, 7, 8, 9, 16, 17, 100):
        lines = [str(n) for n in range(count)]
        (tmp_path / "a.txt").write_text("\n".join(lines) + end)
        stream = data.stream(tmp_path / "a.txt")
        assert list(stream) == lines + [""] * (end == "\n\n")
        assert max(stream.plan.reader.source.counts) <= 9


def test_text_that_is_not_utf8_is_a_corrupt_record(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\xff\xfe\nthree\n\nfive")
    with pytest.raises(DataError, match="at byte 8 is corrupt: not UTF-8"):
        list(data.stream(tmp_path))
    assert list(data.stream(tmp_path, on_error="skip")) == ["one", "three", "", "five"]


def test_a_shard_that_is_cut_off_is_refused_or_read_as_far_as_it_is(tmp_path):
    FORMATS["webdataset"](tmp_path)
    path = tmp_path / "1.tar"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"1\.tar' cannot be read from byte \d+: .*cut"):
        numbers(tmp_path)
    found = list(numbers(tmp_path, on_error="skip", shuffle=False))
    assert RECORDS * 2 // 3 < len(found) < RECORDS
    assert len(set(found)) == len(found)


def test_a_damaged_row_group_is_named_or_skipped(tmp_path):
    FORMATS["parquet"](tmp_path)
    path = tmp_path / "1.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"1\.parquet' at row \d+ of row group 0 is corrupt"):
        list(numbers(tmp_path))
    assert len(list(numbers(tmp_path, on_error="skip"))) == RECORDS - 50


# The index


def test_the_index_is_read_from_its_cache_and_only_new_files_are_scanned(lines, monkeypatch):
    numbers(lines)
    assert (lines / ".stoker-index" / "jsonl.index").is_file()
    scanned = []
    scan = formats.TextFormat.scan
    monkeypatch.setattr(
        formats.TextFormat, "scan", lambda self, *args: scanned.append(args[0]) or scan(self, *args)
    )
    numbers(lines)
    assert scanned == []
    (lines / "new.jsonl").write_text('{"number": 7000}\n\n  \n{"number": 7001}')
    assert max(numbers(lines)) == 7001
    assert [file.name for file in scanned] == ["new.jsonl"]


def test_a_damaged_cache_is_built_again(lines, caplog):
    expected = list(numbers(lines))
    cache = lines / ".stoker-index" / "jsonl.index"
    content = bytearray(cache.read_bytes())
    content[-3] ^= 1
    cache.write_bytes(content)
    assert list(numbers(lines)) == expected
    assert "checksum" in caplog.text


def test_an_index_beside_data_that_cannot_be_written_is_kept_in_the_cache_folder(
    lines, tmp_path_factory, monkeypatch
):
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    (lines / ".stoker-index").write_text("a file, so that no folder of this name can be made")
    numbers(lines)
    assert len(list((home / "stoker" / "indexes").iterdir())) == 1
    own = tmp_path_factory.mktemp("own")
    numbers(lines, cache=own)
    assert len(list(own.iterdir())) == 1


def test_changed_data_is_refused_or_continued_deliberately(lines, caplog):
    stream = numbers(lines).batch(8)
    next(iter(stream))
    state = stream.state_dict()
    path = lines / "1.jsonl"
    path.write_text(path.read_text().replace('"text": "', '"text": "y'))
    (lines / "3.jsonl").write_text('{"number": 9}\n')
    with pytest.raises(DataError, match=r"'3\.jsonl' was added, '1\.jsonl' was rewritten"):
        numbers(lines).batch(8).load_state_dict(state)
    other = numbers(lines, on_change="continue").batch(8)
    other.load_state_dict(state)
    assert "may come twice" in caplog.text
    assert len(list(other)) == -(-701 // 8) - 1


def test_a_file_that_changes_while_a_stream_reads_it_is_reported(lines):
    records = iter(numbers(lines))
    next(records)
    for path in lines.glob("*.jsonl"):
        path.write_text(path.read_text().replace("x", "y"))
    with pytest.raises(DataError, match="has changed since the stream was made"):
        list(records)


def test_a_position_in_another_order_is_refused(lines):
    stream = numbers(lines).batch(8)
    next(iter(stream))
    with pytest.raises(ValueError, match="seed 5, and is shuffle 64, seed 6"):
        numbers(lines, seed=6).batch(8).load_state_dict(stream.state_dict())


def test_wrong_sources_and_options_are_named(lines, tmp_path):
    wrong = [
        ({"source": lines / "nothing.jsonl"}, "there is no"),
        ({"source": str(lines / "*.txt")}, "no file matches"),
        ({"source": []}, "names no files"),
        ({"source": [lines, lines / "1.jsonl"]}, "more than once"),
        ({"source": lines, "format": "csv"}, "format must be"),
        ({"source": lines, "columns": ["a"]}, "columns are for Parquet"),
        ({"source": lines, "shuffle": -1}, "shuffle"),
        ({"source": lines, "workers": -1}, "workers"),
        ({"source": lines, "on_error": "ignore"}, "'raise' or 'skip'"),
        ({"source": lines, "on_change": "ignore"}, "'refuse' or 'continue'"),
    ]
    for options, message in wrong:
        with pytest.raises((ValueError, OSError, TypeError), match=message):
            data.stream(**options)
    (lines / "a.json.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="compressed"):
        data.stream(lines / "a.json.gz")
    (lines / "a.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="several formats"):
        data.stream(lines)
    with pytest.raises(DataError, match="cannot be read"):
        data.stream(lines / "a.parquet")
    with pytest.raises(TypeError, match="path"):
        data.stream(3)


def test_columns_of_parquet_are_chosen(tmp_path):
    source = FORMATS["parquet"](tmp_path)
    assert set(next(iter(data.stream(source, columns=["text"])))) == {"text"}
    with pytest.raises(ValueError, match="no column 'txt': it has number, text"):
        data.stream(source, columns=["txt"])


# Loaders and training


def test_a_stream_in_a_data_loader_is_read_without_workers_or_refused(lines):
    expected = lists(numbers(lines).batch(8))
    assert lists(DataLoader(numbers(lines).batch(8), batch_size=None)) == expected
    assert lists(DataLoader(numbers(lines).filter(lambda n: True), batch_size=8)) == expected


@pytest.mark.process
def test_a_stream_cannot_be_read_by_the_workers_of_a_data_loader(lines):
    loader = DataLoader(numbers(lines).batch(8), batch_size=None, num_workers=1)
    with pytest.raises(RuntimeError, match="pass workers= to"):
        next(iter(loader))


def test_a_feeder_needs_batches_and_knows_their_number(lines):
    with pytest.raises(ValueError, match=r"call batch\(size\)"):
        BatchFeeder(numbers(lines))
    assert BatchFeeder(numbers(lines).batch(8)).steps == 88
    assert BatchFeeder(numbers(lines).filter(bool).batch(8)).steps is None
    assert data.total_steps(numbers(lines).batch(8, drop_last=True), epochs=2) == 174


@pytest.mark.parametrize("filtered", [False, True])
def test_feeders_of_several_ranks_pad_and_resume_with_another_number(lines, filtered):
    def stream():
        found = numbers(lines)
        return (found.filter(lambda n: n != 3) if filtered else found).batch(8)

    def feeders(count):
        return [BatchFeeder(stream(), 2, shard=DataShard(rank, count)) for rank in range(count)]

    def step(pairs):
        windows = [next(iterator, []) for _, iterator in pairs]
        seen = []
        for (feeder, _), window in zip(pairs, windows, strict=True):
            real = window[: len(window) - feeder.padding]
            seen += [n for batch in real for n in batch.tolist()]
        sizes = {
            feeder.global_size([len(batch) for batch in window])
            for (feeder, _), window in zip(pairs, windows, strict=True)
            if window
        }
        assert sizes <= {len(seen)}
        assert len({len(window) for window in windows}) == 1
        return seen

    found, state = [], None
    for count, steps in ((2, 7), (3, 5), (1, 3), (3, 50)):
        some = feeders(count)
        for feeder in some:
            if state is not None:
                feeder.load_state_dict(state)
        pairs = [(feeder, iter(feeder)) for feeder in some]
        for _ in range(steps):
            found += step(pairs)
        state = some[0].state_dict()
    expected = [n for n in range(RECORDS) if not (filtered and n == 3)]
    assert sorted(found) == expected


def test_every_process_reads_all_of_a_stream_that_is_not_sharded(lines):
    stream = data.unsharded(numbers(lines).batch(8))
    feeder = BatchFeeder(stream, shard=DataShard(1, 2))
    assert feeder.batches == 88


def as_batch(values):
    x = torch.tensor(values, dtype=torch.float32)[:, None] / RECORDS
    return x, 2 * x


def trained(source, run_dir, steps, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    engine = Engine(model, torch.optim.Adam(model.parameters()), nn.MSELoss())
    stream = numbers(source, **options).filter(lambda n: n % 7).batch(16, collate=as_batch)
    trainer = Trainer(engine, run_dir=run_dir)
    trainer.fit(stream, numbers(source).batch(50, collate=as_batch), max_steps=steps)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_fit_that_was_stopped_within_an_epoch_ends_at_the_same_bits(source, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    expected = trained(source, runs / "one", 60)
    trained(source, runs / "two", 17)
    trained(source, runs / "two", 51)
    assert torch.equal(trained(source, runs / "two", 60), expected)


def test_the_identity_of_a_run_includes_the_data_and_the_functions(lines, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    trained(lines, runs / "run", 5)
    trained(lines, runs / "run", 5, workers=0)
    assert [path.name for path in runs.iterdir()] == ["run"]
    trained(lines, runs / "run", 5, seed=8)
    path = lines / "1.jsonl"
    os.utime(path, ns=(1, 1))
    trained(lines, runs / "run", 5)
    assert sorted(path.name for path in runs.iterdir()) == ["run", "run-2", "run-3"]
