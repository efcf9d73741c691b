"""A YAML from anywhere: what it cannot name, pass, read, write or import."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stoker.build import build_job
from stoker.config import ConfigError, load
from stoker.config.trust import Trust
from support.server import run

REST = """\
optimizer: {type: SGD, lr: 0.1}
criterion: CrossEntropyLoss
train_loader:
  _target_: torch.utils.data.DataLoader
  dataset:
    _target_: torch.utils.data.TensorDataset
    _args_:
      - {_target_: torch.randn, _args_: [8, 4]}
      - {_target_: torch.zeros, _args_: [8], dtype: {_object_: torch.int64}}
  batch_size: 4
run: {max_steps: 1, progress: false, threads: 1}
"""
MODEL = "model: {_target_: torch.nn.Linear, _args_: [4, 3]}\n"


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Write a config, check and build it, and return the one sentence that refuses it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def refused(text, **files):
        for name, content in files.items():
            (folder / f"{name}.py").write_text(content)
        (folder / "cfg.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            build_job(load("cfg.yaml"))
        assert not (tmp_path / "written").exists()
        return str(caught.value)

    return refused


NAMES = [
    "os.system",
    "builtins.eval",
    "builtins.open",
    "subprocess.Popen",
    "functools.partial",
    "operator.methodcaller",
    "importlib.import_module",
    "pathlib.Path",
    "torch.from_file",
    "torch.add",
    "torch.load",
    "torch.save",
    "torch.PyTorchFileWriter",
    "torch.import_ir_module",
    "torch.jit.load",
    "torch.hub.load",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.package.PackageImporter",
    "torch.utils.cpp_extension.load_inline",
    "torch.utils.data.datapipes.iter.FileOpener",
    "torch.utils.model_zoo.load_url",
    "torch.utils.dlpack.from_dlpack",
    "torch.distributed.init_process_group",
    "torch.multiprocessing.spawn",
    "torch.nn.functional.torch.sys.path.insert",
    "torch.nn.functional.warnings.warn",
    "torch.nn.functional.handle_torch_function",
    "torch.nn.functional.boolean_dispatch",
    "torch.nn.modules.module.torch.load",
    "torch.nn.Module.register_forward_hook",
    "torch.nn.Linear.forward",
    "torch.nn.Linear.__init__",
    "torch.nn.Linear.__init__.__globals__",
    "torch.nn.Linear.__subclasses__",
    "torch.nn.Linear.load_state_dict",
    "torch.nn.Embedding.from_pretrained",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.optim.Adam.register_step_post_hook",
    "torch.optim.adam.torch.load",
    "torch.optim.lr_scheduler.partial",
    "torch.utils.data.dataloader.multiprocessing.Process",
    "torch.utils.data.dataloader.os.system",
    "torch.Tensor.tofile",
    "torch.Tensor.numpy",
    "torch.serialization.load",
    "torch.storage.UntypedStorage.from_file",
    "torch.UntypedStorage.from_file",
    "torch.FloatStorage.from_file",
    "torch.set_default_device",
    "torch.compile",
    "torchmetrics.SacreBLEUScore",
    "torchmetrics.text.ROUGEScore",
    "torchmetrics.image.MemorizationInformedFrechetInceptionDistance",
    "torchmetrics.image.fid.FrechetInceptionDistance",
    "torchmetrics.multimodal.CLIPScore",
    "torchmetrics.utilities.imports.RequirementCache",
    "torchmetrics.metric.CompositionalMetric",
    "stoker.load_weights",
    "stoker.Engine",
    "stoker.Trainer",
    "stoker.metrics.get",
    "stoker.hooks.default",
    "stoker.checkpoint.commit.remove",
    "stoker.checkpoint.write.commit.remove",
    "stoker.checkpoint.files.write_file",
    "stoker.storage.write_atomic",
    "stoker.storage.local.write_atomic",
    "stoker.events.log_text",
    "stoker.events.media.log_text",
    "stoker.hooks.write.Path",
    "stoker.hooks.cost_report.write_json",
    "stoker.config.build",
    "stoker.config.load",
    "stoker.config.files.executed",
    "stoker.config.names.locate",
    "stoker.cli.main",
    "stoker.launch.run",
    "stoker.testing.proof.os",
    "stoker.rundir.provenance.subprocess.run",
    "datasets.load_dataset",
    "transformers.AutoModel.from_pretrained",
    "numpy.load",
    "pickle.loads",
    "yaml.unsafe_load",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_not_on_the_list_is_neither_called_nor_passed(refused, name):
    model = f"model: {{_target_: {name}, _args_: ['x']}}\n"
    error = refused(model + REST)
    assert f"'{name}' may not be named by a YAML file" in error
    assert "--allow " in error
    assert len(error.splitlines()) == 1
    passed = f"model: {{_target_: torch.nn.Linear, _args_: [4, 3], dtype: {{_object_: {name}}}}}\n"
    assert "may not be named by a YAML file" in refused(passed + REST)


def model_with(argument):
    return f"model: {{_target_: torch.nn.Sequential, _args_: [{argument}]}}\n{REST}"


ARGUMENTS = {
    "out of a constructor": (
        model_with("{_target_: torch.zeros, _args_: [1], out: {_target_: torch.ones, _args_: [1]}}")
    ),
    "the folder of Checkpoint": f"{MODEL}{REST}hooks: [{{type: Checkpoint, folder: ../written}}]\n",
    "the path of SaveWeights": f"{MODEL}{REST}hooks: [{{type: SaveWeights, path: ../written}}]\n",
    "a path by position": f"{MODEL}{REST}hooks: [{{type: SaveWeights, _args_: [../written]}}]\n",
    "a path in the current folder": f"{MODEL}{REST}hooks: [{{type: SaveWeights, path: json.py}}]\n",
    "a path in a reference": (
        f"{MODEL}{REST}hooks: [{{type: SaveWeights, path: '${{at}}'}}]\nat: ../written\n"
    ),
    "a path as a call": (
        f"{MODEL}{REST}hooks: [{{type: Profiler, path: {{_target_: torch.ones, _args_: [1]}}}}]\n"
    ),
    "the path of Profiler": f"{MODEL}{REST}hooks: [{{type: Profiler, path: ../written}}]\n",
    "the trace of CostReport": f"{MODEL}{REST}hooks: [{{type: CostReport, trace: ../written}}]\n",
    "the path of a writer": (
        f"{MODEL}{REST}hooks:\n"
        "  - {type: Write, _args_: [{_target_: stoker.events.Csv, path: tensorboard.py}]}\n"
    ),
    "the server of MLflow": (
        f"{MODEL}{REST}hooks:\n"
        "  - {type: Write, _args_: [{_target_: stoker.events.MLflow, uri: 'http://example.com'}]}\n"
    ),
    "a writer as a function": (
        f"{MODEL}{REST}".replace("batch_size: 4", "collate_fn: {_object_: stoker.events.Csv}")
    ),
    "a function of another module": (
        f"{MODEL}{REST}".replace("batch_size: 4", "worker_init_fn: {_object_: os.system}")
    ),
    "a metric that downloads": f"{MODEL}{REST}hooks: [{{type: Metrics, x: BERTScore}}]\n",
    "a metric by position": f"{MODEL}{REST}hooks: [{{type: Metrics, _args_: [ROUGEScore]}}]\n",
    "a metric by its short name": f"{MODEL}{REST}hooks: [{{type: Metrics, x: {{type: InfoLM}}}}]\n",
    "a function as the rate": (
        f"{MODEL}{REST}lr_scheduler: {{type: LambdaLR, lr_lambda: {{_object_: os.system}}}}\n"
    ),
    "a call back": f"{MODEL}{REST}hooks: [{{type: Callback, before_run: {{_object_: os.a}}}}]\n",
    "a start method": (
        f"{MODEL}{REST}".replace(
            "batch_size: 4", "num_workers: 1, multiprocessing_context: [x]"
        ).replace("\n  num_workers: 1,", "\n  num_workers: 1\n ")
    ),
    "an import": f"{MODEL}{REST}imports: [antigravity]\n",
    "an import of stoker": f"{MODEL}{REST}imports: [stoker.cli.main]\n",
    "an import that is a path": f"{MODEL}{REST}imports: ['../written']\n",
    "a name in a short name": f"model: {{type: os.system}}\n{REST}",
    "a folder with dots": f"{MODEL}{REST}".replace("{max", "{name: ../../written, max"),
    "an absolute name": f"{MODEL}{REST}".replace("{max", "{name: /tmp/written, max"),
    "a name with a NUL": f"{MODEL}{REST}".replace("{max", '{name: "a\\0b", max'),
    "a name with a line end": f"{MODEL}{REST}".replace("{max", '{name: "a\\nb", max'),
    "a name that is dots": f"{MODEL}{REST}".replace("{max", "{name: '..', max"),
    "a name with dots inside": f"{MODEL}{REST}".replace("{max", "{name: a/../../written, max"),
    "a folder elsewhere": f"{MODEL}{REST}".replace("{max", "{dir: ../written, max"),
    "an absolute folder": f"{MODEL}{REST}".replace("{max", "{dir: /written, max"),
    "a folder by URL": f"{MODEL}{REST}".replace("{max", "{dir: 'file:///written', max"),
    "a folder with a NUL": f"{MODEL}{REST}".replace("{max", '{dir: "a\\0b", max'),
    "a checkpoint elsewhere": f"{MODEL}{REST}".replace("{max", "{resume: ../written, max"),
    "a file above": f"defaults: ../base.yaml\n{MODEL}{REST}",
    "an absolute file": f"defaults: /etc/hostname\n{MODEL}{REST}",
    "a file of the system": f"defaults: [/proc/self/environ]\n{MODEL}{REST}",
    "a device": f"defaults: /dev/zero\n{MODEL}{REST}",
    "a python object": "model: !!python/object/apply:os.system ['touch ../written']\n",
    "a python name": "model: !!python/name:os.system\n",
    "a python module": "model: {_target_: !!python/module:os x}\n",
    "a key twice": f"{MODEL}{MODEL}{REST}",
}


@pytest.mark.parametrize("text", ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_that_could_run_code_or_write_elsewhere_is_refused(refused, tmp_path, text):
    (tmp_path / "base.yaml").write_text("run: {epochs: 1}\n")
    error = refused(text)
    assert len(error.splitlines()) == 1, error


def test_a_link_does_not_lead_defaults_out_of_the_folder(refused, tmp_path):
    (tmp_path / "secret.yaml").write_text("run: {epochs: 1}\n")
    (tmp_path / "folder" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "folder" / "up").symlink_to(tmp_path)
    for name in ("link.yaml", "up/secret.yaml"):
        assert "--allow " in refused(f"defaults: {name}\n{MODEL}{REST}")
        assert load("cfg.yaml", allow=[str(tmp_path)]).tree["run"]["epochs"] == 1


def test_defaults_below_the_folder_reach_no_further_than_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text("run: {epochs: 1}\n")
    (tmp_path / "sub" / "mid.yaml").write_text("defaults: ../base.yaml\n")
    (tmp_path / "top.yaml").write_text("defaults: sub/mid.yaml\n")
    assert load("top.yaml").tree["run"]["epochs"] == 1
    with pytest.raises(ConfigError, match=f"--allow {tmp_path}/base.yaml"):
        load("sub/mid.yaml")
    for allowed in ("base.yaml", "./", str(tmp_path)):
        assert load("sub/mid.yaml", allow=[allowed]).tree["run"]["epochs"] == 1


def test_what_the_user_allows_or_types_may_be_written(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    hook = "hooks: [{type: SaveWeights, path: ../out.safetensors}]\n"
    (folder / "cfg.yaml").write_text(MODEL + REST + hook)
    with pytest.raises(ConfigError, match=f"--allow {tmp_path}/out.safetensors"):
        load("cfg.yaml").check()
    load("cfg.yaml", allow=[f"{tmp_path}/out.safetensors"]).check()
    load("cfg.yaml", allow=["stoker.hooks.SaveWeights"]).check()
    load("cfg.yaml", ["hooks.0.path=../out.safetensors"]).check()
    load("cfg.yaml", ["~hooks", "run.dir=../elsewhere"]).check()
    load("cfg.yaml", ["~hooks", "+hooks={type: SaveWeights, path: ../out.safetensors}"]).check()


@pytest.mark.process
def test_the_saved_config_of_a_run_elsewhere_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("cfg.yaml").write_text(MODEL + REST)
    build_job(load("cfg.yaml", [f"run.dir={tmp_path / 'elsewhere'}"])).fit()
    again = load(tmp_path / "elsewhere" / "cfg")
    assert str(build_job(again).trainer.run.dir).startswith(str(tmp_path / "elsewhere"))


def test_a_config_file_does_not_name_its_run_out_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for name in ("../config.yaml", "...yaml", "..yaml"):
        Path(name).write_text(MODEL + REST)
        assert load(name).name not in ("..", ".", "")


# Own modules


OWN = """\
import os
import subprocess
from functools import partial
from os import system
from subprocess import run as shell
from torch import load, nn
from torch.nn import Linear

