"""Wrong inputs are answered with one sentence each, before anything starts."""

import re
import shlex
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from stoker.cli import main
from stoker.config import RunConfig

USED_TO_BE_TRACEBACKS = """
train cfg.yaml --resume maybe                           | maybe
train cfg.yaml --resume=latest                          | did you mean 'auto'?
train cfg.yaml run.resume=cfg.yaml                      | cfg.yaml
train cfg.yaml run.resume=.                             | no complete checkpoint
train cfg.yaml run.resume=must                          | resume='must'
train cfg.yaml run.validate_every=1epoch                | did you mean '1ep'?
train cfg.yaml run.epochs=-1                            | run.epochs must be at least 1
train cfg.yaml run.limit_val_batches=-1                 | run.limit_val_batches
train cfg.yaml run.dir=cfg.yaml                         | not a writable folder
explain cfg.yaml run.validate_every=1epoch              | did you mean '1ep'?
prove cfg.yaml run.validate_every=1epoch                | did you mean '1ep'?
profile cfg.yaml --output x.txt                         | --output must end in .json
profile cfg.yaml --json cost.json                       | is not an override
run cfg.yaml                                            | use 'stoker train cfg.yaml'
run binary.py                                           | is not a Python script
run syntax.py                                           | syntax.py:1
"""
WORDS_OF_OTHERS = """
fit cfg.yaml                                            | use 'stoker train'
ckpt convert x                                          | use 'stoker ckpt import'
train cfg.yaml --report_to wandb                        | _args_: [{_target_: stoker.events.
train cfg.yaml --nnodes 2                               | start it with torchrun
train cfg.yaml --tensor-parallel-size 2                 | use 'run.parallel.tensor=2'
train cfg.yaml --local_rank 0                           | use '--on env'
train cfg.yaml --qqqqq                                  | 'stoker train --help' lists its options
train cfg.yaml run.parallel.fsdp=2                      | use 'run.parallel.shard=2'
train cfg.yaml '+hooks={type: Checkpoint, monitor: x}'  | use 'best: x'
train cfg.yaml '+hooks={type: Write, writers: []}'      | use '_args_: […]'
train cfg.yaml +hooks=TerminateOnNaN                    | use hooks.NaNGuard
status cfg.yaml                                         | is not a run folder: it is a file
"""

