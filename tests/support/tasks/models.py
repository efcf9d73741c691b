"""What processes do with models that do not use all they have, or not all at once."""

from itertools import cycle, islice
from typing import Any

import torch
from torch import nn

from stoker import Engine, ForwardBackward, Layout, Output, Step, Trainer, hooks, seed_all
from support.tasks.layouts import data, net
from support.tasks.rows import accumulated, part_of


class Two(nn.Module):
    """Two paths, of which a step may use one; the second only after ``later`` calls."""

    def __init__(self, later: int | None = None) -> None:
        super().__init__()
        seed_all(3)
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.left = later
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.left is None:
            return self.a(x)
        self.left -= 1
        return self.a(x) + (self.b(x) if self.left >= 0 else 0)


def _engine(model: nn.Module, layout: Layout | None, criterion: Any = None) -> Engine:
    parameters = [*model.parameters(), *(criterion.parameters() if criterion else ())]
    optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.0)
    return Engine(model, optimizer, criterion or nn.CrossEntropyLoss(), layout=layout, clip_norm=1)


def _fit(engine: Engine, **options: Any) -> dict[str, torch.Tensor]:
    batches = [part_of(engine, batch) for batch in data()]
    Trainer(engine, [hooks.Loss()], **options).fit(batches, epochs=2)
    return engine.weights()


def refused(later: int | None) -> str:
    """Return the error for parameters that are not used, from the start or later."""
    try:
        _fit(_engine(Two(later), Layout(replicate=2)))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def parts_of_models(layout: Layout | None) -> dict[str, Any]:
    """The weights of trainings that a plain wrapper around the model gets wrong."""
    unused = Layout(replicate=2, unused=True) if layout is not None else None
    frozen = net()
    frozen[0].requires_grad_(False)
    trained = {
        "unused": _fit(_engine(Two(), unused)),
        "unused later": _fit(_engine(Two(2), unused)),
        "frozen": _fit(_engine(frozen, layout)),
        "by parts": _fit(_engine(Two(), layout), step=by_parts),
        "by parts, accumulated": _fit(_engine(Two(), layout), step=by_parts, accumulate=2),
        "optimizers": _adversaries(layout),
    }
    criterion = Scaled()
    engine = _engine(net(), layout, criterion)
    return trained | {"criterion": {**_fit(engine), "scale": criterion.scale.detach().clone()}}


def by_parts(engine: Engine, batch: Any) -> Any:
    x, y = batch
    return engine.criterion(engine.model.a(x) * 2 + engine.model.b(x), y)


class Scaled(nn.Module):
    """A criterion that learns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores * self.scale, targets)


class Turns(Step):
    """One step of a generator and its critic, each with an optimizer of its own."""

    def train(self, run):
        engine, (x, _) = run.engine, run.batches[0]
        model = engine.model
        for name in ("critic", "generator"):
            engine.zero_grad()
            made = model["generator"](x[:, :2])
            real, false = model["critic"](x), model["critic"](made)
            loss = (false - real).mean() if name == "critic" else -false.mean()
            engine.backward(loss + 0.1 * made.square().mean() + 0.1 * false.square().mean())
            engine.step(name)
        run.add_output(Output(loss))


def _adversaries(layout: Layout | None) -> dict[str, torch.Tensor]:
    seed_all(4)
    model = nn.ModuleDict({"generator": nn.Linear(2, 4), "critic": nn.Linear(4, 1)}).double()
    optimizers = {n: torch.optim.AdamW(part.parameters(), 0.05) for n, part in model.items()}
    return _fit(Engine(model, optimizers, layout=layout), step=Turns())


# Loops of one's own


def own_loops(layout: Layout | None) -> dict[str, Any]:
    """The weights that loops without a trainer end with."""
    plain = made = _engine(net(), layout)
    for x, y in (part_of(made, batch) for batch in data()):
        made.zero_grad()
        made.backward(made.criterion(made(x), y))
        made.step()
    made = _engine(net(), layout)
    accumulated(made, [part_of(made, batch) for batch in islice(cycle(data()), 8)], 4)
    return {"plain": plain.weights(), "accumulated": made.weights()}


def in_any_layout(layout: Layout | None) -> dict[str, Any]:
    """The weights and losses of loops without a trainer that a pipeline runs as well."""
    one, losses = _engine(net(), layout), []
    forward_backward = ForwardBackward(one)
    for batch in data():
        one.zero_grad()
        losses.append(forward_backward(part_of(one, batch)))
        one.step()
    four = _engine(net(), layout)
    forward_backward = ForwardBackward(four, by_samples)
    batches = [part_of(four, batch) for batch in islice(cycle(data()), 8)]
    for at in (0, 4):
        four.zero_grad()
        losses.append(forward_backward(*batches[at : at + 4]))
        four.step()
    return {"losses": losses, "one": one.weights(), "four": four.weights()}


def by_samples(engine: Engine, batch: Any) -> Output:
    return Output(engine.criterion(engine(batch[0]), batch[1]), weight=2 * len(batch[0]))
