import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.data import BatchFeeder


@given(
    st.integers(1, 40), st.integers(1, 9), st.sampled_from(["flush", "drop"]), st.integers(1, 50)
)
def test_windows_hold_every_batch_in_order(count, accumulate, last_window, limit):
    used = min(count, limit)
    if last_window == "drop" and used < accumulate:
        with pytest.raises(ValueError, match=f"too few for a step of {accumulate}"):
            BatchFeeder(range(count), accumulate, last_window=last_window, limit=limit)
        return
    feeder = BatchFeeder(range(count), accumulate, last_window=last_window, limit=limit)
    for _ in range(2):
        windows = list(feeder)
        flat = [batch for window in windows for batch in window]
        full = used - used % accumulate
        assert flat == list(range(used if last_window == "flush" else full))
        assert all(len(window) == accumulate for window in windows[:-1])
        assert len(windows) == feeder.steps
        assert feeder.exhausted
        assert feeder.position.batches == len(flat)


def test_it_reads_no_batch_ahead():
    read = []

    class Source:
        def __iter__(self):
            for number in range(100):
                read.append(number)
                yield number

    for window in BatchFeeder(Source(), 2, limit=10):
        if window == [2, 3]:
            break
    assert read == [0, 1, 2, 3]


def test_a_loader_that_yields_more_than_its_length_is_read_to_its_end():
    class Modest:
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(range(5))

    assert list(BatchFeeder(Modest())) == [[0], [1], [2], [3], [4]]


def test_exhausted_is_known_with_the_last_window_if_there_is_a_length():
    feeder = BatchFeeder(range(3))
    seen = [feeder.exhausted for _ in feeder]
    assert seen == [False, False, True]
    unknown = BatchFeeder(n for n in range(3))
    assert [unknown.exhausted for _ in unknown] == [False, False, False]
    assert unknown.exhausted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"accumulate": 0}, "accumulate must be an integer from 1, got 0"),
        ({"last_window": "keep"}, "'flush' or 'drop', got 'keep'"),
        ({"limit": 0.0}, "the limit on train_loader"),
    ],
)
def test_invalid_options_are_rejected(options, text):
    with pytest.raises(ValueError, match=text):
        BatchFeeder(range(4), **options)


def test_a_fraction_of_a_loader_without_length_is_rejected():
    with pytest.raises(
        ValueError, match=r"limit on train_loader is a fraction \(0.5\), but train_loader has no"
    ):
        BatchFeeder((n for n in range(4)), limit=0.5)
