"""The same proof for processes that come and go while the others continue."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Layout, Trainer, hooks
from stoker.cli.main import main
from stoker.run import Run
from stoker.testing.elastic_proof import difference_of, reference_of
from stoker.testing.elastic_run import EVENTS, ElasticRun, Event, plan_events
from stoker.testing.record import Position, Records

CONFIG = """
from torch import nn
import torch
from torch.utils.data import DataLoader
from stoker.config import L
from support.trainings import Points

model = L(nn.Linear)(6, 2)
criterion = L(nn.CrossEntropyLoss)()
optimizer = L(torch.optim.AdamW)(lr=0.01)
train_loader = L(DataLoader)(dataset=L(Points)(), batch_size=4, shuffle=True)
run = dict(epochs=2, seed=4)
"""


class EachStep(Hook):
    """Makes the processes synchronize after each step, so that others join soon."""

    def after_step(self, run: Run) -> None:
        pass


def train(run_dir: Path) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 4), torch.randint(3, (48,)))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    engine = Engine(
        model,
        torch.optim.AdamW(model.parameters(), 0.01),
        nn.CrossEntropyLoss(),
        clip_norm=1.0,
        layout=Layout(replicate=-1, logical_ranks=4),
    )
    own = [*hooks.default(log_every=1, progress=False), hooks.EMA(0.9), hooks.Heartbeat(after=8.0)]
    own.append(EachStep())
    trainer = Trainer(engine, hooks=own, run_dir=run_dir, seed=1)
    loader = DataLoader(data, batch_size=2, shuffle=True)
    trainer.fit(loader, DataLoader(data, batch_size=8), epochs=4)


def at(step: int, kind: str, place: float = 0.0, delay: float = 0.0) -> Event:
    return Event(kind, Position(0, step), place, delay, replaced=True)


@pytest.mark.process
@pytest.mark.slow
def test_processes_that_come_and_go_train_to_the_same_bits(tmp_path):
    reference = reference_of(train, tmp_path / "reference")
    events = [
        at(4, "kill", delay=-0.01),
        at(9, "hang", 0.9),
        at(14, "preempt", delay=0.01),
        at(19, "add"),
    ]
    run = ElasticRun(train, tmp_path / "elastic", 2, 3, events)
    happened = run.run()
    assert [event.kind for event in happened] == [event.kind for event in events]
    assert all(event.seconds is not None for event in happened)
    records = run.records()
    assert difference_of(reference, records) is None
    ended = [one for one in records.values() if one.ends]
    assert len(ended) >= 2  # those that joined have trained to the end
    assert len({min(one.steps).step for one in ended}) >= 2
    changed = ended[0].steps
    changed[max(changed)].parts["weights"]["0.bias"] = "#0"
    assert "weights: 0.bias after step" in str(difference_of(reference, records))


def test_events_depend_on_the_seed_alone():
    reference = Records({Position(0, step): None for step in range(1, 100)})
    first = plan_events(reference, 20, EVENTS, 1)
    assert first == plan_events(reference, 20, EVENTS, 1) != plan_events(reference, 20, EVENTS, 2)
    assert [event.position for event in first] == sorted({event.position for event in first})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--nproc", "3"], "--elastic needs logical ranks: set run.parallel.logical_ranks=N"),
        (["run.parallel.logical_ranks=4"], "--elastic needs --nproc of 2 or more, got 1"),
        (["--nproc", "2", "--at", "save"], "--at cannot be combined with --elastic"),
    ],
)
def test_what_cannot_be_elastic_is_rejected(more, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    assert main(["prove", "small.py", "--elastic", *more]) == 2
    assert text in capsys.readouterr().err
