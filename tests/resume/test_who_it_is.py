"""Which folder a run gets, what it records about itself, and what looking at it may not do."""

import json
import logging
import operator
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, partial, wraps
from importlib import invalidate_caches
from types import MappingProxyType

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Sampler,
    Subset,
    TensorDataset,
)

from stoker import Engine, Hook, Trainer, hooks
from stoker.board.app import differences
from stoker.checkpoint import CheckpointError
from stoker.cli.main import main
from stoker.config import ConfigError, load
from stoker.core.bytecode import code_hash
from stoker.core.describe import Description
from stoker.core.digest import array_text
from stoker.engine.describe_model import describe_model
from stoker.nn import lr as rates
from stoker.rundir.identity import Identity
from stoker.rundir.reader import RunReader
from support.project import project
from support.toys import batches, engine, loader, net


def made(run_dir, *more, lr=0.1, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    own = [hooks.Loss(), hooks.Write(hooks.JsonLines(), every=1), hooks.Checkpoint(), *more]
    return Trainer(Engine(model, optimizer, nn.CrossEntropyLoss()), own, run_dir=run_dir, **options)


def parts(value, *, files=False):
    found = Description()
    found.add("x", value, files=files)
    return found.values


# Folders


def test_ten_trials_of_one_name_have_ten_folders_and_find_them_again(tmp_path):
    values = [0.01 * n for n in range(1, 11)]
    for _ in range(2):
        folders = []
        for lr in values:
            trainer = made(tmp_path / "run", lr=lr)
            trainer.fit(batches(), max_steps=1)
            folders.append(trainer.run.dir.name)
        assert folders == ["run", *(f"run-{n}" for n in range(2, 11))]


def test_a_run_that_was_killed_before_its_first_step_is_started_in_its_folder(tmp_path):
    first = made(tmp_path / "run")
    first.fit(batches(), max_steps=1)
    for path in (tmp_path / "run").iterdir():
        if path.name not in ("identity.json", "env.json", "config.yaml"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = made(tmp_path / "run")
    again.fit(batches(), max_steps=1)
    assert again.run.dir == tmp_path / "run"
    other = made(tmp_path / "run", lr=0.2)
    other.fit(batches(), max_steps=1)
    assert other.run.dir == tmp_path / "run-2"


def test_a_run_that_fails_before_its_first_step_leaves_nothing(tmp_path):
    def fail(run):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        made(tmp_path / "run", hooks.Callback(before_step=fail)).fit(batches(), max_steps=1)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_before_the_fit_does_not_decide_which_run_it_is(tmp_path):
    made(tmp_path / "run").fit(batches(), max_steps=2)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    other = made(tmp_path / "run", lr=0.2)
    other.predict(torch.zeros(2, 4))
    other.fit(batches(), max_steps=2)
    assert other.run.dir == tmp_path / "run-2"
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_without_an_identity_is_not_resumed(tmp_path, caplog):
    made(tmp_path / "run").fit(batches(), max_steps=1)
    (tmp_path / "run" / "identity.json").write_text("{")
    again = made(tmp_path / "run")
    again.fit(batches(), max_steps=1)
    assert again.run.dir == tmp_path / "run-2"
    assert "it has no identity.json" in caplog.text


def test_must_fails_where_there_is_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="there is no complete checkpoint"):
        made(tmp_path / "run").fit(batches(), max_steps=1, resume="must")


def test_a_checkpoint_folder_of_its_own_lists_what_changed(tmp_path, caplog):
    for lr in (0.1, 0.2):
        model = net()
        trainer = Trainer(
            Engine(model, torch.optim.SGD(model.parameters(), lr=lr), nn.CrossEntropyLoss()),
            [hooks.Checkpoint(folder=tmp_path / "saved")],
        )
        trainer.fit(batches(), max_steps=2)
    assert "which was made differently: optimizer.lr was 0.1 and is 0.2" in caplog.text


def test_a_cell_that_is_run_again_is_the_same_run_until_it_is_edited(tmp_path, monkeypatch, caplog):
    """As in a notebook: the same names, the same process, data and model from another cell."""
    monkeypatch.chdir(tmp_path)
    cell = (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "engine = Engine(model, optimizer, nn.CrossEntropyLoss())\n"
        "trainer = Trainer(engine, run_dir='run', seed=1)\n"
        "trainer.fit(data, epochs=1)\n"
    )
    names = {"model": net(), "data": loader(shuffle=True), "torch": torch, "nn": nn}
    names |= {"Engine": Engine, "Trainer": Trainer, "__name__": "__main__"}
    folders = []
    for text in (cell, cell, cell.replace("0.1", "0.3"), cell.replace("0.1", "0.3"), cell):
        exec(compile(text, "<cell>", "exec"), names)
        folders.append(names["trainer"].run.dir.name)
    assert folders == ["run", "run", "run-2", "run-2", "run"]
    assert caplog.text.count("already finished") == 3


# What is recorded


def test_a_script_records_its_parameters_like_a_config(tmp_path):
    folders = []
    for lr in (0.1, 0.2):
        trainer = made(tmp_path / "run", lr=lr, params={"lr": lr, "data": {"size": 20}})
        trainer.fit(batches(), epochs=1)
        folders.append(trainer.run.dir)
    configs = [RunReader(folder).config() for folder in folders]
    assert configs[0]["params.data.size"] == 20
    assert configs[0]["run.epochs"] == 1
    assert {one.key for one in differences(configs)} == {"params.lr", "optimizer.lr"}
    environment = RunReader(folders[0]).environment()
    assert environment["command"] == sys.argv
    assert RunReader(folders[0]).faults == []


def test_the_record_of_a_script_is_no_config(tmp_path, capsys):
    made(tmp_path / "run").fit(batches(), max_steps=1)
    with pytest.raises(ConfigError, match="records a run of .*, it is not a config: run"):
        load(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run" / "config.yaml")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["recorded_by"]


def test_the_record_is_a_file_of_plain_values(tmp_path):
    made(tmp_path / "run").fit(batches(), max_steps=1)
    found = json.loads((tmp_path / "run" / "identity.json").read_text())
    assert found["parts"]["optimizer.lr"] == 0.1
    assert found["limits"]["max_steps"] == 1
    assert "0x" not in json.dumps(found)


def test_a_run_without_hooks_that_write_records_nothing(tmp_path):
    Trainer(engine(), [], run_dir=tmp_path / "run").fit(batches(), max_steps=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_config_with_changed_data_is_another_run(tmp_path, monkeypatch, caplog):
    folder = project(tmp_path, monkeypatch)
    assert main(["train", "cfg.yaml"]) == 0
    text = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(text + "\n# a comment\n")
    assert main(["train", "cfg.yaml"]) == 0
    assert "already finished" in caplog.text
    assert not (folder / "runs" / "cfg-2").exists()


# The length of a schedule

SCHEDULES = {
    "cosine": torch.optim.lr_scheduler.CosineAnnealingLR,
    "one cycle": lambda optimizer, n: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=n
    ),
    "lambda": lambda optimizer, n: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 1 - s / n
    ),
    "with warm-up": lambda optimizer, n: rates.cosine(optimizer, n, warmup_ratio=0.2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_over_the_run_is_stretched_and_the_jump_is_logged(tmp_path, name, caplog):
    def rate(run_dir, epochs):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = SCHEDULES[name](optimizer, 5 * epochs)
        made = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=schedule)
        trainer = Trainer(made, [hooks.Checkpoint()], run_dir=run_dir)
        trainer.fit(batches(), epochs=epochs)
        assert trainer.run.dir == run_dir
        return optimizer.param_groups[0]["lr"]

    rate(tmp_path / "run", 2)
    assert "jumps" not in caplog.text
    assert rate(tmp_path / "run", 4) == pytest.approx(rate(tmp_path / "straight", 4), abs=1e-9)
    assert "was started for 10 steps and is resumed for 20: the learning rate of" in caplog.text
    assert "at step 10" in caplog.text


def test_a_schedule_that_does_not_follow_the_run_does_not_jump(tmp_path, caplog):
    for epochs in (1, 2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        made = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=schedule)
        Trainer(made, [hooks.Checkpoint()], run_dir=tmp_path / "run").fit(batches(), epochs=epochs)
    assert "jumps" not in caplog.text


# Looking changes nothing


class Untouchable(Dataset):
    """Fails when it is read, counted or printed."""

    def __init__(self):
        self.rng, self.lock, self.t0 = random.Random(), threading.Lock(), time.time()

    def _no(self, *_):
        raise AssertionError("the dataset was touched")

    __getitem__ = __iter__ = __contains__ = __getattr__ = __repr__ = __eq__ = _no
    __hash__ = None


def test_describing_calls_nothing_of_the_object():
    found = parts(Untouchable())
    assert found["x"] == "Untouchable"
    assert found["x.t0"] == "a time"
    assert found["x.rng"] == "generator"


def test_describing_draws_no_random_numbers():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    parts([generator, np.random.default_rng(1), DataLoader(TensorDataset(torch.zeros(4)))])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert torch.equal(generator.get_state(), state)


def test_a_mapped_file_is_sampled_and_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(1 << 36)  # 64 GiB, without blocks
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    assert array_text(mapped).startswith("array uint8[68719476736] #")
    assert array_text(mapped.reshape(-1, 1024)[3:]).startswith("array uint8")


@pytest.mark.parametrize(
    "values",
    [
        [torch.zeros(5), torch.ones(5)],
        [torch.zeros(5), torch.zeros(5).double()],
        [torch.zeros(6).reshape(2, 3), torch.zeros(6).reshape(3, 2)],
        [torch.arange(6.0).reshape(2, 3).T, torch.arange(6.0).reshape(3, 2)],
        [torch.zeros(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64)],
        [np.zeros(5), np.ones(5)],
        [np.arange(5), np.arange(5)[::-1]],
        [np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)],
        [list(range(1000)), [*range(999), 7]],
        [["a"] * 1000, ["a"] * 999 + ["b"]],
        [[("a.png", 0)] * 1000, [("a.png", 0)] * 999 + [("a.png", 1)]],
        [{"a": 1}, {"a": 2}],
        [{n: n for n in range(100)}, {n: -n for n in range(100)}],
        [{1, 2, 3}, {1, 2, 4}],
        [MappingProxyType({"a": 1}), MappingProxyType({"a": 2})],
        [Decimal("0.1"), Decimal("0.2")],
        [date(2020, 1, 1), date(2020, 1, 2)],
        [re.compile("a"), re.compile("a", re.IGNORECASE)],
        [operator.itemgetter(0), operator.itemgetter(1)],
        [operator.methodcaller("mul", other=1), operator.methodcaller("mul", other=2)],
        [np.random.SeedSequence(1), np.random.SeedSequence(2)],
        [b"ab", b"ac"],
        [lambda x: x + 1, lambda x: x + 2],
        [nn.Dropout(0.1), nn.Dropout(0.2)],
        [ConcatDataset([[1], [2]]), ConcatDataset([[1], [3]])],
        [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)],
        [np.random.default_rng(1), np.random.default_rng(2)],
        ["x" * 300, "x" * 299 + "y"],
    ],
)
def test_other_content_is_described_differently(values):
    one, other = map(parts, values)
    assert one != other
    assert parts(values[0]) == one
    assert "0x" not in str(one)


