"""``python -m support.stored_run URL EPOCHS [--fast]``: train into a store, and print a digest.

With ``--fast`` it does not wait for uploads between steps.
"""

import os
import sys
import time

import torch
from torch import nn

from stoker import Engine, Hook, Layout, Trainer, hooks
from stoker.core import dist


class Pace(Hook):
    """Lets each checkpoint be uploaded before the next step, so that none is skipped."""

    observes = True

    def __init__(self, trainer):
        self.trainer = trainer

    def before_step(self, run):
        manager = self.trainer()._manager
        while manager.checkpoints.background.busy or manager._uploader._pending:
            time.sleep(0.01)


def train(url, epochs, *, paced=False, **options):
    """Train a small model; return a text that is the same for the same weights and metrics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(4, 9, generator=generator) for _ in range(6)]
    batches = [(one[:, :8], one[:, 8:]) for one in data]
    engine = Engine(model, torch.optim.Adam(model.parameters(), 1e-2), nn.MSELoss())
    checkpoint = hooks.Checkpoint("3st", keep=1, **options)
    stock = hooks.default(log_every=1, progress=False, checkpoint=checkpoint)
    pace = [Pace(lambda: trainer)] if paced else []
    trainer = Trainer(engine, [*stock, *pace], run_dir=url, seed=3)
    trainer.fit(batches, epochs=epochs)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    lines = (trainer.run.dir / "metrics.jsonl").read_text().splitlines()
    return f"{weights.double().sum().item().hex()} {len(lines)} rows"


def train_apart(url, folder, variables, epochs):
    """Train two ranks of which each has a disk of its own; return the weights and the step."""
    before = dict(os.environ)
    os.environ.update(variables, STOKER_CACHE=f"{folder}/rank-{dist.rank()}")
    try:
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        optimizer = torch.optim.Adam(model.parameters())
        engine = Engine(model, optimizer, nn.MSELoss(), layout=Layout(shard=2))
        trainer = Trainer(engine, [hooks.Checkpoint("2st")], run_dir=url, seed=1)
        generator = torch.Generator().manual_seed(dist.rank())
        data = [torch.randn(3, 10, generator=generator) for _ in range(4)]
        trainer.fit([(one[:, :6], one[:, 6:]) for one in data], epochs=epochs)
        full = [one.full_tensor() for one in engine.model.parameters()]
        return [one.tolist() for one in full], trainer.run.step
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2]), paced="--fast" not in sys.argv))
