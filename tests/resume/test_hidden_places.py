"""R11: state in places where a user does not expect it is saved, or reported."""

import enum
import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stoker import Engine, Hook, Step, Trainer, hooks
from stoker.core.bytecode import facts_of
from stoker.core.user_state import UserState
from stoker.data.resume.unsaved import report_unsaved
from stoker.resume.carried_gradients import carried_gradients, restore_gradients

GENERATOR = random.Random(1)
COUNTS = {}


def tracked(owner, name="step", **options):
    state = UserState(lambda: [(name, owner)], **options)
    state.begin()
    return state


def after(build, use):
    """Return what ``use`` returns the second time, without and with a resume in between."""
    GENERATOR.seed(1)
    owner = build()
    state = tracked(owner)
    use(owner)
    saved = state.capture()
    expected = use(owner)
    GENERATOR.seed(1)
    other = build()
    resumed = tracked(other)
    resumed.restore(saved)
    return use(other), expected


class Draws(random.Random):
    calls = 0

    def random(self):
        self.calls += 1
        return super().random() + self.calls


class Row(np.ndarray):
    reads = 0


class Counted:
    """A decorator that counts, and says what it wraps."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function, self.calls = function, 0

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args) * self.calls


class Missing(dict):
    def __missing__(self, key):
        return GENERATOR.random()


class Jitter:
    def __mul__(self, other):
        return other * GENERATOR.random()


class Bank:
    def __getitem__(self, index):
        return index

    def pick(self):
        return GENERATOR.random()


class Phase(enum.Enum):
    WARM = 1
    FULL = 2


class Phased:
    phase = Phase.WARM


def read_row(owner):
    owner.row.reads += 1
    return owner.row.reads


def full(owner):
    before, owner.phase = owner.phase, Phase.FULL
    return before


def counted():
    return SimpleNamespace(call=Counted(lambda x: x))


PLACES = {
    "a subclass of a generator": (lambda: SimpleNamespace(r=Draws(1)), lambda o: o.r.random()),
    "a subclass of an array": (lambda: SimpleNamespace(row=np.zeros(2).view(Row)), read_row),
    "generators that are spawned": (
        lambda: SimpleNamespace(r=np.random.default_rng(1)),
        lambda o: o.r.spawn(1)[0].random(),
    ),
    "a decorator": (counted, lambda o: o.call(2)),
    "what a dict lacks": (lambda: SimpleNamespace(d=Missing()), lambda o: o.d[1]),
    "an operator": (lambda: SimpleNamespace(j=Jitter()), lambda o: o.j * 2),
    "another method": (lambda: SimpleNamespace(bank=Bank()), lambda o: o.bank.pick()),
    "an enum of the class": (Phased, full),
}


@pytest.mark.parametrize("name", PLACES)
def test_state_in_this_place_is_restored(name, caplog):
    found, expected = after(*PLACES[name])
    assert found == expected
    assert caplog.text == ""


def test_what_an_optimizer_adds_to_its_defaults_is_restored():
    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            self.defaults["n"] = self.defaults.get("n", 0) + 1
            return super().step(closure)

    def use(optimizer):
        optimizer.step()
        return optimizer.defaults["n"]

    found, expected = after(lambda: Slow([nn.Parameter(torch.ones(1))], lr=0.1), use)
    assert found == expected == 2


# Objects that are created during training


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        return x * self.factor


def scaled_by(factor):
    return lambda x: x * factor


FIRST = Scale(1.0)
NEW = {
    "an object": lambda: Scale(2.0),
    "a method": lambda: Scale(2.0).apply,
    "a partial": lambda: functools.partial(torch.mul, 2.0),
    "a module": lambda: nn.Linear(1, 1),
    "a closure": lambda: scaled_by(2.0),
}


@pytest.mark.parametrize("name", NEW)
def test_an_object_that_training_creates_is_reported(name, caplog):
    owner = SimpleNamespace(scale=None)
    state = tracked(owner)
    owner.scale = NEW[name]()
    state.capture()
    assert "step.scale was None and is a new" in caplog.text


def test_a_new_object_in_the_place_of_one_that_others_hold_is_reported(caplog):
    owner = SimpleNamespace(all=[FIRST], current=FIRST)
    state = tracked(owner)
    owner.current = Scale(3.0)
    state.capture()
    assert "step.current was" in caplog.text


def test_what_a_dataset_creates_for_itself_is_not_reported(caplog):
    class Rows:
        reader = None

        def __getitem__(self, index):
            if self.reader is None:
                self.reader = Scale(2.0)
            return self.reader.apply(index)

    owner = Rows()
    state = tracked(owner, "dataset", is_data=True)
    assert owner[1] == 2.0
    state.capture()
    assert caplog.text == ""


def test_an_iterator_that_is_created_late_is_reported(caplog):
    owner = SimpleNamespace(rest=None)
    state = tracked(owner)
    owner.rest = iter([1, 2])
    state.capture()
    assert "step.rest (list_iterator) changes during training" in caplog.text


class Pass(IterableDataset):
    """Reads through an iterator that each pass creates."""

    def __init__(self):
        self.rest = None

    def __iter__(self):
        self.rest = iter(range(3))
        return self

    def __next__(self):
        return next(self.rest)


def test_an_iterator_of_each_pass_is_neither_reported_nor_taken_away(caplog):
    owner = Pass()
    state = tracked(owner, "dataset", is_data=True)
    iter(owner)
    saved = state.capture()
    state.restore(saved)
    assert next(owner) == 0
    assert caplog.text == ""


def test_counts_by_the_address_of_an_object_are_reported(caplog):
    class Rows:
        def __getitem__(self, index):
            COUNTS[id(self)] = COUNTS.get(id(self), 0) + 1

    owner = Rows()
    state = tracked(owner)
    owner[0]
    assert state.capture() == []
    assert "use keys that are the same in each process" in caplog.text
    COUNTS.clear()


# What workers count


class Collate:
    most, decayed = 0.0, 1.0

    def __call__(self, samples):
        batch = torch.stack(samples)
        self.most = max(self.most, float(batch.max()))
        self.decayed = (
            0.9 * self.decayed
            + 0.1
        )  # fmt: skip
        return batch


def test_what_a_collate_function_counts_in_workers_is_reported(caplog):
    assert facts_of(Collate.__call__).counts == {"most", "decayed"}
    loader = DataLoader(list(torch.ones(4)), 2, collate_fn=Collate(), num_workers=1)
    state = tracked(loader)
    report_unsaved(loader, "train_loader", state)
    assert "Collate.most (float) changes while worker processes read" in caplog.text


def test_a_value_that_is_only_converted_does_not_count():
    def convert(owner):
        owner.x = torch.as_tensor(owner.x)
        self = owner
        self.y = float(self.y)

    assert "y" not in facts_of(convert).counts


# Parts of the engine


DATA = TensorDataset(torch.ones(8, 2), torch.tensor([0, 1] * 4))


class Change(Hook):
    def __init__(self, change):
        self.change, self.spare = change, nn.CrossEntropyLoss(label_smoothing=0.2)

    def after_step(self, run):
        if run.step == 2:
            self.change(self, run.engine)


def nothing(hook, engine):
    pass


def train(run_dir, change, epochs, more=(), step=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler)
    stock = [hooks.Checkpoint("1st"), Change(change), *more]
    trainer = Trainer(engine, stock, step=step, run_dir=run_dir)
    trainer.fit(DataLoader(DATA, 4), epochs=epochs)
    return trainer


def clip(hook, engine):
    engine.clip_norm = 0.01


def use_spare(hook, engine):
    engine.set_criterion(hook.spare)


@pytest.mark.parametrize("change", [clip, use_spare])
def test_what_a_hook_sets_in_the_engine_is_restored(tmp_path, change, caplog):
    straight = train(tmp_path / "straight", change, 3)
    train(tmp_path / "resumed", change, 2)
    resumed = train(tmp_path / "resumed", change, 3)
    assert resumed.run.dir.name == "resumed"
    assert resumed.engine.clip_norm == straight.engine.clip_norm
    assert resumed.engine.criterion is resumed.engine.given_criterion
    for one, other in zip(
        straight.engine.model.parameters(), resumed.engine.model.parameters(), strict=True
    ):
        assert one.equal(other)
    assert "cannot be saved" not in caplog.text


def replace_layer(hook, engine):
    engine.model[1] = nn.Linear(4, 2)


def grow(hook, engine):
    engine.model[0].bias.data = torch.zeros(1, 4)


def add_group(hook, engine):
    engine.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def other_optimizer(hook, engine):
    engine.set_optimizer(torch.optim.Adam(engine.model.parameters()))


def other_criterion(hook, engine):
    engine.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


REPLACED = {
    replace_layer: "model.1.weight was replaced by another parameter",
    grow: "model.0.bias changed from shape [4] to [1, 4]",
    add_group: "the groups of optimizer changed from [4] to [4, 1] parameters",
    other_optimizer: "optimizer was replaced",
    other_criterion: "engine.criterion was torch.nn.modules.loss.CrossEntropyLoss and is a new",
}


@pytest.mark.parametrize("change", REPLACED, ids=lambda change: change.__name__)
def test_a_part_that_a_hook_replaces_is_reported_at_the_next_save(tmp_path, change, caplog):
    train(tmp_path / "run", change, 2)
    assert REPLACED[change] in caplog.text


class ByHand(Step):
    """Updates after every third step."""

    steps = 0

    def train(self, run):
        output = self.forward(run.engine, run.batches[0])
        run.add_output(output)
        self.backward(run.engine, output.loss)
        self.steps += 1
        if self.steps % 3 == 0:
            run.engine.step()
            run.engine.zero_grad()


def test_gradients_that_a_step_accumulates_by_hand_are_restored(tmp_path):
    straight = train(tmp_path / "straight", nothing, 4, step=ByHand())
    train(tmp_path / "resumed", nothing, 2, step=ByHand())
    resumed = train(tmp_path / "resumed", nothing, 4, step=ByHand())
    for one, other in zip(
        straight.engine.model.parameters(), resumed.engine.model.parameters(), strict=True
    ):
        assert one.equal(other)


def test_gradients_that_the_next_step_clears_are_not_saved():
    class Clears(Step):
        def train(self, run):
            run.engine.zero_grad()
            self.backward(run.engine, self.forward(run.engine, run.batches[0]).loss)
            run.engine.step()

    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert carried_gradients(Clears(), engine) == carried_gradients(Step(), engine) == {}
    found = carried_gradients(ByHand(), engine)
    assert found.keys() == {"weight"}
    restore_gradients(found, engine)
    for wrong in ({"other": found["weight"]}, {"weight": torch.ones(3)}, [], {"weight": 1}):
        with pytest.raises(ValueError, match="gradient"):
            restore_gradients(wrong, engine)


class Spread:
    """A metric without ``state_dict``."""

    def __init__(self):
        self.values = []

    def reset(self):
        self.values = []

    def update(self, outputs, targets):
        self.values.append(float(outputs.std()))

    def compute(self):
        return max(self.values) - min(self.values)


def test_a_metric_without_a_state_dict_resumes_within_an_epoch(tmp_path):
    class Stop(Hook):
        observes = True

        def after_step(self, run):
            if run.step == 3 and not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                raise KeyboardInterrupt

    def start(name, *more):
        spread = hooks.Metrics(Spread(), on="train")
        return train(tmp_path / name, nothing, 2, [spread, *more]).history

    straight = start("straight")
    with pytest.raises(KeyboardInterrupt):
        start("resumed", Stop())
    resumed = start("resumed", Stop())
    assert [row["train/spread"] for row in resumed] == [row["train/spread"] for row in straight]


def test_a_step_that_never_changes_its_object_is_not_reported(tmp_path, caplog):
    class Own(Step):
        def __init__(self):
            self.scale = Scale(1.0)
            self.apply = self.scale.apply

    owner = Own()
    state = tracked(owner)
    state.capture()
    assert state.capture() == []
    assert caplog.text == ""
