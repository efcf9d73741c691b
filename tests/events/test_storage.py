import pytest
import torch

from stoker.events import Cursor, EventStorage, History, Row, get_event_storage


def test_a_smoothed_name_reads_as_the_median_of_its_window():
    storage = EventStorage(window=3)
    for value in (100.0, 1.0, 5.0, torch.tensor(3.0)):
        storage.put_scalar("x", value)
    assert storage.readings() == {"x": 3.0}
    assert storage.history("x") == [1.0, 5.0, 3.0]
    last = storage.history("x")
    assert (last.latest(), last.median(2), last.median(3), last.avg(2)) == (3.0, 4.0, 3.0, 4.0)
    assert storage.histories() == {"x": last}
    assert storage.latest() == {"x": (3.0, 0)}


@pytest.mark.row("L06")
def test_two_hints_for_one_name_are_refused():
    storage = EventStorage()
    storage.put_scalar("x", 1.0)
    with pytest.raises(
        ValueError,
        match="'x' was put with smoothing_hint=True before and with smoothing_hint=False",
    ):
        storage.put_scalar("x", 2.0, smoothing_hint=False)


def test_storages_nest_and_the_innermost_is_found():
    with EventStorage() as outer:
        with EventStorage() as inner:
            assert get_event_storage() is inner
        assert get_event_storage() is outer


def test_names_may_be_scoped_and_the_scope_ends_with_an_error_too():
    storage = EventStorage()
    with pytest.raises(KeyError), storage.name_scope("a"), storage.name_scope("b"):
        storage.put_scalars(x=1.0, y=2.0)
        raise KeyError
    storage.put_scalar("z", 3.0)
    assert set(storage.latest()) == {"a/b/x", "a/b/y", "z"}


def test_a_reader_gets_what_it_has_not_read_under_the_step_it_was_put_at():
    storage, cursor = EventStorage(), Cursor()
    storage.step = 1
    storage.put_scalar("once", 1.0)
    storage.step = 2
    storage.put_scalar("often", 2.0)
    storage.put_scalar("often", 4.0)
    assert [(r.step, r.scalars) for r in storage.unread(cursor)] == [
        (1, {"once": 1.0}),
        (2, {"often": 3.0}),
    ]
    assert storage.unread(cursor) == []
    storage.put_scalar("often", 4.0)
    assert [(r.step, r.scalars) for r in storage.unread(cursor)] == [(2, {"often": 4.0})]


def test_a_gauge_is_read_only_when_someone_reads_and_once_per_step():
    asked = []
    storage, cursor = EventStorage(), Cursor()
    storage.gauge("g", lambda: asked.append(1) or 7.0)
    storage.gauge("nothing yet", lambda: None)
    storage.step = 1
    assert asked == []
    assert storage.unread(cursor)[0].scalars == {"g": 7.0}
    assert storage.unread(cursor) == []
    assert len(asked) == 1


def test_an_unknown_name_lists_what_there_is():
    storage = EventStorage()
    storage.put_scalar("x", 1.0)
    with pytest.raises(KeyError, match=r"no value was put under 'y' \(names: \['x'\]\)"):
        storage.history("y")


def test_the_state_comes_back_and_a_cursor_of_then_has_read_it():
    first, second = EventStorage(window=4), EventStorage(window=4)
    first.step = 9
    for value in range(6):
        first.put_scalar("x", float(value))
    first.put_scalar("y", torch.tensor(2.0), smoothing_hint=False)
    cursor = Cursor()
    first.unread(cursor)
    first.put_scalar("z", 5.0)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.readings() == first.readings()
    assert second.unread(cursor) == [Row(9, {"z": 5.0})]


def test_a_history_gives_series_rows_and_the_best_epoch():
    history = History([{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 1.0}, {"epoch": 3}])
    assert history["loss"] == [3.0, 1.0]
    assert history[0]["loss"] == 3.0
    assert history.best("loss", "min")["epoch"] == 2
    assert history.best("loss", "max")["epoch"] == 1
    with pytest.raises(KeyError, match=r"no epoch has 'lss' \(results: epoch, loss\)"):
        history["lss"]


def test_a_history_prints_as_a_table_with_gaps():
    history = History([{"epoch": 1, "lr": 0.001}, {"epoch": 2, "val/loss": 12345.6}])
    assert str(history).splitlines() == [
        "epoch        lr  val/loss",
        "    1  1.00e-03          ",
        "    2              12,346",
    ]
    assert str(History()) == "(no epoch was trained)"