def test_frames_of_pandas_are_described_by_their_content():
    import pandas

    one = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    assert parts(one) == parts(one.copy())
    assert parts(one) != parts(pandas.DataFrame({"a": [1, 2], "b": ["x", "z"]}))


def test_files_are_described_by_size_and_time(tmp_path, monkeypatch):
    class Files(Dataset):
        def __init__(self, root, names):
            self.root, self.names = root, names

    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for name in "ab":
        (tmp_path / "images" / f"{name}.png").write_text(name)
    before = parts(Files("images", ["a.png", "b.png"]), files=True)
    assert parts(Files("images", ["a.png", "b.png"]), files=True) == before
    (tmp_path / "images" / "b.png").write_text("longer")
    assert parts(Files("images", ["a.png", "b.png"]), files=True) != before


def test_unseeded_generators_and_clocks_are_not_part_of_a_run():
    def one():
        generators = [np.random.default_rng(), np.random.SeedSequence(), random.Random()]
        return [*generators, time.time(), time.perf_counter(), datetime.now(), date.today()]

    assert parts(one()) == parts(one())


def test_objects_that_refer_to_each_other_come_to_an_end():
    class Node:
        def __init__(self):
            self.me, self.value = self, 1

    assert parts(Node()) == {
        "x": parts(Node())["x"], "x.me": "the same as x", "x.value": 1,
    } | {k: v for k, v in parts(Node()).items() if k.startswith("code.")}  # fmt: skip


