"""State of user code without a `state_dict`: what is restored, and that it stays shared."""

import contextvars
import copy
import csv
import enum
import json
import multiprocessing as mp
import os
import random
import re
import sqlite3
import threading
import weakref
from argparse import Namespace
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from io import StringIO
from pathlib import Path, PureWindowsPath
from queue import Queue, SimpleQueue
from types import MappingProxyType, SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from stoker import Engine, Trainer, hooks
from stoker.checkpoint.format.state_tree import flatten, unflatten
from stoker.core.batch_list import BatchListState, leaves_of
from stoker.core.bytecode import facts_of
from stoker.core.errors import CheckpointError
from stoker.core.user_state import UserState
from stoker.resume.run_state import RunState


def test_containers_inside_containers_stay_shared_when_they_are_restored():
    inner, queue = [1], deque([[1]])
    first = queue[0]
    owner = SimpleNamespace(table={"inner": inner}, queue=queue)
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    inner.append(2)
    first.append(2)
    saved = state.capture()
    inner[:] = first[:] = [9, 9, 9]
    state.restore(saved)
    assert owner.table["inner"] is inner
    assert owner.queue[0] is first
    assert inner == first == [1, 2]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0j, complex(1.5, -2.0)),
        (None, torch.Size([2, 3])),
        ({}, {(1, "a"): [1.0, 2.0], "b": {3: (4,)}}),
        ({1}, {(1, 2), (3, frozenset({4}))}),
        (deque([0], 3), deque([1, 2, 3], 3)),
        (Pair(0, 0), Pair(1, [2])),
        ([], list(range(1000))),
        ({}, {number: number / 7 for number in range(100)}),
        ([np.zeros(2)], [np.array([1, 2], np.int8), np.float32(0.1)]),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.ones(3)),
    ],
    ids=str,
)
def test_a_value_of_any_kind_comes_back_from_a_checkpoint(before, after):
    owner = SimpleNamespace(value=before)
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    owner.value = after
    tensors, values = flatten(state.capture())
    shown = repr(after)
    resumed = SimpleNamespace(value=before)
    state = UserState(lambda: [("sampler", resumed)])
    state.begin()
    state.restore(unflatten(tensors, json.loads(json.dumps(values))))
    assert repr(resumed.value) == shown
    assert type(resumed.value) is type(after)


class Counting(type):
    """Counts the passes of its classes, for all of them."""

    passes = 0


class Counted(metaclass=Counting):
    count = 0


class Mixed:
    """Counts in an object, next to it in containers, and behind weak references."""

    def __init__(self):
        other = Counted()
        self.kept = [other]
        self.mixed_list, self.mixed_dict = [0, other], {"count": 0, "other": other}
        self.by_object, self.by_tuple = {other: 0}, {(1, "a"): Counted()}
        self.weak, self.by_weak = weakref.ref(other), weakref.WeakKeyDictionary({other: 0})

    def change(self, by):
        other = self.weak()
        self.mixed_list[0] += by
        self.mixed_dict["count"] += by
        self.by_object[other] += by
        self.by_tuple[1, "a"].count += by
        self.by_weak[other] += by
        other.count += by

    def counts(self):
        other = self.weak()
        mixed = [self.mixed_list[0], self.mixed_dict["count"]]
        return [*mixed, self.by_object[other], self.by_tuple[1, "a"].count, self.by_weak[other]]


def test_numbers_next_to_objects_and_under_objects_as_keys_are_restored():
    first, second = Mixed(), Mixed()
    state = UserState(lambda: [("dataset", first)])
    state.begin()
    first.change(3)
    tensors, values = flatten(state.capture())
    state = UserState(lambda: [("dataset", second)])
    state.begin()
    state.restore(unflatten(tensors, json.loads(json.dumps(values))))
    assert second.counts() == first.counts() == [3] * 5
    assert second.weak().count == 3


