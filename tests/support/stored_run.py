"""``python -m support.stored_run URL EPOCHS``: train into a store, and print a digest."""

import sys
import time

import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks


class Pace(Hook):
    """Gives uploads time to happen between two saves, which would otherwise skip some."""

    observes = True

    def after_step(self, run):
        time.sleep(0.02)


def train(url, epochs, **options):
    """Train a small model; return a text that is the same for the same weights and metrics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(4, 9, generator=generator) for _ in range(6)]
    batches = [(one[:, :8], one[:, 8:]) for one in data]
    engine = Engine(model, torch.optim.Adam(model.parameters(), 1e-2), nn.MSELoss())
    checkpoint = hooks.Checkpoint("2st", keep=2, **options)
    stock = hooks.default(log_every=1, progress=False, checkpoint=checkpoint)
    trainer = Trainer(engine, [*stock, Pace()], run_dir=url, seed=3)
    trainer.fit(batches, epochs=epochs)
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    lines = (trainer.run.dir / "metrics.jsonl").read_text().splitlines()
    return f"{weights.double().sum().item().hex()} {len(lines)} rows"


if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2])))
