"""``stoker ckpt``: looking at checkpoints, and moving weights in and out."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stoker import hooks
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.cli import main
from stoker.storage import FileRecord, LocalStorage
from support.checkpoint_states import fork
from support.toys import loader, net, same_bits, trainer, weights

NET = """
from torch import nn, randn
from torch.utils.data import DataLoader

class Net(nn.Sequential):
    def __init__(self, norm=False):
        super().__init__(nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(),
                         nn.Linear(8, 3))

def data(size=6):
    return DataLoader([(x, 0) for x in randn(size, 4)], batch_size=3)
"""


def train(folder, *more, model=None, seed=0):
    made = trainer(
        hooks.Loss(), hooks.Metrics("accuracy", on="both"),
        hooks.Checkpoint("1ep", keep=None), *more, model=model or net(seed=seed), run_dir=folder,
    )  # fmt: skip
    made.fit(loader(), loader(8), epochs=4)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of four epochs of five steps, and its trainer."""
    folder = tmp_path_factory.mktemp("ckpt") / "run"
    pace = hooks.Callback(after_epoch=lambda run: run.record("pace", 1.0))
    return folder, train(folder, hooks.EMA(0.9), pace)


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run folder, to be changed at will."""
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def stoker(capsys):
    """Run ``stoker ckpt``; its exit code, what it printed, and what it complained of."""

    def call(*words):
        try:
            code = main(["ckpt", *map(str, words)])
        except SystemExit as error:
            code = error.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def ckpt(run, step):
    return run / "checkpoints" / f"step-{step:08}"


def flip(path, at=-1):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


# -- the command itself


def test_alone_it_shows_its_help_and_is_no_success(stoker):
    code, out, _ = stoker()
    assert code == 2
    assert "verify" in out


@pytest.mark.parametrize("name", ["ls", "verify", "show", "diff", "prune", "export", "import"])
def test_every_action_has_a_help(stoker, name):
    code, out, _ = stoker(name, "--help")
    assert code == 0
    assert f"usage: stoker ckpt {name}" in out


@pytest.mark.slow
def test_near_misses_are_spelled_right(stoker, run):
    code, _, err = stoker("verfy", run)
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no command 'ckpt verfy'; did you mean 'verify'?" in err
    code, _, err = stoker("ls", run, "--jsn")
    assert code == 2
    assert "did you mean '--json'?" in err
    code, _, err = stoker("ls", run.with_name("rum"))
    assert code == 2
    assert f"did you mean '{run}'?" in err


@pytest.mark.process
def test_its_usage_does_not_import_torch():
    code = (
        "import sys; from stoker.cli import main\n"
        "try: main(['ckpt', 'ls', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("action", ["ls", "verify", "show", "prune"])
def test_a_folder_without_checkpoints_is_refused(stoker, tmp_path, action):
    code, _, err = stoker(action, tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "checkpoint in" in err


# -- ls and verify


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_ls_takes_a_run_or_its_checkpoints(stoker, run, below):
    code, out, _ = stoker("ls", run / below)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["step", "epoch", "size", "age"]
    assert {"val/loss", "train/loss", "val/accuracy"} <= set(lines[0].split())
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["0", "0"], ["5", "1"], ["10", "2"], ["15", "3"], ["20", "4"]
    ]  # fmt: skip
    assert all(line.endswith("  valid") for line in lines[1:6])


def test_ls_as_json_has_every_value_and_the_best_is_that_of_retention(stoker, run):
    rows = list(map(json.loads, stoker("ls", run, "--json")[1].splitlines()))
    by_loss = min(rows[1:], key=lambda row: row["metrics"]["val/loss"])
    assert [row["step"] for row in rows if "val/loss" in row["best"]] == [by_loss["step"]]
    assert rows[4]["epoch"] == 4
    assert rows[4]["samples"] == 80
    assert rows[4]["faults"] == []
    assert rows[4]["size"] == sum(f.stat().st_size for f in ckpt(run, 20).iterdir())
    (one,) = map(json.loads, stoker("ls", ckpt(run, 10), "--json")[1].splitlines())
    assert one["step"] == 10


def test_ls_shows_damage_and_unfinished_saves(stoker, run):
    flip(ckpt(run, 10) / "model.safetensors")
    (ckpt(run, 15) / "MANIFEST.json").unlink()
    (run / "checkpoints" / ".step-00000025.partial-7").mkdir()
    code, out, _ = stoker("ls", run)
    assert code == 0
    lines = out.splitlines()
    assert "damaged: 'model.safetensors' has checksum" in lines[3]
    assert "it has no MANIFEST.json" in lines[4]
    assert lines[4].split()[0] == "15"
    assert ".step-00000025.partial-7: a save that is in progress or was interrupted" in out


def test_a_quick_ls_reads_sizes_only_and_does_not_claim_more(stoker, run):
    flip(ckpt(run, 10) / "model.safetensors")
    (ckpt(run, 15) / "state.json").write_text("{}")
    lines = stoker("ls", run, "--quick")[1].splitlines()
    assert lines[3].endswith("sizes match")
    assert "'state.json' has 2 bytes, expected" in lines[4]


def test_verify_accepts_valid_checkpoints(stoker, run):
    code, out, _ = stoker("verify", run)
    assert code == 0
    assert out.count(": valid (5 files, ") == 5


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda c: flip(c / "model.safetensors"), "'model.safetensors' has checksum"),
        (lambda c: flip(c / "rank-00000.json", 5), "'rank-00000.json' has checksum"),
        (lambda c: (c / "state.safetensors").unlink(), "'state.safetensors' is missing"),
        (lambda c: flip(c / "MANIFEST.json", 30), "MANIFEST.json"),
        (lambda c: (c / "MANIFEST.json").unlink(), "it has no MANIFEST.json"),
    ],
    ids=["weights", "values", "missing", "manifest", "no manifest"],
)
def test_verify_names_the_file_and_the_fault(stoker, run, spoil, fault):
    spoil(ckpt(run, 10))
    code, out, _ = stoker("verify", run)
    assert code == 1
    (line,) = [line for line in out.splitlines() if line.startswith("step-00000010")]
    assert fault in line
    assert "1 of 5 checkpoints is damaged" in out
    assert stoker("verify", ckpt(run, 5))[0] == 0
    assert stoker("verify", ckpt(run, 10))[0] == 1


def test_one_that_a_live_run_removes_meanwhile_is_no_fault(stoker, run, monkeypatch):
    def verify_checkpoint(path, quick=False):
        if path.name == "step-00000005":
            shutil.rmtree(path, ignore_errors=True)
        return []

    monkeypatch.setattr("stoker.cli.ckpt.ls.verify_checkpoint", verify_checkpoint)
    code, out, _ = stoker("verify", run)
    assert code == 0
    assert "step-00000005: removed in the meantime" in out
    shutil.copytree(ckpt(run, 10), ckpt(run, 5))
    assert [
        row["step"] for row in list(map(json.loads, stoker("ls", run, "--json")[1].splitlines()))
    ] == [0, 10, 15, 20]


# -- show


def test_show_prints_the_contents_of_a_checkpoint(stoker, run):
    code, out, _ = stoker("show", ckpt(run, 10))
    assert code == 0
    for words in (
        "step 10, epoch 2, samples 40", "by 1 process", "val/loss", "optimizer     SGD",
        "model: 4 tensors, 67 numbers, 268 B", "0.weight  [8, 4] F32",
        "group 0  4 parameters, lr 0.1", "EMA", "4 tensors, 67 numbers", "files: 5",
    ):  # fmt: skip
        assert words in out


def test_show_takes_the_newest_valid_checkpoint_of_a_run_and_prints_it(stoker, run, caplog):
    flip(ckpt(run, 20) / "model.safetensors")
    code, out, err = stoker("show", run)
    assert code == 0
    assert "step 15" in out
    assert "step-00000015" in err
    assert "skipped checkpoint" in caplog.text + err


def test_show_as_json(stoker, run):
    found = json.loads(stoker("show", ckpt(run, 10), "--json")[1])
    assert found["step"] == 10
    assert found["tensors"]["model.0.weight"] == {"dtype": "F32", "shape": [8, 4], "bytes": 128}
    assert found["settings"]["precision"] == "fp32"
    assert found["run"]["stage"] == "between"


def test_show_puts_repeated_layers_into_one_line(stoker, tmp_path):
    model = nn.ModuleDict({"layers": nn.Sequential(*[nn.Linear(2, 2) for _ in range(12)])})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"model": model.state_dict()}, wait=True)
    out = stoker("show", tmp_path)[1]
    assert "layers.*.weight  [2, 2] F32 × 12" in out


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
def test_show_of_a_damaged_one_is_one_sentence(stoker, run, file):
    flip(ckpt(run, 10) / file, 9)
    code, _, err = stoker("show", ckpt(run, 10))
    assert (code, err.count("\n")) == (1, 1)
    assert f"is damaged: '{file}' has checksum" in err


# -- diff


@pytest.mark.slow
def test_equal_checkpoints_have_no_difference(stoker, run, tmp_path):
    train(tmp_path / "again", hooks.EMA(0.9))
    code, out, _ = stoker("diff", ckpt(run, 10), ckpt(run, 10))
    assert (code, out) == (0, "no difference\n")
    tensors = stoker("diff", ckpt(run, 20), ckpt(tmp_path / "again", 20), "--top", 99)[1]
    assert "model." not in tensors


def test_diff_reports_counters_values_and_tensors(stoker, run):
    code, out, _ = stoker("diff", ckpt(run, 10), ckpt(run, 15), "--top", 2)
    assert code == 1
    assert "step   10 → 15" in out
    assert "… and 1 more (--top 3)" in out
    assert "metrics: " in out
    assert "elements differ, max abs difference" in out
    assert "samples  40 → 60" in stoker("diff", ckpt(run, 10), ckpt(run, 15))[1]


def save(folder, step, state):
    with Checkpoints(folder, keep=None) as checkpoints:
        return checkpoints.save(step, state, wait=True)


def test_diff_counts_by_bits_and_measures_the_largest(stoker, tmp_path):
    nan = float("nan")
    one = {"a": torch.tensor([1.0, 0.0, nan, 2.0]), "s": torch.zeros(2), "t": torch.zeros(2),
           "x": 1, "only": torch.zeros(3), "f": nan,
           "bf": torch.ones(3, dtype=torch.bfloat16)}  # fmt: skip
    other = {"a": torch.tensor([1.5, -0.0, nan, 2.0]), "s": torch.zeros(3), "x": 2, "f": nan,
             "t": torch.zeros(2, dtype=torch.float64), "new": 3, "bf": one["bf"]}  # fmt: skip
    paths = save(tmp_path, 1, one), save(tmp_path, 2, other)
    code, out, _ = stoker("diff", *paths)
    assert code == 1
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert lines["a"] == "2 of 4 elements differ, max abs difference 0.5"
    assert lines["s"] == "shape [2] → [3]"
    assert lines["t"] == "dtype float32 → float64"
    assert lines["only"] == "only in A: a tensor [3] float32"
    assert lines["new"] == "only in B: 3"
    assert lines["x"] == "1 → 2"
    assert not {"f", "bf"} & lines.keys()


def test_diff_with_a_damaged_one_is_trouble_not_a_difference(stoker, run):
    flip(ckpt(run, 10) / "model.safetensors")
    code, _, err = stoker("diff", ckpt(run, 10), ckpt(run, 15))
    assert code == 2
    assert "is damaged" in err
    assert stoker("diff", ckpt(run, 5), ckpt(run, 15), "--top", 0)[0] == 2


# -- prune


def steps(run):
    return [int(path.name[5:]) for path in Checkpoints(run / "checkpoints").list()]


def test_prune_keeps_the_newest_each_nth_and_the_best(stoker, run):
    rows = list(map(json.loads, stoker("ls", run, "--json")[1].splitlines()))
    worst = max(rows[1:], key=lambda row: row["metrics"]["val/loss"])["step"]
    how = ("--keep", 1, "--keep-every", 10, "--best", "val/loss", "--mode", "max")
    expected = sorted({0, 10, 20, worst})
    code, out, _ = stoker("prune", run, *how, "--dry-run")
    assert code == 0
    assert f"{len(expected)} would be kept" in out
    assert steps(run) == [0, 5, 10, 15, 20]
    code, out, _ = stoker("prune", run, *how)
    assert code == 0
    assert steps(run) == expected
    assert out.count(" removed (") == 5 - len(expected)
    assert stoker("verify", run)[0] == 0


def test_prune_counts_only_valid_checkpoints(stoker, run):
    flip(ckpt(run, 20) / "model.safetensors")
    stoker("prune", run, "--keep", 2)
    assert steps(run) == [10, 15, 20]


def test_a_dry_run_writes_nothing(stoker, run):
    (run / "checkpoints" / ".step-00000025.partial-7").mkdir()
    before = sorted(run.rglob("*"))
    stoker("prune", run, "--dry-run")
    assert sorted(run.rglob("*")) == before


def hold(folder, ready):
    Checkpoints(folder).open()
    ready.send("open")
    time.sleep(30)


@pytest.mark.process
def test_the_folder_of_a_live_run_is_not_pruned(stoker, run):
    here, there = fork.Pipe()
    process = fork.Process(target=hold, args=(run / "checkpoints", there))
    process.start()
    try:
        assert here.recv() == "open"
        code, _, err = stoker("prune", run, "--keep", 1)
        assert code == 1
        assert f"is in use by process {process.pid} on {socket.gethostname()}" in err
        assert steps(run) == [0, 5, 10, 15, 20]
        assert stoker("ls", run)[0] == 0
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--keep", 0], "keep must be at least 1"),
        (["--mode", "min"], "--mode needs --best"),
        (["--best", "pace"], "pass --mode min or --mode max"),
        (["--best", "val/los"], "did you mean 'val/loss'?"),
        (["--best", "val/loss", "--mode", "low"], "--mode must be min or max, got 'low'"),
    ],
)
def test_prune_refuses_rules_that_cannot_be(stoker, run, words, fault):
    code, _, err = stoker("prune", run, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert fault in err
    assert steps(run) == [0, 5, 10, 15, 20]


# -- several processes


def of_two_processes(folder, weight, drawn):
    """A checkpoint whose weight stands in two halves, as two processes write it."""
    folder.mkdir()
    pieces = []
    for rank, half in enumerate(weight.split(2)):
        file, name = f"model-{rank:05}-of-00002.safetensors", f"w@{2 * rank},0"
        save_file({name: half.clone()}, folder / file)
        pieces.append({"file": file, "name": name, "offset": [2 * rank, 0]})
        (folder / f"rank-{rank:05}.json").write_text(json.dumps({"drawn": drawn[rank]}))
    state = {"model": {"w": {"$tensor": "model.w"}}, "engine": {}, "run": {}}
    (folder / "state.json").write_text(json.dumps(state))
    storage = LocalStorage(folder)
    files = {n: FileRecord(storage.size(n), storage.checksum(n)) for n in storage.list()}
    split = {"model.w": {"dtype": "F32", "shape": list(weight.shape), "pieces": pieces}}
    (folder / "MANIFEST.json").write_text(Manifest(1, {}, 2, files, split).text())
    return folder


def test_shards_are_shown_compared_and_exported_as_one(stoker, tmp_path):
    weight = torch.randn(4, 3)
    one = of_two_processes(tmp_path / "a", weight, [1, 2])
    other = of_two_processes(tmp_path / "b", weight, [1, 3])
    assert "by 2 processes" in stoker("show", one)[1]
    assert "w  [4, 3] F32" in stoker("show", one)[1]
    code, out, _ = stoker("diff", one, other)
    assert code == 1
    assert out.splitlines()[2:] == ["values: 1 differs", "  rank 1.drawn  2 → 3"]
    assert stoker("export", one, "-o", tmp_path / "w.safetensors")[0] == 0
    assert load_file(tmp_path / "w.safetensors")["w"].equal(weight)


# -- export


@pytest.mark.slow
def test_exported_weights_load_into_the_model(stoker, made, run, tmp_path):
    for name, read in (("w.safetensors", load_file), ("w.pt", torch.load)):
        code, out, _ = stoker("export", run, "-o", tmp_path / "new" / name)
        assert code == 0
        assert "weights of step 20, 4 tensors" in out
        fresh = net(seed=9)
        fresh.load_state_dict(read(tmp_path / "new" / name))
        assert same_bits(fresh, made[1].engine.model)
    assert [path.name for path in (tmp_path / "new").iterdir() if path.name[0] == "."] == []


def test_an_exported_file_can_be_read_as_other_files_can(stoker, run, tmp_path):
    (tmp_path / "plain").touch()
    stoker("export", run, "-o", tmp_path / "w.safetensors")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("w.safetensors", "plain")]
    assert modes[0] == modes[1]


@pytest.mark.slow
def test_tied_weights_are_exported_under_each_name(stoker, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.c(self.b(self.a(x)))

    run = train(tmp_path / "tied", hooks.EMA(0.5), model=Tied())
    stoker("export", tmp_path / "tied", "-o", tmp_path / "w.safetensors")
    fresh = Tied()
    fresh.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert same_bits(fresh, run.engine.model)
    assert stoker("export", tmp_path / "tied", "-o", tmp_path / "e.safetensors", "--ema")[0] == 0
    found = load_file(tmp_path / "e.safetensors")
    assert found["a.weight"].equal(found["b.weight"])
    assert not found["a.weight"].equal(run.engine.model.a.weight)


def average(made):
    return next(hook for hook in made.hooks if hook.name == "EMA").state_dict()["average"]


def test_averaged_weights_are_exported_under_their_names(stoker, made, run, tmp_path):
    code, out, _ = stoker("export", run, "-o", tmp_path / "w.safetensors", "--ema")
    assert code == 0
    assert "averaged weights of step 20" in out
    found = load_file(tmp_path / "w.safetensors")
    assert all(found[name].equal(one) for name, one in average(made[1]).items())


def project(folder, model="{_target_: ckpt_net.Net}", data="{_target_: ckpt_net.data}"):
    (folder / "ckpt_net.py").write_text(NET)
    (folder / "cfg.yaml").write_text(f"model: {model}\nval_loader: {data}\n")
    return folder / "cfg.yaml"


@pytest.mark.slow
def test_buffers_are_exported_beside_averaged_weights(stoker, tmp_path):
    run = train(tmp_path / "run", hooks.EMA(0.9), model=net(norm=True))
    where = ("export", tmp_path / "run", "-o", tmp_path / "w.safetensors", "--ema")
    assert stoker(*where)[0] == 0
    found = load_file(tmp_path / "w.safetensors")
    assert all(found[name].equal(one) for name, one in average(run).items())
    assert found["1.running_mean"].equal(run.engine.model[1].running_mean)


@pytest.mark.slow
def test_ema_without_an_average_is_refused(stoker, tmp_path):
    train(tmp_path / "run")
    code, _, err = stoker("export", tmp_path / "run", "-o", tmp_path / "w.pt", "--ema")
    assert code == 2
    assert "none of its hooks does" in err


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-o", "w.h5"], "must end in .safetensors, .pt or .onnx"),
        (["-o", "w.onnx"], ".onnx needs --config CFG"),
        (["-o", "w.pt", "--config", "cfg.yaml"], "--config applies only to .onnx"),
        (["-o", "w.pt", "--allow", "x"], "--allow needs --config"),
        ([], "the following arguments are required: -o/--output"),
    ],
)
def test_export_refuses_what_it_would_not_use(stoker, run, tmp_path, monkeypatch, words, fault):
    monkeypatch.chdir(tmp_path)
    code, _, err = stoker("export", run, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert fault in err


def test_a_checkpoint_is_never_written_into(stoker, run):
    code, _, err = stoker("export", run, "-o", ckpt(run, 10) / "model.safetensors")
    assert code == 2
    assert "would modify the checkpoint" in err
    assert stoker("verify", run)[0] == 0


def test_damaged_weights_are_not_exported(stoker, run, tmp_path):
    flip(ckpt(run, 10) / "model.safetensors")
    code, _, err = stoker("export", ckpt(run, 10), "-o", tmp_path / "w.pt")
    assert code == 1
    assert "is damaged: 'model.safetensors' has checksum" in err
    assert not (tmp_path / "w.pt").exists()


def test_onnx_without_its_packages_is_one_sentence(stoker, run, tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.cli.ckpt.onnx.find_spec", lambda name: None)
    code, _, err = stoker("export", run, "-o", tmp_path / "w.onnx", "--config", project(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install onnx onnxscript" in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_takes_batches_of_any_size(stoker, run, tmp_path):
    import onnxruntime as runtime

    path = tmp_path / "w.onnx"
    assert stoker("export", run, "-o", path, "--config", project(tmp_path))[0] == 0
    session = runtime.InferenceSession(path)
    x = torch.randn(7, 4)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    model = net()
    model.load_state_dict(load_file(ckpt(run, 20) / "model.safetensors"))
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach())


# -- import


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_a_malicious_pickle_runs_nothing_unless_trusted(stoker, tmp_path):
    marker = tmp_path / "marker"
    for modern in (True, False):
        torch.save(
            {"state_dict": {"w": torch.ones(2)}, "more": Malicious(marker)},
            tmp_path / "evil.ckpt", _use_new_zipfile_serialization=modern,
        )  # fmt: skip
        code, _, err = stoker("import", tmp_path / "evil.ckpt", "-o", tmp_path / "w.safetensors")
        assert (code, err.count("\n")) == (2, 1)
        assert "needs 'posix.mkdir', which can execute arbitrary code" in err
        assert "--trust" in err
        assert not marker.exists()
        assert not (tmp_path / "w.safetensors").exists()
    assert (
        stoker("import", tmp_path / "evil.ckpt", "-o", tmp_path / "w.safetensors", "--trust")[0]
        == 0
    )
    assert marker.exists()
    assert load_file(tmp_path / "w.safetensors")["w"].equal(torch.ones(2))


def test_a_lightning_checkpoint_gives_its_weights_and_says_what_was_stripped(stoker, tmp_path):
    inner = weights(net())
    saved = {
        "epoch": 1, "pytorch-lightning_version": "2.2.0", "optimizer_states": [{"state": {}}],
        "state_dict": {f"model._orig_mod.{name}": value for name, value in inner.items()},
    }  # fmt: skip
    torch.save(saved, tmp_path / "last.ckpt")
    code, out, err = stoker("import", tmp_path / "last.ckpt", "-o", tmp_path / "w.safetensors")
    assert code == 0
    assert "weights of 'state_dict'" in err
    assert "stripped 'model._orig_mod.' from every name" in err
    assert "4 tensors, 67 numbers" in out
    assert same_bits(load_file(tmp_path / "w.safetensors"), inner)


def test_a_file_whose_weights_are_objects_is_loaded_when_trusted(stoker, tmp_path):
    torch.save({"args": Namespace(lr=1), "net": net()}, tmp_path / "last.ckpt")
    where = ("import", tmp_path / "last.ckpt", "-o", tmp_path / "w.safetensors")
    code, _, err = stoker(*where)
    assert code == 2
    assert "needs 'argparse.Namespace'" in err
    torch.save(net(), tmp_path / "last.ckpt")
    assert stoker(*where)[0] == 2
    assert stoker(*where, "--trust")[0] == 0


def test_prefixes_stay_unless_all_names_have_them(stoker, tmp_path):
    names = ["model.embed.weight", "model.norm.weight", "lm_head.weight"]
    torch.save({name: torch.ones(2) for name in names}, tmp_path / "w.pth")
    _, _, err = stoker("import", tmp_path / "w.pth", "-o", tmp_path / "w.safetensors")
    assert "stripped" not in err
    assert sorted(load_file(tmp_path / "w.safetensors")) == sorted(names)


def test_a_hugging_face_folder_in_each_of_its_forms(stoker, tmp_path):
    full = weights(net())
    first, second = dict(list(full.items())[:2]), dict(list(full.items())[2:])
    table = {
        "weight_map": dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    }
    folders = [tmp_path / f"checkpoint-{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
    save_file(full, folders[0] / "model.safetensors")
    save_file(first, folders[1] / "a.safetensors")
    save_file(second, folders[1] / "b.safetensors")
    (folders[1] / "model.safetensors.index.json").write_text(json.dumps(table))
    torch.save(full, folders[2] / "pytorch_model.bin")
    text = json.dumps(table).replace("safetensors", "bin")
    torch.save(first, folders[3] / "a.bin")
    torch.save(second, folders[3] / "b.bin")
    (folders[3] / "pytorch_model.bin.index.json").write_text(text)
    for folder in folders:
        assert stoker("import", folder, "-o", tmp_path / "w.safetensors")[0] == 0
        assert same_bits(load_file(tmp_path / "w.safetensors"), full)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"weight_map": {"w": "../secret.safetensors"}}, "which is not a file in the same folder"),
        ({"weight_map": {"w": "gone.safetensors"}}, "which is not a file in the same folder"),
        ({"weight_map": {"other": "a.safetensors"}}, "no shard contains, such as 'other'"),
        ({}, "is not an index of weights"),
    ],
)
def test_an_index_that_lies_is_refused(stoker, tmp_path, table, fault):
    folder = tmp_path / "hf"
    folder.mkdir()
    save_file({"w": torch.ones(1)}, tmp_path / "secret.safetensors")
    save_file({"w": torch.ones(1)}, folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))
    code, _, err = stoker("import", folder, "-o", tmp_path / "w.safetensors")
    assert (code, err.count("\n")) == (2, 1)
    assert fault in err


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "torch cannot load"),
        (b"hello" * 99, "torch cannot load"),
        ([1, 2], "contains a list, expected a state dict"),
        ({"g": {"w": torch.ones(1)}, "d": {"w": torch.ones(1)}}, "its keys are g, d"),
        ({"w": torch.ones(1, dtype=torch.complex128)}, "a tensor of torch.complex128"),
    ],
    ids=["empty", "garbage", "list", "two models", "dtype"],
)
def test_files_without_weights_are_rejected_in_one_sentence(stoker, tmp_path, content, fault):
    path = tmp_path / "x.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    code, _, err = stoker("import", path, "-o", tmp_path / "w.safetensors")
    assert (code, err.count("\n")) == (2, 1)
    assert fault in err


def test_own_checkpoints_and_other_endings_are_sent_elsewhere(stoker, run, tmp_path):
    code, _, err = stoker("import", ckpt(run, 10), "-o", tmp_path / "w.safetensors")
    assert code == 2
    assert "use stoker ckpt export" in err
    assert stoker("import", tmp_path / "no.pt", "-o", tmp_path / "w.safetensors")[0] == 2
    assert "or end in .safetensors" in stoker("import", run, "-o", tmp_path / "w.pt")[2]