COMMANDS = """
trian cfg.yaml                                          | did you mean 'train'?
train                                                   | CFG
train cgf.yaml                                          | did you mean 'cfg.yaml'
train .                                                 | config.yaml
train folder.yaml                                       | folder.yaml
train binary.yaml                                       | binary.yaml is not a text file
train list.yaml                                         | must be a mapping
train text.txt                                          | expected .py, .yaml or .yml
train broken.yaml                                       | broken.yaml:2
train syntax.py                                         | syntax.py:1
train cfg.yaml cfg.yaml                                 | is not an override
train cfg.yaml run.epochs:3                             | did you mean 'run.epochs=3'?
train cfg.yaml ++run.epochs=3                           | did you mean 'run.epochs=3'?
train cfg.yaml +model.x=1                               | no argument 'x'
train cfg.yaml ~key                                     | has no 'key'
train --config cfg.yaml                                 | use 'stoker train cfg.yaml'
train --config=cfg.yaml                                 | use 'stoker train cfg.yaml'
train -c cfg.yaml                                       | use 'stoker train cfg.yaml'
train cfg.yaml --gpus 2                                 | use '--nproc 2'
train cfg.yaml --devices=2                              | use '--nproc 2'
train cfg.yaml --nproc two                              | --nproc
train cfg.yaml --nproc 0                                | nproc must be at least 1
train cfg.yaml --nproc 2 run.validate_every=1epoch      | did you mean '1ep'?
train cfg.yaml --seed=abc                               | expected int or None, got abc
train cfg.yaml --resume                                 | --resume
train cfg.yaml --fast_dev_run                           | did you mean '--fast-dev-run'?
train cfg.yaml --weights x.safetensors                  | --eval-only
train cfg.yaml --eval-only --fast-dev-run               | --fast-dev-run
train cfg.yaml --workers 2                              | --nproc N
train cfg.yaml --on nowhere                             | no launcher 'nowhere'
train cfg.yaml run.compile=foo                          | run.compile
train cfg.yaml run.checkpoint.best=foo                  | run.checkpoint.mode
train cfg.yaml run.checkpoint=5                         | expected a mapping
train cfg.yaml run=5                                    | expected a mapping
train cfg.yaml run.parallel.shard=2                     | needs a multiple of 2 processes
train cfg.yaml run.epochs=null                          | the run has no end
train cfg.yaml optimizer.lr=1e-3x                       | got 1e-3x
train cfg.yaml train_loader.batch_size=big              | got big
config cfg.yaml --why run.epoch                         | did you mean 'epochs'?
config cfg.yaml --what                                  | did you mean '--why'?
evaluate cfg.yaml                                       | train first
evaluate cfg.yaml --weights nope                        | --weights 'nope' does not exist
evaluate cfg.yaml --weights .                           | --weights '.' is a folder
evaluate cfg.yaml --weights cfg.yaml                    | not a safetensors file
predict cfg.yaml -o x.txt                               | .npz, .jsonl or .csv
predict cfg.yaml -o folder.npz                          | is a folder
predict cfg.yaml -o cfg.yaml/x.npz                      | no writable folder
lr-find cfg.yaml --from 1 --to 0.1                      | --from
lr-find cfg.yaml --to inf                               | --to
lr-find cfg.yaml --steps 2                              | --steps
lr-find cfg.yaml -o cfg.yaml/x.png                      | no writable folder
profile cfg.yaml --steps 0                              | --steps
profile cfg.yaml --trace cfg.yaml/x.json                | no writable folder
prove cfg.yaml --kills 0                                | --kills
prove cfg.yaml --at nowhere                             | nowhere
report                                                  | RUN
report nowhere                                          | nowhere
report .                                                | not a run folder
ckpt lss                                                | did you mean 'ls'?
ckpt ls nowhere                                         | nowhere
ckpt ls cfg.yaml                                        | is a file
ckpt show .                                             | no valid checkpoint
ckpt export . -o x.txt                                  | .safetensors
ckpt import nowhere -o x.safetensors                    | nowhere
ckpt import cfg.yaml -o cfg.yaml/x.safetensors          | no writable folder
board nowhere                                           | nowhere
board . --port 99999                                    | --port
board . --hots x                                        | did you mean '--host'
run nowhere.py                                          | does not exist
run .                                                   | is a folder
hooks EarlyStoping                                      | did you mean 'EarlyStopping'?
metrics Acuracy                                         | did you mean 'accuracy'
env x                                                   | x
new cfg.yaml                                            | already exists
"""

HABITS = """
epochs=3  epoch=3  max_epochs=3  trainer.max_epochs=3  num_train_epochs=3  --epochs 3  --epochs=3
--max-epochs 3  --trainer.max_epochs=3  steps=100  --max_steps 100  batch_size=64  --batch-size 64
--per_device_train_batch_size=64  lr=0.1  --lr 0.1  --learning_rate=0.1  --optimizer.lr 0.1
model.lr=0.1  width=16  --width 16  --model.width=16  modle.width=16  momentum=0.9  dropout=0.5
precision=16  --precision 16-mixed  precision=bfloat16  --fp16  --bf16  fp16=true  --device gpu
accelerator=gpu  --cpu  --no_cuda  seed=1  --seed 1  seed_everything=1  --num-workers 2
num_workers=2  progress=off  --no-progress  disable_tqdm=true  enable_progress_bar=false
--deterministic  check_val_every_n_epoch=2  eval_strategy=epoch  eval_steps=100  save_steps=500
save_total_limit=2  --output_dir out  output_dir=out  run_name=x  --name x  gradient_clip_val=1.0
max_grad_norm=1  accumulate_grad_batches=2  gradient_accumulation_steps=2  logging_steps=10
run.precision=16  run.precision=16-mixed  run.device=gpu  run.progress=on  run.progress=yes
run.progress=no  run.deterministic=1  run.epochs=3.0  run.epochs=none  run.last_window=Flush
run.validate_every=1epoch  run.validate_every=100steps  run.checkpoint.every=10minutes
optimizer.lr="1e-3"  optimizer.nesterov=yes  --loss MSELoss  scheduler=null
"""