class Views:
    """Sees counts that others keep only through proxies, and one that its metaclass keeps."""

    def __init__(self, counted, counts):
        self.proxy, self.views = weakref.proxy(counted), (MappingProxyType(counts),)


def test_what_is_behind_proxies_and_what_a_metaclass_counts_is_restored(monkeypatch):
    monkeypatch.setattr(Counting, "passes", 0)
    (one, ones), (two, twos) = [(Counted(), {"n": 0, "seen": []}) for _ in range(2)]
    state = UserState(lambda: [("dataset", Views(one, ones))])
    state.begin()
    one.count, Counting.passes = 3, 7
    ones.update(n=5, seen=[1])
    saved = copy.deepcopy(state.capture())
    Counting.passes = 0
    state = UserState(lambda: [("dataset", Views(two, twos))])
    state.begin()
    state.restore(saved)
    assert (two.count, twos, Counting.passes) == (3, {"n": 5, "seen": [1]}, 7)


def test_a_proxy_of_an_object_that_is_gone_is_no_state():
    views = Views(Counted(), {})
    state = UserState(lambda: [("dataset", views)])
    state.begin()
    assert state.capture() == []


class CountingSGD(torch.optim.SGD):
    """Keeps what it counts outside of its state."""

    def __init__(self, parameters, lr, inner=None):
        super().__init__(parameters, lr)
        self._updates, self.inner = 0, inner

    def step(self, closure=None):
        self._updates += 1
        return super().step(closure)


class SavingSGD(CountingSGD):
    """Saves it itself."""

    def state_dict(self):
        return super().state_dict() | {"updates": self._updates}


def roots_of_optimizer(optimizer):
    model = nn.Linear(1, 1)
    made = optimizer(model.parameters(), 0.1)
    trainer = Trainer(Engine(model, made, nn.MSELoss()), [])
    return made, trainer._user_state


def test_what_an_optimizer_counts_outside_of_its_state_is_restored():
    optimizer, state = roots_of_optimizer(CountingSGD)
    state.begin()
    optimizer.step()
    saved = state.capture()
    again, state = roots_of_optimizer(CountingSGD)
    state.begin()
    state.restore(saved)
    assert again._updates == 1


@pytest.mark.parametrize("kind", [SavingSGD, torch.optim.Adam])
def test_an_optimizer_that_saves_itself_is_not_searched(kind):
    optimizer, state = roots_of_optimizer(kind)
    state.begin()
    optimizer.step()
    assert state.capture() == []


def test_an_optimizer_within_an_optimizer_that_does_not_save_it_is_reported(caplog):
    other = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    _, state = roots_of_optimizer(lambda held, lr: CountingSGD(held, lr, inner=other))
    state.begin()
    state.report_unsavable()
    assert "optimizer.inner (Adam) changes during training and cannot be saved" in caplog.text


def test_a_checkpoint_without_state_of_user_code_is_refused(tmp_path, monkeypatch):
    own = RunState.own

    def without(self, feeder):
        return {name: one for name, one in own(self, feeder).items() if name != "user_state"}

    def fit(epochs):
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
        trainer = Trainer(engine, [hooks.Checkpoint("1ep")], run_dir=tmp_path / "run", seed=0)
        trainer.fit([(torch.ones(2, 1), torch.ones(2, 1))], epochs=epochs)

    monkeypatch.setattr(RunState, "own", without)
    fit(1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="it has no state of user code"):
        fit(2)


def batches(count: int = 100) -> list[tuple[Tensor, int]]:
    return [(torch.full((2,), float(number)), number) for number in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[7][0].add_(1),
        lambda data: data.__setitem__(7, (data[7][0].clone(), 7)),
        lambda data: data.__setitem__(7, (data[7][0], 8)),
        lambda data: data.append(data[0]),
        lambda data: data.reverse(),
    ],
)
def test_a_change_in_a_long_list_of_batches_is_saved_and_restored(change):
    owner = SimpleNamespace(data=batches())
    state = UserState(lambda: [("dataset", owner)])
    state.begin()
    assert state.capture() == []
    change(owner.data)
    expected = [(x.clone(), y) for x, y in owner.data]
    saved = state.capture()
    owner.data[:] = batches()
    state.restore(saved)
    assert [y for _, y in owner.data] == [y for _, y in expected]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(owner.data, expected, strict=True))