width = 4
small = partial(nn.Linear, 4)
remove = partial(os.remove, "x")

class Net(nn.Module):
    pass
"""


@pytest.mark.parametrize("name", ["Net", "Linear", "small", "nn.Linear"])
def test_a_module_beside_the_file_may_be_named(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("own_parts.py").write_text(OWN)
    trust = Trust([tmp_path])
    if name == "nn.Linear":
        with pytest.raises(ValueError, match="leads through another module"):
            trust.find("own_parts.nn.Linear")
    else:
        assert trust.find(f"own_parts.{name}") is not None


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "system", "shell", "subprocess.Popen", "load", "remove", "nn.Module.apply"),
        *("Net.__init__.__globals__", "Net.apply", "Net.load_state_dict", "__builtins__"),
    ],
)
def test_what_a_module_beside_the_file_imports_is_not_its_own(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("own_parts2.py").write_text(OWN)
    with pytest.raises(ValueError, match="may not be named|leads through another"):
        Trust([tmp_path]).find(f"own_parts2.{name}")


@pytest.mark.parametrize("top", ["subprocess", "stoker", "torch", "os", "pickle"])
def test_a_folder_does_not_make_a_package_its_own(tmp_path, monkeypatch, top):
    monkeypatch.chdir(tmp_path)
    (tmp_path / top).mkdir()
    (tmp_path / f"{top}.py").write_text("raise SystemExit('imported')\n")
    with pytest.raises(ValueError, match="may not be named|has no"):
        Trust([tmp_path]).find(f"{top}.Popen")


def test_allowing_a_package_does_not_allow_what_it_imports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("allowed_package.py").write_text(OWN)
    trust = Trust([tmp_path / "elsewhere"], ["allowed_package."])
    assert trust.find("allowed_package.Net") is not None
    with pytest.raises(ValueError, match="leads through another module"):
        trust.find("allowed_package.os.system")


SHADOWS = ("tensorboard", "wandb", "json", "random", "mlflow", "omegaconf", "torchmetrics", "scipy")


COMMANDS = """
import runpy, sys
codes = []
for words in (["explain"], ["train"], ["config", "--check"]):
    sys.argv = ["stoker", words[0], "cfg.yaml", *words[1:]]
    sys.path[:0] = [""] if codes else []  # the first one is there
    try:
        runpy.run_module("stoker", run_name="__main__")
    except SystemExit as end:
        codes.append(end.code)
