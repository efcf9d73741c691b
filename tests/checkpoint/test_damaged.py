"""Whatever a checkpoint folder holds: no code runs, no raw error, nothing outside is touched.

``STOKER_FUZZ=10000`` sets the number of mutated folders (``make fuzz``); by default a sample runs.
"""

import json
import os
import random
import shutil
import sys
from contextlib import contextmanager, suppress
from functools import cache

import pytest
import torch
import xxhash
from torch import nn

from stoker import Engine, Trainer, hooks, load_weights
from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.checkpoint.format.manifest import Manifest, _dump
from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.cli.main import _parser as parser
from stoker.cli.main import main
from stoker.core.errors import CheckpointMismatchError
from stoker.rundir.reader import RunReader
from stoker.storage import LocalStorage

cached_parser = cache(parser)  # to make it for each command takes a third of the time
COUNT = int(os.environ.get("STOKER_FUZZ", "60"))
BATCHES = max(10, COUNT // 100)
HUGE = 10**30
HOSTILE = [
    *(None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, HUGE, 1e308, "", "x", "\x00", "é" * 300),
    *("../outside/secret", "/etc/passwd", [], {}, [[]], [None], [2**62, 2**62], [-1], [HUGE, 0]),
    *({"$tensor": "x"}, {"$dtype": "load"}, {"$dtype": "_inductor"}, {"$unknown": 1}),
    {"$array": {"$tensor": "x"}, "dtype": "O", "shape": [1]},
    *({"$scalar": "00", "dtype": "i4,O"}, {"$int": "zz"}, {"$bytes": 3}, {"$device": "os"}),
    *({"$deque": [1], "max": "x"}, {"$size": ["x"]}, {"$dict": [[[], 1]]}, {"$set": [[1]]}),
    *({"$ordered": 1}, {"$tensor": "model.0.weight", "complex": True}),
    {"$tensor": "model.0.weight", "stride": [2**40, 1]},
]


def trainer(run_dir):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    engine = Engine(model, torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss())
    return Trainer(engine, [hooks.Loss(), hooks.Checkpoint("2st", keep=None)], run_dir=run_dir)


DATA = [(torch.ones(3, 4), torch.tensor([0, 1, 0])), (torch.zeros(3, 4), torch.tensor([1, 1, 0]))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints of steps 0, 2 and 4."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trainer(folder).fit(DATA, epochs=2)
    return folder


@pytest.fixture
def run_dir(finished, tmp_path):
    """A copy of the run, with a secret next to it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def newest(run_dir):
    return run_dir / "checkpoints" / "step-00000004"


def seal(folder):
    """Give the manifest the sizes and checksums of the files, and its own checksum."""
    path = folder / "MANIFEST.json"
    fields = json.loads(path.read_text())
    fields.pop("checksum", None)
    for name, record in fields["files"].items():
        file = folder / name
        if file.is_file():
            data = file.read_bytes()
            record |= {"size": len(data), "xxh3_128": xxhash.xxh3_128(data).hexdigest()}
    seal_as_it_is(path, fields)


def seal_as_it_is(path, fields):
    checksum = xxhash.xxh3_128(_dump(fields).encode()).hexdigest()
    path.write_text(_dump(fields | {"checksum": checksum}))


def edit_json(path, change):
    value = json.loads(path.read_text())
    path.write_text(json.dumps(change(value)))


def edit_header(path, change):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = json.dumps(change(json.loads(data[8 : 8 + length]))).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def places(tree, path=()):
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


def replaced(tree, path, value):
    if not path:
        return value
    tree = tree.copy()
    tree[path[0]] = replaced(tree[path[0]], path[1:], value)
    return tree


def deep(levels=100_000):
    return "[" * levels + "]" * levels


class Mutation:
    """One way to damage a checkpoint folder, chosen by a random generator."""

    def __init__(self, chance):
        self.chance = chance

    def apply(self, folder):
        kinds = [name for name in dir(self) if name.startswith("do_")]
        kind = self.chance.choice(kinds)
        getattr(self, kind)(folder)
        return kind

    def file(self, folder, suffix=""):
        return self.chance.choice(sorted(p for p in folder.iterdir() if p.name.endswith(suffix)))

    def maybe_seal(self, folder):
        if self.chance.random() < 0.8:
            seal(folder)

    def do_flip_bits(self, folder):
        path = self.file(folder)
        data = bytearray(path.read_bytes())
        for _ in range(self.chance.randrange(1, 9)):
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        path.write_bytes(data)
        if path.name != "MANIFEST.json":
            self.maybe_seal(folder)

    def do_truncate(self, folder):
        path = self.file(folder)
        data = path.read_bytes()
        path.write_bytes(data[: self.chance.randrange(len(data))])
        if path.name != "MANIFEST.json":
            self.maybe_seal(folder)

    def do_swap(self, folder):
        one, other = self.file(folder, "s"), self.file(folder, "n")
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        if "MANIFEST.json" not in (one.name, other.name):
            self.maybe_seal(folder)

    def do_remove(self, folder):
        self.file(folder).unlink()

    def do_link(self, folder):
        path, outside = self.file(folder), folder.parents[2] / "outside"
        shutil.move(path, outside / path.name)
        path.symlink_to(outside / path.name)

    def do_link_folder(self, folder):
        outside = folder.parents[2] / "outside" / folder.name
        shutil.move(folder, outside)
        folder.symlink_to(outside)

    def do_pipe_or_folder(self, folder):
        path = self.file(folder)
        path.unlink()
        self.chance.choice([os.mkfifo, os.mkdir])(path)

    def do_hostile_manifest(self, folder):
        path = folder / "MANIFEST.json"
        fields = json.loads(path.read_text())
        fields.pop("checksum")
        at = self.chance.choice([place for place in places(fields) if place])
        seal_as_it_is(path, replaced(fields, at, self.chance.choice(HOSTILE)))

    def do_hostile_name(self, folder):
        path = folder / "MANIFEST.json"
        fields = json.loads(path.read_text())
        fields.pop("checksum")
        name = self.chance.choice(
            ["../../../outside/secret", "/etc/hostname", "a/b", "", ".", "\x00"]
        )
        fields["files"][name] = fields["files"].pop(self.chance.choice(sorted(fields["files"])))
        seal_as_it_is(path, fields)

    def do_hostile_split(self, folder):
        path = folder / "MANIFEST.json"
        fields = json.loads(path.read_text())
        fields.pop("checksum")
        file = self.chance.choice(
            ["model.safetensors", "../../../outside/secret", "rank-00000.json"]
        )
        piece = {
            "file": file,
            "name": "0.weight",
            "offset": self.chance.choice([[0, 0], [4, 0], [0]]),
        }
        shape = self.chance.choice([[8, 4], [16, 4], [2**60, 4], [8, 0]])
        table = {"dtype": "F32", "shape": shape, "pieces": [piece] * self.chance.randrange(3)}
        fields["split"]["model.0.weight"] = table
        seal_as_it_is(path, fields)

    def do_hostile_values(self, folder):
        path = self.file(folder, ".json")
        if path.name == "MANIFEST.json":
            return self.do_hostile_manifest(folder)
        tree = json.loads(path.read_text())
        at = self.chance.choice(list(places(tree)))
        edit_json(path, lambda tree: replaced(tree, at, self.chance.choice(HOSTILE)))
        return seal(folder)

    def do_hostile_header(self, folder):
        path = self.file(folder, ".safetensors")
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        at = self.chance.choice(list(places(header)))
        edit_header(path, lambda tree: replaced(tree, at, self.chance.choice(HOSTILE)))
        seal(folder)

    def do_overlap(self, folder):
        path = self.file(folder, ".safetensors")

        def shift(header):
            name = self.chance.choice(sorted(header))
            by = self.chance.choice([-4, 4, 8, 2**40])
            header[name]["data_offsets"] = [at + by for at in header[name]["data_offsets"]]
            return header

        edit_header(path, shift)
        seal(folder)

    def do_long_header(self, folder):
        path = self.file(folder, ".safetensors")
        length = self.chance.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1])
        path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
        seal(folder)

    def do_nest(self, folder):
        path = self.file(folder)
        key = self.chance.choice(['{"a": ', ""])
        if path.name.endswith(".safetensors"):
            text = (key + deep()).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text)
        else:
            path.write_text(key + deep(self.chance.choice([300, 2000, 100_000])))
        if path.name != "MANIFEST.json":
            seal(folder)

    def do_duplicate(self, folder):
        path = self.file(folder, ".safetensors")
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        text = data[8 : 8 + length].rstrip()
        entries = json.loads(text)
        name = self.chance.choice(sorted(entries))
        text = text[:-1] + f", {json.dumps(name)}: {json.dumps(entries[name])}}}".encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        seal(folder)


watched: dict[str, object] = {"outside": None, "seen": []}
ALLOWED = ("open", "os.link", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.symlink")
CODE = (
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
)


def audit(event, arguments):
    if watched["outside"] is None:
        return
    if event in CODE:
        watched["seen"].append((event, arguments))
    elif event in ALLOWED:
        paths = [os.fspath(one) for one in arguments if isinstance(one, str | os.PathLike)]
        folders = [os.path.realpath(os.path.dirname(one)) for one in paths]
        targets = [os.path.realpath(one) for one in paths] if event == "open" else []
        if any(one.startswith((watched["outside"], "/etc/")) for one in (*folders, *targets)):
            watched["seen"].append((event, paths))


@contextmanager
def guarded(outside):
    """Fail if anything in the block opens or changes a file outside, or runs a program."""
    if "added" not in watched:
        sys.addaudithook(audit)
        watched["added"] = True
    watched.update(outside=str(outside), seen=[])
    try:
        yield
    finally:
        watched["outside"] = None
    assert watched["seen"] == []


def read_in_every_way(run_dir, folder):
    """Use every reader; only a `CheckpointError` may end one."""
    checkpoints = Checkpoints(run_dir / "checkpoints")
    checkpoints.verify(folder)
    assert checkpoints.newest() is not None
    for read in (lambda: checkpoints.load(folder), lambda: load_weights(nn.Linear(2, 2), folder)):
        with suppress(CheckpointError):
            read()
    reader = RunReader(run_dir)
    assert len(reader.checkpoints()) >= 2
    reader.checkpoints(verify=True)
    reader.status()
    with open(os.devnull, "w") as null, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", null)
        patch.setattr(sys, "stderr", null)
        for command in ("ls", "ls --json", "ls --quick", "show", "show --json", "verify"):
            main(["ckpt", *command.split(), str(folder)])
        main(["ckpt", "diff", str(folder), str(run_dir)])
        main(["ckpt", "export", str(folder), "-o", str(run_dir / "out.safetensors")])
        main(["ckpt", "prune", str(run_dir), "--keep", "2", "--best", "train/loss", "--dry-run"])


def resume(run_dir):
    """Continue the run; only a checkpoint of another model, which can be read, may prevent it."""
    resumed = trainer(run_dir)
    with suppress(CheckpointMismatchError):
        resumed.fit(DATA, epochs=2)
        assert resumed.run.step == 4
        assert resumed.run.dir == run_dir


def contents_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_mutated_checkpoint_is_skipped_or_read_whatever_it_holds(
    finished, tmp_path, batch, monkeypatch
):
    monkeypatch.setattr("stoker.rundir.provenance.git_state", lambda: None)  # starts git
    monkeypatch.setattr(sys.modules["stoker.cli.main"], "_parser", cached_parser)
    for number in range(batch, COUNT, BATCHES):
        root = tmp_path / str(number)
        (root / "outside").mkdir(parents=True)
        run_dir = root / "run"
        shutil.copytree(finished, run_dir)
        folder = newest(run_dir)
        kind = Mutation(random.Random(number)).apply(folder)
        outside = contents_of(root / "outside")
        try:
            with guarded(root / "outside"):
                read_in_every_way(run_dir, folder)
                resume(run_dir)
        except Exception as error:
            raise AssertionError(f"mutation {number}, {kind}") from error
        assert contents_of(root / "outside") == outside, (number, kind)
        shutil.rmtree(root)


def test_a_deeply_nested_manifest_does_not_stop_resume(run_dir, caplog):
    caplog.set_level("INFO")
    (newest(run_dir) / "MANIFEST.json").write_text(deep())
    resumed = trainer(run_dir)
    resumed.fit(DATA, epochs=3)
    assert resumed.run.step == 6
    assert "skipped checkpoint" in caplog.text
    assert "RecursionError" in caplog.text
    assert f"resuming from {run_dir}/checkpoints/step-00000002" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state | {"run": []},
        lambda state: state | {"run": {}},
        lambda state: state | {"hooks": 3},
        lambda state: state | {"hooks": {"Checkpoint": {}, "Loss": 7}},
        lambda state: state | {"events": None},
        lambda state: state | {"history": 1},
        lambda state: state | {"engine": {"optimizers": 1}},
        lambda state: {},
        lambda state: [],
    ],
)
def test_a_run_state_of_another_shape_falls_back(run_dir, change, caplog):
    edit_json(newest(run_dir) / "state.json", change)
    seal(newest(run_dir))
    caplog.set_level("INFO")
    resumed = trainer(run_dir)
    resumed.fit(DATA, epochs=3)
    assert resumed.run.step == 6
    assert "resuming from" in caplog.text
    assert "step-00000002: step 2 (1 of 3" in caplog.text


def test_if_no_checkpoint_is_valid_each_fault_is_named_in_one_sentence(run_dir):
    for number, path in enumerate(Checkpoints(run_dir / "checkpoints").list()):
        if number % 2:
            (path / "state.json").unlink()
        else:
            (path / "MANIFEST.json").write_text("[")
    with pytest.raises(CheckpointError) as raised:
        trainer(run_dir).fit(DATA, epochs=3)
    message = str(raised.value)
    assert message.startswith(f"none of the 3 checkpoints in '{run_dir}/checkpoints' can be read")
    for name in ("step-00000000: ", "step-00000002: 'state.json' is missing", "step-00000004: "):
        assert name in message
    assert "resume='never'" in message
    assert "\n" not in message


def test_a_checkpoint_of_another_model_does_not_fall_back(run_dir):
    model = nn.Linear(4, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    other = Trainer(engine, [hooks.Checkpoint("2st")], run_dir=run_dir)
    with pytest.raises(CheckpointError, match="is of another model or run"):
        other.fit(DATA, epochs=3, resume="must")


def test_an_unreadable_file_falls_back(run_dir, monkeypatch, caplog):
    real = LocalStorage.read

    def read(self, name):
        if name == "state.json" and "step-00000004" in str(self):
            raise PermissionError(13, "Permission denied", name)
        return real(self, name)

    monkeypatch.setattr(LocalStorage, "read", read)
    resumed = trainer(run_dir)
    resumed.fit(DATA, epochs=3)
    assert resumed.run.step == 6
    assert "Permission denied" in caplog.text


@pytest.mark.parametrize("error", [MemoryError, KeyError, OverflowError, EOFError, UnicodeError])
def test_any_error_while_restoring_falls_back(run_dir, monkeypatch, caplog, error):
    real = hooks.Loss.load_state_dict
    calls = iter((True, False))

    def load(self, state):
        if next(calls, False):
            raise error("made up")
        real(self, state)

    monkeypatch.setattr(hooks.Loss, "load_state_dict", load)
    resumed = trainer(run_dir)
    resumed.fit(DATA, epochs=3)
    assert resumed.run.step == 6
    assert error.__name__ in caplog.text


def test_links_to_the_outside_are_named_and_not_followed(run_dir):
    folder = newest(run_dir)
    shutil.move(folder / "state.json", run_dir.parent / "outside" / "state.json")
    (folder / "state.json").symlink_to(run_dir.parent / "outside" / "state.json")
    assert Checkpoints(folder.parent).verify(folder) == ["'state.json' is missing"]
    with pytest.raises(OSError, match="it is a link, which is not followed"):
        LocalStorage(folder).read("state.json")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"data_offsets": [4, 132]}, "overlap|leave a gap|bytes"),
        ({"shape": [2**40, 2**40]}, "has 128 bytes, expected"),
        ({"dtype": "F128"}, "dtype is unknown"),
        ({"shape": [-8, -4]}, "expected integers from 0"),
        ({"more": 1}, "must have dtype, shape, data_offsets"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_rejected_before_a_tensor_is_read(
    run_dir, change, fault
):
    path = newest(run_dir) / "model.safetensors"
    edit_header(path, lambda header: header | {"0.weight": header["0.weight"] | change})
    with pytest.raises(CheckpointError, match=fault):
        TensorReader(LocalStorage(newest(run_dir)), "model.safetensors")


def test_a_manifest_that_lists_a_file_outside_is_rejected(run_dir):
    path = newest(run_dir) / "MANIFEST.json"
    fields = json.loads(path.read_text())
    fields.pop("checksum")
    fields["files"]["../../../outside/secret"] = fields["files"].pop("state.json")
    seal_as_it_is(path, fields)
    with pytest.raises(CheckpointError, match="which is no file of a checkpoint"):
        Manifest.read(newest(run_dir))


def test_a_state_that_could_not_be_read_again_is_rejected_before_it_is_saved(tmp_path):
    state = []
    for _ in range(200):
        state = [state]
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(TypeError, match="100 levels deep"):
        checkpoints.save(1, {"deep": state})


def test_weights_whose_names_are_no_texts_are_not_exported(run_dir, capsys):
    folder = newest(run_dir)
    state = json.loads((folder / "state.json").read_text())
    state["model"] = {"$dict": [[True, 1.0]]}
    (folder / "state.json").write_text(json.dumps(state))
    seal(folder)
    output = run_dir / "out.safetensors"
    assert main(["ckpt", "export", str(folder), "-o", str(output)]) == 1
    assert "holds weights without names" in capsys.readouterr().err
    assert not output.exists()
