"""Wrong arguments of the Python API raise one sentence, before anything runs."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Every, Layout, Trainer, data, events, hooks
from stoker import nn as nn_of_stoker
from stoker.core.errors import StokerError, is_sentence

DATA = TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,)))


def loader():
    return DataLoader(DATA, batch_size=4)


def engine(**options):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Engine(model, optimizer, nn.CrossEntropyLoss(), **options)


def trainer(**options):
    return Trainer(engine(), [], **options)


def fit(*loaders, **options):
    return trainer().fit(*(loaders or (loader(),)), **{"epochs": 1, **options})


CASES = [
    (lambda: Trainer(nn.Linear(4, 3)), "expected Engine(model, optimizer, …)"),
    (lambda: Trainer(engine(), [hooks.EarlyStopping]), "did you mean EarlyStopping()?"),
    (lambda: engine(precision="16-mixed"), "fp16"),
    (lambda: engine(device="gpu"), "did you mean 'auto'?"),
    *((lambda d=d: engine(device=d), "device") for d in (None, 3.5, ["cpu"], "cuda:x", 0)),
    *((lambda c=c: engine(clip_norm=c), "clip_norm") for c in (-1, "1", float("nan"), True)),
    *((lambda one=one: engine(layout=one), "Layout") for one in ("ddp", 2)),
    (lambda: engine(compile=3), "compile must be True or False or a string, got 3"),
    *((lambda a=a: trainer(accumulate=a), "accumulate") for a in (0, 1.5, "2")),
    (lambda: trainer(last_window="keep"), "last_window"),
    *((lambda s=s: trainer(seed=s), "seed") for s in ("a", 1.5, True)),
    *((lambda g=g: trainer(grace=g), "grace") for g in ("x", -1, None, float("inf"))),
    *((lambda r=r: trainer(run_dir=r), "run_dir") for r in (5, "", True)),
    *((lambda e=e: fit(epochs=e), "epochs") for e in ("3", 1.5, -1, [1], True)),
    (lambda: trainer().fit(loader()), "would never end"),
    *(
        (lambda one=one: fit(one), "train_loader is")
        for one in (DATA, torch.ones(3), 5, "data", None, {"a": loader()}, DataLoader, [])
    ),
    (lambda: fit(loader(), [loader(), loader()]), "val_loader is a list of loaders"),
    (lambda: fit(loader(), DATA), "val loader is of type TensorDataset"),
    (lambda: fit(loader(), 3), "a number of epochs is passed by name: epochs=3"),
    (lambda: fit(loader(), loader(), validate_every="1epoch"), "did you mean '1ep'?"),
    *((lambda v=v: fit(limit_train_batches=v), "limit") for v in ("2", -1, 1.5, float("nan"))),
    (lambda: fit(overfit_batches="1"), "overfit_batches must be an integer or a number"),
    (lambda: fit(fast_dev_run="yes"), "fast_dev_run"),
    *((lambda r=r: fit(resume=r), "resume") for r in ("maybe", True, None)),
    (lambda: Every("1epoch"), "Every.of('1epoch')"),
    (lambda: Every(1, "epoch"), "'st', 'ep' or 'min'"),
    *((lambda e=e: Every.of(e), "expected a period") for e in ("1epoch", None, "", "soon", 1.5)),
    (lambda: Layout(tensor=2, plan=5), "plan"),
    (lambda: Layout(shard=2, reshard="no"), "reshard"),
    (lambda: Layout(pipeline=2, sequence=5), "sequence"),
    *((lambda k=k: hooks.Checkpoint(keep=k), "keep") for k in ("3", 1.5, 0)),
    (lambda: hooks.Checkpoint("soon"), "expected a period"),
    (lambda: hooks.Checkpoint("auto", max_overhead="x"), "max_overhead"),
    (lambda: hooks.Checkpoint(folder=5), "folder"),
    (lambda: hooks.Checkpoint(best=5), "best must be a string or None, got 5"),
    *((lambda p=p: hooks.EarlyStopping(patience=p), "patience") for p in ("x", 1.5, 0)),
    (lambda: hooks.FreezeLayers(5), "names must be a list, got 5"),
    (lambda: nn_of_stoker.parameter_groups(nn.Linear(1, 1), norms=0.0), "must be values by name"),
    (lambda: nn_of_stoker.lr.linear(3, 10), "optimizer is a int, expected a torch optimizer"),
    (lambda: hooks.Callback(on_train_batch_end=print), "use after_step"),
    (lambda: hooks.Write(events.Csv), "did you mean Csv()?"),
    (lambda: Layout(dp=2), "use replicate=2"),
    (lambda: data.loader(None, 2), "dataset is None, expected tensors, arrays or a Dataset"),
    (lambda: data.loader((torch.ones(4), torch.ones(4)), 0), "batch_size must be at least 1"),
    (lambda: hooks.EarlyStopping(5), "monitor must be a string, got 5"),
    (lambda: hooks.EMA("x"), "decay"),
    (lambda: hooks.Profiler(steps="x"), "steps"),
    (lambda: hooks.Heartbeat("x"), "after"),
    (lambda: trainer().evaluate(None), "loader is None"),
    (lambda: trainer().predict("x"), "data is 'x', expected a DataLoader"),
    *(
        (lambda m=m: getattr(trainer(), m)(5), "must be a string or a path")
        for m in ("save", "load")
    ),
]


@pytest.mark.parametrize(("call", "words"), CASES)
def test_a_wrong_argument_is_one_sentence(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError, StokerError)) as caught:
        call()
    assert is_sentence(caught.value)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_wrong_type_is_rejected_before_a_constructor_acts():
    model = nn.Linear(4, 3)
    moved = []
    model.to = lambda *args: moved.append(args) or model
    with pytest.raises(TypeError, match="norm_type must be a number, got '2'"):
        Engine(model, norm_type="2")
    assert moved == []