class Hostile:
    """Fails at everything that can be requested of it."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_an_object_that_cannot_be_described_is_known_by_its_type():
    loop = [1]
    loop.append(loop)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    found = parts({"a": Hostile(), "b": loop, "c": nested, "d": {object(), object()}})
    assert found["x.a"] == "Hostile"
    assert "0x" not in str(found)
    assert parts({object(): 1}) == parts({object(): 1})


class Counted(Sampler):
    """Counts how often its length is requested."""

    def __init__(self):
        self.asked = 0

    def __iter__(self):
        return iter(range(4))


def test_a_sampler_is_not_iterated(tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "__iter__", lambda self: pytest.fail("it was iterated"))
    assert parts(DataLoader(TensorDataset(torch.zeros(4)), sampler=Counted()))["x"] == "DataLoader"


PRINT = (
    "from stoker.core.describe import Description\n"
    "import json, torch\n"
    "class Data:\n"
    "    def __init__(self):\n"
    "        self.names = {'a', 'b', 'c', 'd'}\n"
    "        self.more = frozenset(map(str, range(99)))\n"
    "    def __getitem__(self, i): return i in {'x', 'y', 'z'}\n"
    "found = Description(); found.add('x', Data()); print(json.dumps(found.values))\n"
)


@pytest.mark.process
@pytest.mark.slow
def test_a_description_does_not_depend_on_the_process():
    texts = {
        subprocess.run(
            [sys.executable, "-c", PRINT], env={"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1


def test_an_observing_hook_may_come_and_go(tmp_path):
    class Bomb(Hook):
        def __init__(self, at):
            self.at, self.seen = at, []

        def after_step(self, run):
            self.seen.append(float(run.loss))
            if run.step == self.at:
                raise KeyboardInterrupt(f"at {self.at}")

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "run", Bomb(3)).fit(batches(), epochs=1)
    again = made(tmp_path / "run")
    again.fit(batches(), epochs=1)
    assert again.run.dir == tmp_path / "run"


def test_changes_name_the_config_first():
    one = Identity({"optimizer.lr": 1}, {"optimizer.lr": 1}, is_config=True)
    other = Identity({"optimizer.lr": 2}, {"optimizer.lr": 2}, is_config=True)
    assert other.changes(one) == ["optimizer.lr was 1 and is 2"]
    assert one.changes(one) == []


def test_another_number_of_processes_is_the_same_run():
    one = Identity({"accumulate": 4, "train data.batch_size": 8}, limits={"data_ranks": 1})
    two = Identity({"accumulate": 2, "train data.batch_size": 8}, limits={"data_ranks": 2})
    less = Identity({"accumulate": 1, "train data.batch_size": 8}, limits={"data_ranks": 2})
    assert two.changes(one) == []
    assert less.changes(one) == ["accumulate was 4 and is 1"]


def test_another_python_cannot_compare_code():
    one = Identity({"code.f": "ab", "step": "f #12"}, python="3.11")
    other = Identity({"code.f": "cd", "step": "f #34"}, python="3.12")
    assert other.changes(one) == []


def test_a_later_fit_with_other_data_is_not_passed_off_as_the_one_before(tmp_path, caplog):
    def script(scale):
        torch.manual_seed(0)
        x = torch.randn(16, 4)
        first, second = (DataLoader(TensorDataset(one, x.argmax(1)), 4) for one in (x, x * scale))
        model = nn.Linear(4, 4)
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
        trainer = Trainer(engine, hooks.default(progress=False), run_dir=tmp_path / "run")
        trainer.fit(first, epochs=1)
        trainer.fit(second, epochs=2)
        return trainer

    script(2)
    with caplog.at_level(logging.WARNING):
        assert script(2).run.dir == tmp_path / "run"
        assert "made differently" not in caplog.text
        script(3)
    assert "fit 2 of the run in" in caplog.text
    assert "train data.dataset" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        script(3)  # still another one than the one that was trained
    assert "fit 2 of the run in" in caplog.text


class Scaled(torch.optim.SGD):
    def __init__(self, parameters, scale):
        super().__init__(parameters, lr=0.1)
        self._scale, self.slow = scale, [one.detach().clone() for one in parameters]


def described_training(gradient=1.0, update=1.0, scale=1.0):
    model = nn.Linear(2, 1)
    optimizer = Scaled(list(model.parameters()), scale)
    model.weight.register_hook(lambda gradients: gradients * gradient)
    optimizer.register_step_post_hook(lambda *_: update)
    return describe_model(model, optimizer)


@pytest.mark.parametrize("edit", ["gradient", "update", "scale"])
def test_hooks_of_torch_and_settings_of_an_optimizer_are_part_of_a_run(edit):
    assert described_training() == described_training()  # with other weights
    assert described_training() != described_training(**{edit: 2.0})


# Code

CODE = """
def outer(x, k=1):
    y = [i * 2 for i in x]
    z, unused = 1, 2
    class Inner:
        width = 3
    def inner(q):
        return q + y[0] + z + k
    for j in range(3):
        try:
            print(j, end="")
        except ValueError:
            pass
    return inner
