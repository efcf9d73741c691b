"""A complete job: a small transformer on text."""

from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from work import Watch, Watched, Work, held_out


class Reader(nn.Module):
    """A transformer over characters; scores come as (batch, character, position)."""

    def __init__(
        self, vocabulary: int, context: int, width: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        return self.head(self.blocks(x, mask=self.mask, is_causal=True)).transpose(1, 2)  # type: ignore[no-any-return]


CONTEXT, WINDOWS = 64, 1280


@cache
def data() -> tuple[dict[str, Dataset[Any]], int]:
    """Return windows of Python's language reference, and the size of the alphabet."""
    reference = "\n\n".join(topics[name] for name in sorted(topics))
    reference = reference.encode("ascii", "ignore").decode()
    letters = {letter: number for number, letter in enumerate(sorted(set(reference)))}
    tokens = torch.tensor([letters[letter] for letter in reference[: WINDOWS * CONTEXT + 1]])
    x, y = tokens[:-1].reshape(-1, CONTEXT), tokens[1:].reshape(-1, CONTEXT)
    train, test = TensorDataset(x[256:], y[256:]), TensorDataset(x[:256], y[:256])
    return {"train": train, "test": test}, len(letters)


def part(name: str) -> Dataset[Any]:
    return data()[0][name]


def net() -> nn.Module:
    return Reader(data()[1], CONTEXT)


def task(watch: Watch) -> Work:
    """Build a small transformer on text, 2 epochs of 32 steps; text.yaml is the same."""
    torch.manual_seed(0)
    model = Watched(net(), watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train, test = DataLoader(part("train"), 32, shuffle=True), held_out(part("test"), 128)
    return Work(watch, model, optimizer, train, test, 2, 32, data()[1])