print(codes)
"""
"""Runs `python -m stoker` three times in one process."""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["list only", "with a module of its own"])
def test_files_in_the_folder_hide_no_module(tmp_path, own):
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"open('imported-{name}', 'w')\n")
    model = MODEL.replace("torch.nn.Linear", "net.net") if own else MODEL
    (tmp_path / "net.py").write_text(
        "import torch\nfrom helper import width\n"
        "def net(a, b):\n    import late\n    return torch.nn.Linear(width, late.height)\n"
    )
    (tmp_path / "helper.py").write_text("width = 4\n")
    (tmp_path / "late.py").write_text("height = 3\n")
    hook = "hooks: [{type: Write, _args_: [{_target_: stoker.events.TensorBoard}]}]\n"
    (tmp_path / "cfg.yaml").write_text(model + REST + hook)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0]"], done.stderr
    assert not list(tmp_path.glob("imported-*"))


# Texts that expand without bound


def aliases(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for n in range(1, levels):
        below = ", ".join([f"*a{n - 1}"] * 9)
        lines.append(f"a{n}: &a{n} [{below}]")
    return "\n".join([*lines, f"run: {{epochs: *a{levels - 1}}}", ""])


def references(levels):
    lines = ["a0: xxxxxxxxxx"]
    lines += [f"a{n}: '{f'${{a{n - 1}}}' * 9}'" for n in range(1, levels)]
    return "\n".join([*lines, f"run: {{name: '${{a{levels - 1}}}'}}", ""])


BOMBS = {
    "aliases": aliases(12),
    "references": references(12),
    "references to lists": "a0: [x, x]\n"
    + "".join(f"a{n}: {[f'${{a{n - 1}}}'] * 9}\n" for n in range(1, 12))
    + "run: {epochs: '${a11}'}\n",
    "merges": "a0: &a0 {k: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
    + "run: *a11\n",
    "a merge of itself": "run: &a {<<: *a}\n",
    "brackets": "run: " + "[" * 100_000 + "\n",
    "braces": "run: " + "{a: " * 5_000 + "\n",
    "dashes": "run:\n  " + "- " * 20_000 + "x\n",
    "indentation": "".join(f"{' ' * n}a:\n" for n in range(500)),
    "a chain of references": "".join(f"a{n}: ${{a{n + 1}}}\n" for n in range(5000))
    + "a5000: 1\nrun: {epochs: '${a0}'}\n",
    "a deep chain": "a0: [x]\n"
    + "".join(f"a{n}: ['${{a{n - 1}}}']\n" for n in range(1, 2000))
    + "run: {epochs: '${a1999}'}\n",
    "digits": f"run: {{seed: {'9' * 10_000}}}\n",
    "hexadecimal digits": f"run: {{seed: 0x{'f' * 100_000}}}\n",
    "a character that does not exist": 'run: {name: "\\UFFFFFFFF"}\n',
    "half a character": 'run: {name: "\\ud800"}\n',
    "a long text": f"run: {{name: [{'x' * 100_000}]}}\n",
    "a large file": "# " + "x" * 5_000_000 + "\n",
    "itself": "run: &a [*a]\n",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_text_that_expands_without_bound_is_refused_in_one_sentence(refused, text):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refused(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # KB
    assert max(map(len, error.splitlines())) < 3000
    error.encode()


# Random trees


RUNNER = Path(__file__).parents[1] / "support" / "hostile_trees.py"


@pytest.mark.process
@pytest.mark.slow
def test_random_trees_run_no_code_and_raise_nothing_but_config_errors(tmp_path):
    count = os.environ.get("STOKER_FUZZ", "400")
    done = run(str(RUNNER), str(tmp_path), count)
    assert done.returncode == 0, textwrap.shorten(done.stdout + done.stderr, 4000)
    refused, built = map(int, done.stdout.split()[-2:])
    assert refused + built == int(count)
    assert min(refused, built) > 0


def test_defaults_that_include_each_other_many_times_are_bounded(tmp_path):
    for level in range(40):
        (tmp_path / f"c{level}.yaml").write_text(
            f"defaults: [c{level + 1}.yaml, c{level + 1}.yaml]\n"
        )
    (tmp_path / "c40.yaml").write_text("{}\n")
    with pytest.raises(ConfigError, match="defaults lead to more than 200 files"):
        load(tmp_path / "c0.yaml")