def rows(table: str) -> list[Any]:
    pairs = [line.split("|") for line in table.strip().splitlines()]
    return [pytest.param(a.strip(), b.strip(), id=a.strip()) for a, b in pairs]


@pytest.fixture
def folder(folder):
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    (folder / "binary.py").write_bytes(bytes(range(256)))
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "text.txt").write_text("text")
    (folder / "broken.yaml").write_text("model: {a: [1\nrun: 3")
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "folder.yaml").mkdir()
    (folder / "folder.npz").mkdir()
    return folder


@pytest.fixture
def stoker(folder, capsys):
    """Runs a command; its exit code, and what it printed on stderr."""

    def stoker(argv):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().err

    return stoker


def everything_in(folder):
    return {path for path in folder.rglob("*") if "__pycache__" not in str(path)}


def assert_rejected(stoker, folder, argv, words):
    before = everything_in(folder)
    code, err = stoker(argv)
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("stoker: ")
    assert words in err
    assert "Error:" not in err.replace("SyntaxError:", "")
    assert everything_in(folder) == before


@pytest.mark.parametrize(
    ("line", "words"), rows(USED_TO_BE_TRACEBACKS + WORDS_OF_OTHERS.lstrip() + COMMANDS.lstrip())
)
def test_a_wrong_command_line_is_one_sentence(stoker, folder, line, words):
    assert_rejected(stoker, folder, shlex.split(line), words)


def run_fields(kind=RunConfig, path="run"):
    for one in fields(kind):
        hint = get_type_hints(kind)[one.name]
        if is_dataclass(hint):
            yield from run_fields(hint, f"{path}.{one.name}")
        else:
            yield f"{path}.{one.name}", hint, one.metadata.get("rule")


def wrong_values():
    """Yield wrong values for every field of ``run``, made from its type and its rule."""
    for path, hint, rule in run_fields():
        kinds = set(get_args(hint) or (hint,)) - {type(None)}
        candidates = []
        if str not in kinds:
            candidates += ["[1, 2]", "{a: 1}", "'some text'"]
        if not {int, float, str} & kinds:
            candidates += ["7", "1.5"]
        if kinds & {int, float} and bool not in kinds:
            candidates += ["true"]
        if kinds == {int}:
            candidates += ["1.5"]
        if rule is not None:
            numbers = ["0", "-3", "1e400"] if kinds & {int, float} else ["''", "' '"]
            candidates += [v for v in numbers if _breaks(rule, path, v, kinds)]
        if type(None) not in (get_args(hint) or (hint,)):
            candidates.append("null")
        yield from ((path, value) for value in candidates)


def _breaks(rule, path, text, kinds):
    from stoker.config.yaml_text import plain

    value = text.strip("'") if "'" in text else plain(text)
    return not (isinstance(value, float) and float not in kinds) and rule(path, value) is not None


@pytest.mark.parametrize(("path", "value"), list(wrong_values()))
def test_a_wrong_value_of_a_run_field_names_the_field(stoker, folder, path, value):
    assert_rejected(stoker, folder, ["train", "cfg.yaml", f"{path}={value}"], path)