def test_a_long_list_that_changed_after_the_save_is_reported(caplog):
    owner = SimpleNamespace(data=batches())
    state = UserState(lambda: [("dataset", owner)])
    state.begin()
    saved = state.capture()
    owner.data[3][0].zero_()
    with caplog.at_level("WARNING", logger="stoker"):
        state.restore(saved)
    assert "dataset.data (list) changes during training and cannot be saved" in caplog.text


def test_the_state_of_a_list_of_batches_keeps_no_tensor_alive():
    data = [torch.zeros(2) for _ in range(100)]
    state = BatchListState(data, leaves_of(data))
    alive = weakref.ref(data[0])
    data[0] = torch.zeros(2)
    assert alive() is None
    assert state != BatchListState(data, leaves_of(data))


def test_lists_of_batches_in_two_processes_have_the_same_digest_if_their_content_is_the_same():
    first, second = (UserState(lambda: [("dataset", batches())]) for _ in range(2))
    assert first.digests() == second.digests()


class Holder:
    """An object of a user, with a value of any kind."""

    def __init__(self, value):
        self.value = value


class Labels(torch.Tensor):
    """A tensor of a class of its own."""


class Count(int):
    """A number of a class of its own."""


def outcome(make, change, read, caplog):
    """Return whether a value is as it was after a save and a restore in another object."""
    one, two = Holder(make()), Holder(make())
    first, second = (UserState(lambda o=o: [("dataset", o)]) for o in (one, two))
    first.begin()
    assert first.capture() == []
    change(one)
    saved = copy.deepcopy(first.capture())
    second.begin()
    second.restore(saved)
    if "cannot be saved" in caplog.text:
        return "reported"
    return "exact" if str(read(two.value)) == str(read(one.value)) else "silent"


def decayed(holder):
    for _ in range(3):
        holder.value.step(1.0)


def plateau():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)


def masked():
    return np.ma.array([1.0, 2.0, 3.0], mask=[True, False, False])


def thread_local(**values):
    local = threading.local()
    vars(local).update(values)
    return local


def database():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE seen (row)")
    return connection


def nested():
    found = {"n": 0}
    for _ in range(12):
        found = SimpleNamespace(inner=found)
    return found


def innermost(value):
    while isinstance(value, SimpleNamespace):
        value = value.inner
    return value


def replaced(value):
    return lambda holder: setattr(holder, "value", value)