"""


def code_of(source):
    space = {}
    exec(source, space)
    return code_hash(space["outer"].__code__)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    y =", '    """Do it."""\n    y ='),
        ("        width", '        """A class."""\n        width'),
        ("        return q", '        """Add."""\n        return q'),
        (
            "    y = [i * 2 for i in x]",
            "    # twice\n    y = [\n        item * 2 for item in x\n    ]",
        ),
        ("    z, unused = 1, 2", "    pass\n    z, unused = 1, 2"),
        (
            "for j in range(3):\n        try:\n            print(j,",
            "for n in range(3):\n        try: print(n,",
        ),
        ("    z, unused = 1, 2", "    z, unused = (1, 0x2)"),
    ],
)
def test_docstrings_names_of_local_variables_and_line_breaks_are_no_other_code(old, new):
    assert old in CODE
    assert code_of(CODE.replace(old, new)) == code_of(CODE)
    assert code_of(re.sub(r"\by\b", "zz", CODE)) == code_of(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i * 2", "i * 3"),
        ("width = 3", "width = 4"),
        ("y[0] + z", "z + y[0]"),
        ("z, unused = 1, 2", "unused, z = 1, 2"),
        ("ValueError", "TypeError"),
        ('end=""', 'sep=""'),
        ("range(3)", "range(4)"),
        ("def outer(x, k=1)", "def outer(x, *k)"),
        ("y[0] + z + k", "y[0] + k + z"),
    ],
)
def test_another_operation_constant_or_keyword_is_other_code(old, new):
    assert code_of(CODE.replace(old, new, 1)) != code_of(CODE)


def limited(most):
    def decorate(function):
        @wraps(function)
        def inner(self, x):
            return min(most, function(self, x))

        return inner

    return decorate


def made_of(most=1.0, activation=torch.relu, kept=2.0):
    class Made:
        act = staticmethod(activation)

        @limited(most)
        def call(self, x):
            return x

        @cached_property
        def kept(self):
            return kept

    return Made()


@pytest.mark.parametrize("change", [{"most": 2.0}, {"activation": torch.tanh}, {"kept": 3.0}])
def test_decorators_and_other_attributes_of_classes_count(change):
    assert parts(made_of()) == parts(made_of())
    assert parts(made_of(**change)) != parts(made_of())


def test_functions_that_replace_those_of_a_library_count(monkeypatch):
    def call(x):
        return nn.functional.gelu(x)

    before, linear = parts(call), parts(nn.Linear(1, 1))
    monkeypatch.setattr(nn.functional, "gelu", lambda x: x)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert parts(call) != before
    assert parts(nn.Linear(1, 1)) != linear


def test_a_module_that_a_function_imports_itself_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def call(x):
        import imported_by_a_function

        return x * imported_by_a_function.FACTOR

    found = []
    for factor in (1, 2):
        (tmp_path / "imported_by_a_function.py").write_text(f"FACTOR = {factor}\n")
        found.append(parts(call))
        call(1)
        found.append(parts(call))
        sys.modules.pop("imported_by_a_function")
        invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert found[0] != found[2]
    assert found[1] != found[3]


def test_a_script_that_is_moved_with_its_files_is_the_same(tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rows.txt").write_text("1")
        os.utime(folder / "rows.txt", (1, 1))
        script = str(folder / "script.py")
        monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
        rows = str(folder / "rows.txt")
        found.append(parts({"folder": folder, "file": rows, "files": [rows]}, files=True))
    assert found[0] == found[1]
    assert "./rows.txt (1 bytes" in str(found[0])


def test_settings_of_torch_that_change_results_count(tmp_path):
    made(tmp_path / "run").fit(batches(), max_steps=1)
    torch.set_float32_matmul_precision("medium")
    try:
        other = made(tmp_path / "run")
        other.fit(batches(), max_steps=1)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert other.run.dir.name == "run-2"


class Wrapped:
    """A dataset of the user around another one."""

    def __init__(self, data, transform=None):
        self.data, self.transform = data, transform

    def __len__(self):
        return len(self.data)


def nested(dropped, levels=8):
    data = Wrapped(TensorDataset(torch.zeros(4, 1)), [{"then": partial(limited, dropped)}])
    for _ in range(levels):
        data = ConcatDataset([Subset(data, range(4))])
    return data


def test_an_edit_in_a_deeply_nested_dataset_counts():
    assert parts(nested(1.0)) == parts(nested(1.0))
    assert parts(nested(1.0)) != parts(nested(2.0))


def test_the_order_of_hooks_that_act_at_the_same_time_counts(tmp_path):
    class Add(Hook):
        def after_step(self, run):
            run.engine.optimizer.param_groups[0]["lr"] += 0.1

    class Double(Hook):
        def after_step(self, run):
            run.engine.optimizer.param_groups[0]["lr"] *= 2

    folders = []
    for acting in ([Add(), Double()], [Double(), Add()], [Add(), Double()]):
        trainer = made(tmp_path / "run", *acting)
        trainer.fit(batches(), epochs=1)
        folders.append(trainer.run.dir.name)
    assert folders == ["run", "run-2", "run"]
