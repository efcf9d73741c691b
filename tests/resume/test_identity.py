"""A run knows who it is: an edited script is another run, the same one is resumed."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from support.server import run

SCRIPT = '''
import os
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from stoker import Engine, Hook, Output, Step, Trainer, hooks

SCALE = 1.0
SETTINGS = {"shift": 0.5, "unused": 1}


def jitter(x):
    return x * SCALE + SETTINGS["shift"]


class Rows(Dataset):
    """Rows of a file."""

    noise = 0.0
    bounds = [0, 1]

    def __init__(self, path, factor=1.0):
        self.path, self.rows, self.factor = path, np.load(path), factor

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.from_numpy(self.rows[index]).float()
        return jitter(row[:4]) * self.factor + self.noise, int(row.sum() > self.bounds[0])


def collate(samples, pad=0):
    inputs, targets = zip(*samples)
    return torch.stack(inputs), torch.tensor(targets) + 0 * pad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(8, eps=1e-5)
        self.outer = nn.Linear(8, 2)
        self.temperature = 1.0
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        return self.outer(self.drop(self.norm(self.inner(x - self.mean)).relu())) / self.temperature


class Penalty(Step):
    def __init__(self, strength):
        self.strength = strength

    def forward(self, engine, batch):
        output = super().forward(engine, batch)
        output.loss = output.loss + self.strength * engine.model.outer.weight.square().sum()
        return output


class Decay(Hook):
    """Shrinks the weights."""

    same_on_all_ranks = True

    def __init__(self, rate):
        self.rate = rate

    def after_step(self, run):
        with torch.no_grad():
            for parameter in run.engine.model.parameters():
                parameter.mul_(1 - self.rate)


def warmup(step, over=4):
    return min(1.0, (step + 1) / over)


torch.manual_seed(3)
train = Rows("train.npy")
weights = torch.linspace(1, 2, 24).double()
sampler = WeightedRandomSampler(weights, 24, generator=torch.Generator().manual_seed(1))
loader = DataLoader(train, batch_size=4, sampler=sampler, collate_fn=collate, drop_last=False)
held = TensorDataset(torch.arange(32.0).reshape(8, 4), torch.arange(8) % 2)
val = DataLoader(Subset(held, [0, 1, 2, 3]), batch_size=2)

model = Net()
groups = [
    {"params": [model.inner.weight, model.outer.weight], "weight_decay": 0.01},
    {"params": [*model.norm.parameters(), model.inner.bias, model.outer.bias]},
]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=False)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LambdaLR(optimizer, partial(warmup, over=4)),
        torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    ],
    milestones=[4],
)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.1)
engine = Engine(
    model, optimizer, criterion, lr_scheduler=scheduler, device="cpu", precision="fp32",
    clip_norm=1.0, clip_value=None, lr_step="step",
)
trainer = Trainer(
    engine,
    [
        *hooks.default(progress=False, log_every=50),
        hooks.EarlyStopping("val/loss", patience=5),
        hooks.EMA(0.9),
        hooks.Metrics("accuracy"),
        Decay(1e-4),
    ],
    step=Penalty(0.01), accumulate=1, last_window="flush", run_dir="run", seed=5,
    params={"note": "first", "epochs": 2},
)
trainer.fit(
    loader, val, epochs=2, validate_every="1ep", limit_train_batches=None, limit_val_batches=None,
)
'''

EDITS = {
    # the optimizer
    "lr": ("lr=0.1,", "lr=0.3,", "optimizer.group 0.lr was 0.1 and is 0.3"),
    "momentum": ("momentum=0.9", "momentum=0.8", "momentum was 0.9 and is 0.8"),
    "nesterov": ("nesterov=False", "nesterov=True", "nesterov was false and is true"),
    "weight decay of a group": ("0.01},", "0.02},", "weight_decay was 0.01 and is 0.02"),
    "another group": ("model.inner.bias, ", "", "optimizer.group 1.params was"),
    "another optimizer": (
        "SGD(groups, lr=0.1, momentum=0.9, nesterov=False)",
        "Adam(groups, lr=0.1)",
        "optimizer was SGD and is Adam",
    ),
    # the schedule
    "gamma": ("gamma=0.5", "gamma=0.6", "gamma was 0.5 and is 0.6"),
    "step size": ("optimizer, 3,", "optimizer, 2,", "step_size was 3 and is 2"),
    "milestone": ("milestones=[4]", "milestones=[5]", "milestones was [4] and is [5]"),
    "argument of a lambda": ("partial(warmup, over=4)", "partial(warmup, over=5)", "over was 4"),
    "code of a lambda": ("(step + 1) / over", "(step + 2) / over", "warmup"),
    "no schedule": ("lr_scheduler=scheduler, ", "", "lr_scheduler was SequentialLR and is absent"),
    "lr per epoch": ('lr_step="step"', 'lr_step="epoch"', "lr_step was step and is epoch"),
    # the criterion
    "label smoothing": ("smoothing=0.1", "smoothing=0.0", "label_smoothing was 0.1 and is 0.0"),
    "weights of classes": ("[1.0, 2.0]", "[1.0, 3.0]", "criterion.weight was tensor float32[2]"),
    "reduction": ("label_smoothing=0.1)", "label_smoothing=0.1, reduction='sum')", "reduction was"),
    "another criterion": (
        'nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.1)',
        "partial(nn.functional.cross_entropy, label_smoothing=0.1)",
        "criterion was CrossEntropyLoss and is cross_entropy",
    ),
    # the model
    "dropout": ("Dropout(0.1)", "Dropout(0.2)", "model.drop.p was 0.1 and is 0.2"),
    "eps": ("eps=1e-5", "eps=1e-6", "model.norm.eps was 1e-05 and is 1e-06"),
    "attribute": ("temperature = 1.0", "temperature = 2.0", "temperature was 1.0 and is 2.0"),
    "forward": (".relu()", ".tanh()", "the code of Net.forward changed"),
    "buffer": ("torch.zeros(4)", "torch.ones(4)", "model.mean was tensor float32[4]"),
    "frozen layer": (
        "model = Net()", "model = Net()\nmodel.norm.requires_grad_(False)", "frozen"
    ),
    "activation": ("self.drop = nn.Dropout", "self.drop = nn.AlphaDropout", "AlphaDropout"),
    # the data
    "content of a file": (None, "other rows", "train data.dataset.path was train.npy (1088 bytes"),
    "another file": ("train.npy", "same.npy", "train data.dataset.path was train.npy"),
    "argument of the dataset": ('"train.npy")', '"train.npy", 2.0)', "factor was 1.0 and is 2.0"),
    "constant of the dataset": ("noise = 0.0", "noise = 0.1", "Rows.noise was 0.0 and is 0.1"),
    "list in a class": ("bounds = [0, 1]", "bounds = [0, 2]", "bounds was [0, 1] and is [0, 2]"),
    "__getitem__": ("row.sum() > ", "row.sum() >= ", "the code of Rows.__getitem__ changed"),
    "transform": ("x * SCALE +", "x - SCALE +", "the code of jitter changed"),
    "global of a transform": ("SCALE = 1.0", "SCALE = 1.5", "jitter.SCALE was 1.0 and is 1.5"),
    "entry of a global": ('"shift": 0.5', '"shift": 0.6', "jitter.SETTINGS.shift was 0.5"),
    "weights of the sampler": ("linspace(1, 2", "linspace(1, 3", "train data.sampler.weights was"),
    "samples per epoch": ("weights, 24,", "weights, 20,", "sampler.num_samples was 24 and is 20"),
    "seed of the sampler": ("manual_seed(1)", "manual_seed(2)", "seed 1 and is generator, seed 2"),
    "another sampler": ("sampler=sampler", "shuffle=True", "WeightedRandomSampler and is Random"),
    "batch size": ("train, batch_size=4", "train, batch_size=6", "batch_size was 4 and is 6"),
    "drop_last": ("drop_last=False", "drop_last=True", "drop_last was false and is true"),
    "code of collate": ("+ 0 * pad", "- 0 * pad", "train data.collate_fn was collate #"),
    "default of collate": ("pad=0", "pad=1", "train data.collate_fn.default 0 was 0 and is 1"),
    "validation data": ("arange(32.0)", "arange(1, 33.0)", "val data.dataset.dataset.tensors.0"),
    "labels": ("torch.arange(8) % 2", "torch.arange(8) // 4", "val data.dataset.dataset.tensors.1"),
    "indices": ("[0, 1, 2, 3]", "[0, 1, 2, 4]", "val data.dataset.indices was [0, 1, 2, 3]"),
    # the step and the hooks
    "argument of the step": ("Penalty(0.01)", "Penalty(0.02)", "step.strength was 0.01"),
    "code of the step": (".square()", ".abs()", "the code of Penalty.forward changed"),
    "another step": ("step=Penalty(0.01), ", "", "step was Penalty and is Step"),
    "patience": ("patience=5", "patience=6", "hooks.EarlyStopping.patience was 5 and is 6"),
    "decay of EMA": ("EMA(0.9)", "EMA(0.99)", "hooks.EMA.decay was 0.9 and is 0.99"),
    "one hook less": ("hooks.EMA(0.9),", "", "hooks.EMA was EMA and is absent"),
    "argument of an own hook": ("Decay(1e-4)", "Decay(1e-3)", "hooks.Decay.rate was 0.0001"),
    "code of an own hook": ("1 - self.rate", "1 + self.rate", "the code of Decay.after_step"),
    "metric": ('Metrics("accuracy")', 'Metrics("accuracy", on="train")', "hooks.Metrics"),
    # how it runs
    "accumulation": ("accumulate=1", "accumulate=2", "accumulate was 1 and is 2"),
    "last window": ('"flush"', '"drop"', "last_window was flush and is drop"),
    "clipping": ("clip_norm=1.0", "clip_norm=0.5", "clip_norm was 1.0 and is 0.5"),
    "clipping by value": ("clip_value=None", "clip_value=0.1", "clip_value was null and is 0.1"),
    "other weights": ("torch.manual_seed(3)", "torch.manual_seed(4)", "torch seed was 3 and is 4"),
    "seed": ("seed=5", "seed=6", "seed was 5 and is 6"),
    "validation period": ('"1ep"', '"2ep"', "validate_every was 1ep and is 2ep"),
    "limit": ("limit_train_batches=None", "limit_train_batches=3", "limit_train_batches was null"),
    "params": ('"first"', '"second"', "note was first and is second"),
}  # fmt: skip

NON_EDITS = {
    "nothing": ("", ""),
    "a comment": ("SCALE = 1.0", "SCALE = 1.0  # as in the paper"),
    "a docstring": ('"""Rows of a file."""', '"""Rows that are read from a file."""'),
    "empty lines": ("def collate", "\n\n\ndef collate"),
    "a function that is moved": (
        "def warmup(step, over=4):\n    return min(1.0, (step + 1) / over)\n", "",
    ),
    "a function that nothing uses": ("torch.manual_seed(3)", "f = abs\ntorch.manual_seed(3)"),
    "a global that nothing uses": ('"unused": 1', '"unused": 2'),
    "more epochs": ("val, epochs=2", "val, epochs=3"),
    "progress": ("progress=False", "progress=True"),
    "logging": ("log_every=50", "log_every=5"),
    "checkpoints": ("log_every=50", "checkpoint=hooks.Checkpoint('1st', keep=1)"),
    "workers": ("drop_last=False", "drop_last=False, num_workers=1"),
    "pinned memory": ("drop_last=False", "drop_last=False, prefetch_factor=None"),
    "threads": ("SCALE = 1.0", "SCALE = 1.0; torch.set_num_threads(2)"),
    "grace": ("seed=5", "seed=5, grace=60"),
    "an observing hook": ("Decay(1e-4),", "Decay(1e-4), hooks.Throughput(), hooks.Callback("
                          "after_step=lambda run: print(run.step)),"),
    "a hook less that observes": ("*hooks.default(progress=False, log_every=50)",
                                  "hooks.Loss(), hooks.Checkpoint()"),
    "another name for a variable": ("criterion = nn", "loss = criterion = nn"),
    "epochs in params": ('"epochs": 2', '"epochs": 9'),
    "resume must": ("val, epochs=2", "val, resume='must', epochs=2"),
}  # fmt: skip


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(24, 5))


def execute(text: str):
    """Run a script in this process; return its trainer."""
    names = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), names)
    return names["trainer"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with the finished run of the script."""
    folder = tmp_path_factory.mktemp("first")
    np.save(folder / "train.npy", rows(0))
    shutil.copy2(folder / "train.npy", folder / "same.npy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        execute(SCRIPT)
    return folder


@pytest.fixture
def again(first, tmp_path, monkeypatch, caplog):
    """Run an edited script where the first run is; return the folder's name and the log."""
    shutil.copytree(first, tmp_path / "there", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "there")
    threads = torch.get_num_threads()
    with caplog.at_level(logging.INFO, "stoker"):
        yield lambda text: (execute(text).run.dir.name, caplog.text)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_script_is_another_run(again, name):
    old, new, clause = EDITS[name]
    if old is None:
        np.save("train.npy", rows(1))
        text = SCRIPT
    else:
        assert SCRIPT.count(old) == 1, old
        text = SCRIPT.replace(old, new)
    folder, log = again(text)
    assert folder == "run-2"
    assert "run is another run: " in log
    assert clause in log
    assert "already finished" not in log
    assert again(text)[0] == "run-2"


@pytest.mark.slow
@pytest.mark.parametrize("name", NON_EDITS)
def test_what_does_not_change_a_run_resumes_it(again, name):
    old, new = NON_EDITS[name]
    text = SCRIPT.replace(old, new, 1)
    if "moved" in name:
        text = text.replace("class Net", old + "\n\nclass Net")
    folder, log = again(text)
    assert folder == "run"
    assert "another run" not in log
    assert ("already finished; results of" in log) == (name != "more epochs")


def test_an_unchanged_script_has_its_results_dated(again):
    log = again(SCRIPT)[1]
    assert "already finished; results of" in log
    assert "val/loss" in log
    assert "This start trained nothing" in log


@pytest.mark.slow
def test_must_resumes_an_edited_script_and_lists_what_changed(again):
    text = SCRIPT.replace("lr=0.1,", "lr=0.3,").replace("epochs=2, v", "epochs=3, resume='must', v")
    folder, log = again(text)
    assert folder == "run"
    assert "which was made differently: optimizer.group 0.lr was 0.1 and is 0.3" in log
    assert again(text)[0] == "run"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("edit", ["nothing", "lr", "transform"])
def test_another_process_recognizes_the_run(first, tmp_path, edit):
    there = tmp_path / "there"
    shutil.copytree(first, there)
    old, new = EDITS[edit][:2] if edit in EDITS else ("", "")
    (there / "train.py").write_text(SCRIPT.replace(old, new, 1))
    done = run("train.py", cwd=there, check=True)  # its hashes of strings are others than here
    assert ("already finished" in done.stderr) == (edit == "nothing"), done.stderr
    assert (there / "run-2").exists() == (edit != "nothing")


def readme_script() -> str:
    text = Path(__file__).parents[2].joinpath("README.md").read_text("utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


@pytest.mark.process
@pytest.mark.slow
def test_the_first_script_of_the_readme_edited_is_another_run(tmp_path):
    def start(text):
        (tmp_path / "first.py").write_text(text)
        return run("first.py", cwd=tmp_path, check=True)

    script = readme_script()
    assert "lr=0.01" in script
    table = start(script).stdout
    again = start(script)
    assert "already finished; results of" in again.stderr
    assert again.stdout == table
    other = start(script.replace("lr=0.01", "lr=0.3"))
    assert "optimizer.lr was 0.01 and is 0.3" in other.stderr
    assert other.stdout != table
    assert (tmp_path / "runs" / "first-2").is_dir()


@pytest.mark.slow
def test_data_that_is_drawn_at_each_start_is_named_with_a_fix(again):
    drawn = SCRIPT.replace("Subset(held, [0, 1, 2, 3])", "Subset(held, pick)")
    for indices in ("[0, 1, 2, 3]", "[4, 5, 6, 7]", "[4, 5, 6, 7]*11"):
        text = drawn.replace("val = Data", f"pick = {indices}\nval = Data")
        log = again(text)[1]
    assert "if you did not change the data, it is drawn at each start" in log
    assert "generator=torch.Generator().manual_seed(0)" in log
