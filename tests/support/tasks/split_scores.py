"""What processes do in `parallel/test_sequence_and_loss.py`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from stoker import Engine, Layout, seed_all
from stoker.core import dist
from stoker.nn import Transformer
from stoker.parallel.tensor.scores import SplitScores
from support.tasks import stock_models

CLASSES = 7


def losses(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What code may do with scores of shape (2, 5, 7)."""
    rows = scores.float().double()[:, :-1].contiguous().view(-1, CLASSES)
    flat, wanted = scores.flatten(0, -2), labels[:, 1:].flatten()
    kept = labels.flatten().clamp(min=0)
    weight = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64)
    return {
        "mean": functional.cross_entropy(rows, wanted),
        "sum": functional.cross_entropy((rows / 2).tanh() * 3, wanted, reduction="sum"),
        "none": functional.cross_entropy(rows, wanted, reduction="none").square().sum(),
        "weighted": functional.cross_entropy(flat, kept, weight, ignore_index=2),
        "smoothed": functional.cross_entropy(flat, labels.flatten(), label_smoothing=0.1),
        "transposed": functional.cross_entropy(scores.transpose(1, 2), labels),
        "other": scores.logsumexp(-1).mean() + (scores[..., 3] * scores[0, 1, 2]).sum(),
        "mixed": (torch.ones_like(scores) * 2 - scores).square().mean(),
    }


def compare_scores() -> dict[str, float]:
    """The largest difference of each loss, and of its gradient, from those of complete scores."""
    mesh = init_device_mesh("cpu", (dist.world_size(),))
    seed_all(4)
    full = torch.randn(2, 5, CLASSES, dtype=torch.float64)
    labels = torch.randint(CLASSES, (2, 5))
    labels[0, 1] = -100
    first = sum(len(p) for p in torch.arange(CLASSES).chunk(dist.world_size())[: dist.rank()])
    found = {}
    for name in losses(full, labels):
        whole = full.clone().requires_grad_()
        expected = losses(whole, labels)[name]
        expected.backward()
        part = full.chunk(dist.world_size(), -1)[dist.rank()].clone().requires_grad_()
        loss = losses(SplitScores.of(part, mesh, CLASSES), labels)[name]
        loss.backward()
        assert type(loss) is Tensor
        right = whole.grad[..., first : first + part.shape[-1]]
        found[name] = max(float((loss - expected).abs()), float((part.grad - right).abs().max()))
    return found


class Opaque(torch.autograd.Function):
    """A function that torch cannot look into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def wrong_uses() -> list[str]:
    """The errors for a label that is no class, and for a function that torch cannot look into."""
    mesh = init_device_mesh("cpu", (dist.world_size(),))
    part = torch.zeros(4, 3, requires_grad=True)
    scores = SplitScores.of(part, mesh, 6)
    found = []
    for use in (
        lambda: functional.cross_entropy(scores, torch.full((4,), 6)),
        lambda: Opaque.apply(scores).sum().backward(),
    ):
        try:
            use()
        except (ValueError, RuntimeError) as error:
            found.append(str(error))
    return found


def own_losses(layout: Layout | None, name: str) -> list[float]:
    """The losses that a model of transformers computes itself, over three steps."""
    model = stock_models.model_of(name, vocab_size=41)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, layout=layout)
    batch = torch.utils.data.default_collate(stock_models.samples(name)[:4])
    found = []
    with stock_models.InFloat64():
        for _ in range(3):
            engine.zero_grad()
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            found.append(float(loss.detach()))
    return found


def of_transformer(layout: Layout | None, recompute: str | None = None) -> dict[str, Tensor]:
    """The weights of `stoker.nn.Transformer` after three steps on windows of an odd length."""
    seed_all(2)
    model = Transformer(23, 9, width=8, layers=3, heads=2).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, activation_checkpointing=recompute
    )
    tokens = torch.arange(27).view(3, 9) * 7 % 23
    for _ in range(3):
        engine.zero_grad()
        engine.backward(engine.criterion(engine(tokens).flatten(0, 1), tokens.flatten()))
        engine.step()
    return engine.weights()


class Scaled(Transformer):
    """Uses a parameter between its blocks, where a process has a part of the sequence."""

    def __init__(self) -> None:
        super().__init__(23, 9, width=8, layers=2, heads=2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor) -> Tensor:
        first, second = self.blocks
        return self.head(self.norm(second(first(self.embed(tokens)) * self.scale)))


class Reversed(Transformer):
    """Mixes positions between its blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        first, second = self.blocks
        return self.head(self.norm(second(first(self.embed(tokens)).flip(1))))


def refusals() -> dict[str, str]:
    """The errors for models that cannot be split further."""
    silent = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sequence = Layout(tensor=2, sequence_parallel=True)
    plan = {"0": "col", "1": "row"}
    loss = {"tensor": 2, "loss_parallel": True}
    jobs = {
        "scaled": (Scaled(), sequence),
        "reversed": (Reversed(23, 9, width=8, layers=2, heads=2), sequence),
        "no blocks": (silent, Layout(tensor=2, plan=plan, sequence_parallel=True)),
        "no head": (stock_models.model_of("vit"), Layout(**loss)),
        "no batch": (nn.Sequential(nn.Linear(4, 4)), Layout(plan={"0": "gather"}, **loss)),
    }
    found = {}
    for name, (model, layout) in jobs.items():
        try:
            Engine(model, layout=layout)
        except ValueError as error:
            found[name] = str(error)
    return found


def dropped_positions() -> tuple[Tensor, Tensor]:
    """What a process drops in a norm region, and a number that it draws afterwards."""
    model = Transformer(23, 8, width=8, layers=2, heads=2, dropout=0.5)
    engine = Engine(model, layout=Layout(tensor=2, sequence_parallel=True))
    seen: list[Tensor] = []
    model.blocks[0].dropout.register_forward_hook(lambda _, __, out: seen.append(out == 0))
    model.train()
    seed_all(5)
    engine(torch.ones(2, 8, dtype=torch.long))
    return seen[0], torch.rand(1)
