"""What processes find of the costs of a run in several layouts."""

from typing import Any

import torch
from torch import nn

from stoker import Engine, Hook, Layout, Trainer, hooks
from stoker.core import dist
from support.tasks.layouts import net
from support.tasks.rows import rows


class Talks(Hook):
    """Has the processes exchange one number after each step."""

    same_on_all_ranks = True

    def after_step(self, run: Any) -> None:
        dist.all_reduce_sum(1.0)


def found_in(layout: Layout) -> dict[str, Any]:
    """Collectives by hook and phase, and the weights in the end."""
    model = net(torch.float64)
    engine = Engine(
        model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss(), layout=layout
    )
    report = hooks.CostReport(steps=2, warmup=1)
    loader = torch.utils.data.DataLoader(rows(32, torch.float64), batch_size=4)
    Trainer(engine, [Talks(), report]).fit(loader, max_steps=6)
    assert report.costs is not None
    counts = {row.hook: row.counts.collectives for row in report.costs.rows if row.hook}
    backward = report.costs.counts_of("backward")
    return {"hooks": counts, "backward": backward, "processes": report.costs.processes}
