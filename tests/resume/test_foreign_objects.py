"""Datasets that hold objects of other libraries train, resume and are not reported in vain."""

import enum
import logging
import re
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stoker import Engine, Trainer, hooks


@lru_cache
def read(index: int) -> np.ndarray:
    return np.full((1, 4), index, dtype=np.float32)


class Compiled:
    """A class like those of Cython, whose ``__module__`` is no text."""


Compiled.__module__ = property(lambda self: "compiled")


class Rows(Dataset):
    """A dataset as people write it: tables, scalers, paths, pools, and files opened when needed."""

    def __init__(self):
        values = np.arange(40.0).reshape(10, 4)
        self.scaler, self.frame = StandardScaler().fit(values), pd.DataFrame(values)
        self.paths = [Path(f"{number}.png") for number in range(200)]
        self.records = [{"id": number, "name": str(number)} for number in range(200)]
        self.args, self.pattern = Namespace(lr=np.float64(0.1), name=np.str_("x")), re.compile("a+")
        self.log, self.pool = logging.getLogger("rows"), ThreadPoolExecutor(1)
        self.made, self.compiled, self.file = datetime(2026, 1, 1), Compiled(), None

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if self.file is None:
            self.file = open(__file__, "rb")  # noqa: SIM115
        self.file.seek(index)
        value = self.pool.submit(self.frame.iloc[index % 10].sum).result()
        x = self.scaler.transform(read(index))[0] + value
        return torch.tensor(x, dtype=torch.float32), index % 2


def fit(dataset, folder, epochs):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.01), nn.CrossEntropyLoss())
    trainer = Trainer(engine, run_dir=folder, seed=1)
    trainer.fit(DataLoader(dataset, 4, shuffle=True), epochs=epochs)
    dataset.file.close()
    dataset.pool.shutdown()
    return model.weight.detach()


def test_a_dataset_with_objects_of_libraries_trains_without_a_warning(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="stoker"):
        whole = fit(Rows(), tmp_path / "one", 2)
        fit(Rows(), tmp_path / "two", 1)
        resumed = fit(Rows(), tmp_path / "two", 2)
    assert torch.equal(whole, resumed)
    assert not caplog.records


def test_scalars_of_libraries_are_recorded_as_plain_values(tmp_path):
    fit(Rows(), tmp_path / "run", 1)
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "!!python" not in text
    assert "lr: 0.1" in text


class Level(enum.IntEnum):
    LOW = 1


def in_itself() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


ODD = {
    "an IntEnum": Level.LOW,
    "a list in itself": in_itself(),
    "scalars of NumPy": [np.float64(1), np.str_("a"), np.bool_(True)],
    "keys of many kinds": {(1, 2): 3, None: 4, np.int64(3): np.float64(2), Level.LOW: 1},
    "a surrogate": "\ud800",
    "times": [pd.Timestamp("2020"), pd.NaT, np.datetime64("2020-01-01")],
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor on meta": torch.empty(2, device="meta"),
    "an exception": ValueError("x"),
    "a huge number": 10**40,
}


@pytest.mark.parametrize("name", ODD)
def test_a_run_can_hold_and_record_any_value(tmp_path, name):
    class Odd(TensorDataset):
        value = ODD[name]

    data = Odd(torch.ones(4, 2), torch.zeros(4).long())
    data.held = ODD[name]
    for _ in range(2):
        model = nn.Linear(2, 2)
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss())
        model.setting = ODD[name]
        params = {"value": ODD[name]}
        trainer = Trainer(engine, [hooks.Checkpoint()], run_dir=tmp_path / "run", params=params)
        trainer.fit(DataLoader(data, 2), epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_assertion_in_a_hook_does_not_lead_into_pytest(tmp_path, caplog):
    """A rewritten assertion calls functions of pytest, which refer to all of its plugins."""

    def check(run):
        assert run.step >= 0
        assert run.epoch in (0, 1, 2)

    model = nn.Linear(4, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.01), nn.CrossEntropyLoss())
    with caplog.at_level(logging.WARNING, "stoker"):
        batches = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3
        own = [hooks.Callback(after_step=check), hooks.Checkpoint("1st")]
        Trainer(engine, own, run_dir=tmp_path, seed=1).fit(batches, epochs=2)
    assert "pytest" not in caplog.text