SAVED = {
    "Value": (lambda: mp.Value("i", 0), lambda h: setattr(h.value, "value", 5), lambda v: v.value),
    "Array": (lambda: mp.Array("d", 3), lambda h: h.value.__setitem__(0, 5.0), list),
    "RawArray": (lambda: mp.RawArray("i", 3), lambda h: h.value.__setitem__(0, 5), list),
    "bytearray": (lambda: bytearray(3), lambda h: h.value.append(5), bytes),
    "array": (lambda: array("i", [0, 0]), lambda h: h.value.append(5), list),
    "OrderedDict": (OrderedDict, lambda h: h.value.update(b=1, a=2), dict),
    "UserDict": (UserDict, lambda h: h.value.update(a=1), dict),
    "ChainMap": (ChainMap, lambda h: h.value.update(a=1), dict),
    "Queue": (Queue, lambda h: h.value.put(3), lambda v: list(v.queue)),
    "Namespace": (lambda: Namespace(n=0), lambda h: setattr(h.value, "n", 3), lambda v: v.n),
    "SeedSequence": (
        lambda: np.random.SeedSequence(0),
        lambda h: h.value.spawn(2),
        lambda v: v.spawn(1)[0].spawn_key,
    ),
    "PCG64": (lambda: np.random.PCG64(0), lambda h: h.value.random_raw(3), lambda v: v.state),
    "scheduler": (plateau, decayed, lambda v: (v.best, v.num_bad_epochs)),
    "Parameter": (
        lambda: torch.nn.Parameter(torch.zeros(2)),
        lambda h: h.value.data.add_(1),
        lambda v: v.tolist(),
    ),
    "masked array": (masked, lambda h: h.value.__setitem__(1, np.ma.masked), repr),
    "a list of masked arrays": (
        lambda: [masked()],
        lambda h: h.value[0].__setitem__(1, np.ma.masked),
        repr,
    ),
    "thread-local": (threading.local, lambda h: setattr(h.value, "n", 3), lambda v: v.n),
    "a list in a thread-local": (
        lambda: thread_local(seen=[]),
        lambda h: h.value.seen.append(3),
        lambda v: v.seen,
    ),
    "Path": (lambda: Path("a"), replaced(Path("b")), str),
    "date": (lambda: date(2020, 1, 1), replaced(date(2021, 1, 1)), str),
    "datetime": (lambda: datetime(2020, 1, 1), replaced(datetime(2021, 1, 1, 5)), str),
    "Decimal": (lambda: Decimal(1), replaced(Decimal("2.50")), str),
    "range": (lambda: range(3), replaced(range(1, 9, 2)), list),
    "twelve levels": (nested, lambda h: innermost(h.value).update(n=4), innermost),
    "the 150th object": (
        lambda: [SimpleNamespace(n=0) for _ in range(200)],
        lambda h: setattr(h.value[150], "n", 4),
        lambda v: v[150].n,
    ),
}