@pytest.mark.parametrize(("path", "value"), list(wrong_values())[::4])
def test_a_wrong_value_in_the_file_names_the_field_and_the_line(stoker, folder, path, value):
    *sections, key = path.split(".")[1:]
    inner = f"{{{key}: {value}}}"
    text = f"{sections[0]}: {inner}" if sections else inner[1:-1]
    lines = (folder / "cfg.yaml").read_text().splitlines()
    lines = [line for line in lines if not line.strip().startswith(f"{key}:")]
    if key == "epochs":
        lines.append("  max_steps: 3")
    (folder / "cfg.yaml").write_text("\n".join([*lines, f"  {text}", ""]))
    assert_rejected(stoker, folder, ["train", "cfg.yaml"], f"cfg.yaml:{len(lines) + 1}: ")


@pytest.mark.parametrize("habit", re.split(r"\s{2,}|\n", HABITS.strip()))
def test_what_is_suggested_for_a_habit_of_other_trainers_works(stoker, folder, habit):
    code, err = stoker(["config", "cfg.yaml", "--check", *habit.split(" ")])
    assert code == 2
    assert len(err.splitlines()) == 1, err
    use = re.search(r"; use '([^']+)'$", err.strip())
    meant = re.search(r"; did you mean '?([^'?]+)'?\?$", err.strip())
    assert use or meant, err
    works = use[1] if use else habit.partition("=")[0] + "=" + meant[1]
    assert "=" in works
    assert stoker(["config", "cfg.yaml", "--check", works])[0] == 0


def test_five_faults_of_a_file_are_five_lines(stoker, folder):
    text = (folder / "cfg.yaml").read_text()
    text = text.replace("CrossEntropyLoss", "CrossEntropyLos").replace("width: 8", "widht: 8")
    text = text.replace("type: SGD", "type: SDG").replace("{_target_: parts.Sizes}", "EarlyStoping")
    (folder / "cfg.yaml").write_text(text + "  validate_every: 1epoch\n  name: ${nothing}\n")
    for command in ("train", "config", "explain", "evaluate"):
        code, err = stoker([command, "cfg.yaml", "epochs=3"])
        assert code == 2
        assert err.splitlines()[0] == "stoker: 7 errors"
        found = ["CrossEntropyLos", "widht", "SDG", "EarlyStoping", "1epoch", "${nothing}"]
        found.append("run.epochs=3")
        assert all(sum(word in line for line in err.splitlines()) == 1 for word in found), err


def test_several_unknown_options_are_a_line_each(stoker):
    code, err = stoker(["train", "cfg.yaml", "--epochs", "3", "--lr", "0.1", "batch_size=2"])
    assert code == 2
    assert [re.findall("use '(.*)'", line) for line in err.splitlines()] == [
        [],
        ["run.epochs=3"],
        ["optimizer.lr=0.1"],
        ["train_loader.batch_size=2"],
    ]


def test_a_loader_without_a_batch_size_gets_it_from_the_run(stoker):
    argv = ["config", "cfg.yaml", "~train_loader.batch_size", "~val_loader.batch_size"]
    assert "use 'run.micro_batch=64'" in stoker([*argv, "per_device_train_batch_size=64"])[1]


@pytest.mark.slow
def test_a_run_that_must_resume_with_another_model_is_one_sentence(stoker, folder):
    assert stoker(["train", "cfg.yaml", "run.epochs=1"])[0] == 0
    argv = ["train", "cfg.yaml", "run.epochs=2", "run.resume=must", "model.width=5"]
    code, err = stoker(argv)
    assert code == 2
    assert "Traceback" not in err
    assert sum(line.startswith("stoker: ") for line in err.splitlines()) == 1


@pytest.mark.slow
def test_a_folder_in_use_by_another_run_is_one_sentence(stoker, folder):
    from stoker.checkpoint import Checkpoints

    assert stoker(["train", "cfg.yaml", "run.epochs=1"])[0] == 0
    with Checkpoints(folder / "runs/cfg/checkpoints"):
        code, err = stoker(["train", "cfg.yaml", "run.epochs=2"])
    assert code == 2
    assert "is in use by" in err
    assert len(err.splitlines()) == 1