REPORTED = {
    "DataFrame": (lambda: pd.DataFrame({"w": [1.0]}), lambda h: h.value.__setitem__("w", [2.0])),
    "SobolEngine": (lambda: torch.quasirandom.SobolEngine(2), lambda h: h.value.draw(3)),
    "sparse": (lambda: torch.eye(2).to_sparse(), lambda h: h.value._values().mul_(2)),
    "object array": (
        lambda: np.array([{}, {}], dtype=object),
        lambda h: h.value[0].update(a=1),
    ),
    "a database": (database, lambda h: h.value.execute("INSERT INTO seen VALUES (1)")),
    "StringIO": (lambda: StringIO("abc"), lambda h: h.value.read(2)),
    "Timestamp": (lambda: pd.Timestamp(0), replaced(pd.Timestamp(1))),
    "datetime with a zone": (
        lambda: datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")),
        replaced(datetime(2021, 1, 1, tzinfo=ZoneInfo("UTC"))),
    ),
    "a subclass of Tensor": (
        lambda: torch.zeros(2).as_subclass(Labels),
        lambda h: h.value.add_(1),
    ),
    "a subclass of int": (lambda: Count(1), replaced(Count(2))),
    "PureWindowsPath": (lambda: PureWindowsPath("a"), replaced(PureWindowsPath("b"))),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_value_of_a_library_is_saved_and_restored(name, caplog):
    assert outcome(*SAVED[name], caplog) == "exact"


@pytest.mark.parametrize(
    "inner",
    [
        Counter("ab"),
        OrderedDict(b=1, a=2),
        defaultdict(int, x=1),
        defaultdict(list, x=[1]),
        Counter(range(100)),
    ],
    ids=lambda one: f"{type(one).__name__}-{len(one)}",
)
def test_a_dict_of_another_kind_within_a_container_is_restored_as_one(caplog, inner):
    change = lambda holder: holder.value.update(a=copy.copy(inner))
    assert outcome(dict, change, repr, caplog) == "exact"


@pytest.mark.parametrize(
    "value",
    [3, 0.5, "x", b"x", (1, 2), [1], {"a": 1}, np.float32(2), Path("x"), Decimal(2), range(3)],
    ids=repr,
)
def test_a_value_that_was_none_at_first_is_saved_and_restored(value, caplog):
    assert outcome(lambda: None, replaced(value), repr, caplog) == "exact"


@pytest.mark.parametrize("name", REPORTED)
def test_a_value_of_a_library_that_cannot_be_saved_is_reported_when_it_changes(name, caplog):
    with caplog.at_level("WARNING", logger="stoker"):
        assert outcome(*REPORTED[name], str, caplog) == "reported"


def test_reading_a_file_by_positions_is_not_reported(tmp_path, caplog):
    path = tmp_path / "rows"
    path.write_bytes(b"0123456789")

    class Rows:
        def __init__(self):
            self.file = path.open("rb")

        def __getitem__(self, index):
            self.file.seek(index)
            return self.file.read(1)

    rows = Rows()
    state = UserState(lambda: [("dataset", rows)])
    state.begin()
    state.report_unsavable()
    assert rows[3] == b"3"
    assert state.capture() == []
    assert not caplog.records
    rows.file.close()


def test_comparing_objects_of_libraries_runs_no_code_of_users():
    class Loud:
        def __reduce__(self):
            raise AssertionError

        def __getstate__(self):
            raise AssertionError

    frame = pd.DataFrame({"loud": [Loud()]})
    state = UserState(lambda: [("dataset", Holder(frame))])
    state.begin()
    assert state.capture() == []


# References, shared values and other places for state


def restored_after(build, change):
    """Return a second object from ``build`` with what ``change`` did to the first one."""
    owner = build()
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    change(owner)
    tensors, values = flatten(state.capture())
    other = build()
    resumed = UserState(lambda: [("sampler", other)])
    resumed.begin()
    resumed.restore(unflatten(tensors, json.loads(json.dumps(values))))
    return other


def weak(x):
    return x


def strong(x):
    return 2 * x


def test_which_of_several_objects_and_functions_is_in_use_is_restored():
    def build():
        first, second = SimpleNamespace(n=1), SimpleNamespace(n=2)
        return SimpleNamespace(use=first, all=[first, second], call=weak, spare=[strong])

    def change(owner):
        owner.use, owner.call = owner.all[1], owner.spare[0]
        owner.use.n = 7

    found = restored_after(build, change)
    assert found.use is found.all[1]
    assert found.call is strong
    assert [one.n for one in found.all] == [1, 7]


def test_going_back_to_the_start_restores_references_and_removes_what_was_not_there():
    first, second = SimpleNamespace(n=1), SimpleNamespace(n=2)
    owner = SimpleNamespace(all=[first, second], use=first)
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    owner.use, owner.late = second, 3
    saved = state.capture()
    state.restore(saved)
    state.restore([])
    assert owner.use is first
    assert not hasattr(owner, "late")


def test_a_new_object_of_another_class_is_reported(caplog):
    owner = SimpleNamespace(act=nn.Identity())
    state = UserState(lambda: [("model", owner)])
    state.begin()
    owner.act = nn.Tanh()
    state.capture()
    assert "model.act was torch.nn.modules.linear.Identity and is a new" in caplog.text


def test_values_that_two_places_share_stay_shared_and_others_are_separated():
    def build():
        return SimpleNamespace(last=None, best=None, both=(pair := [1, 2]), other=pair)

    def change(owner):
        owner.last = owner.best = torch.ones(2)
        owner.both = [3, 4]
        owner.other[1] = 5

    found = restored_after(build, change)
    assert found.last is found.best
    assert (found.both, found.other) == ([3, 4], [1, 5])


def test_a_tensor_that_replaced_a_view_of_a_parameter_does_not_overwrite_the_parameter():
    def build():
        weight = torch.zeros(2)
        return SimpleNamespace(weight=weight, view=weight.view(2))

    found = restored_after(build, lambda owner: setattr(owner, "view", torch.ones(2)))
    assert (found.weight.tolist(), found.view.tolist()) == ([0, 0], [1, 1])


class Bag(dict):
    """A dict with an attribute."""


class Total:
    """A class that counts, of which there is no object."""

    n = 0


class OwnDraws:
    def __init__(self):
        self.draw, self.pick = random.Random(3).random, np.random.default_rng(3).integers
        self.bag, self.rows = Bag(), np.zeros(2, dtype=[("n", "i4")])
        self.day, self.flag = np.zeros(1, "M8[D]"), Side.LEFT
        self.context = CONTEXT

    def __iter__(self):
        self.bag.seen = getattr(self.bag, "seen", 0) + 1
        self.rows[0]["n"] += 1
        self.day += 1
        self.flag = Side.LEFT | Side.RIGHT
        CONTEXT.set(CONTEXT.get() + 1)
        Total.n += 1
        return self.draw(), int(self.pick(1000)), Total.n, CONTEXT.get()


class Side(enum.Flag):
    LEFT = 1
    RIGHT = 2


CONTEXT = contextvars.ContextVar("CONTEXT", default=0)


def test_generators_behind_methods_and_state_of_containers_and_classes_is_restored(caplog):
    owner = OwnDraws()
    state = UserState(lambda: [("sampler", owner)])
    state.begin()
    owner.__iter__()
    saved = state.capture()
    expected = owner.__iter__()
    state.restore(saved)
    assert owner.__iter__() == expected
    assert (owner.bag.seen, owner.rows["n"].tolist(), owner.flag) == (2, [2, 0], Side(3))
    assert caplog.text == ""


@pytest.mark.parametrize(
    "value",
    [
        csv.reader(["a", "b"]),
        iter(lambda: 1, 2),
        re.finditer("a", "aa"),
        reversed([1, 2]),
        SimpleQueue(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_iterator_is_reported_at_the_start(value, caplog):
    state = UserState(lambda: [("sampler", SimpleNamespace(rest=value))])
    state.begin()
    state.report_unsavable()
    assert f"sampler.rest ({type(value).__name__}) changes during training" in caplog.text


def system_draw():
    return os.urandom(1)


def cached_by_helper():
    def noise():
        return random.random()

    @cache
    def value(index):
        return noise()

    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (system_draw, "draws random numbers from the operating system"),
        (cached_by_helper(), "changes during training and cannot be saved"),
    ],
)
def test_functions_whose_results_nobody_can_repeat_are_reported_at_the_start(
    value, expected, caplog
):
    state = UserState(lambda: [("sampler", SimpleNamespace(call=value))])
    state.begin()
    state.report_unsavable()
    assert expected in caplog.text


def test_a_module_that_is_no_part_of_the_model_is_saved():
    def build():
        model = nn.Linear(1, 1)
        model.hidden = [nn.BatchNorm1d(1)]
        return model

    model, other = build(), build()
    state = UserState(lambda: [("model", model)])
    state.begin()
    model.hidden[0].running_mean += 1
    resumed = UserState(lambda: [("model", other)])
    resumed.begin()
    resumed.restore(state.capture())
    assert other.hidden[0].running_mean.item() == 1


def test_a_buffer_that_is_registered_during_training_is_reported(caplog):
    model = nn.Linear(1, 1)
    state = UserState(lambda: [("model", model)])
    state.begin()
    model.register_buffer("late", torch.zeros(1))
    state.capture()
    assert "model.late was registered during training" in caplog.text


def test_an_item_that_is_set_from_itself_counts():
    def count(table, key):
        table.seen[key] = table.seen.get(key, 0) + 1

    def keep(table, key):
        table.kept[key] = key * 2

    assert facts_of(count).counts == {"seen"}
    assert facts_of(keep).counts == set()
