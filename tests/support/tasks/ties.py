"""Models with tied parameters that nobody here wrote, and others that tie in unusual places."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Layout, Output, Trainer, hooks, load_weights, seed_all
from support.tasks.rows import part_of

TOKENS, WIDTH = 13, 8


class Embedded(nn.Module):
    """Scores for the next token; subclasses tie what they have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(3))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        scores: Tensor = self.head(x)
        return scores


class ThreeNames(Embedded):
    """One parameter under three names, one of them deep inside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight
        self.more = nn.ModuleDict({"deep": nn.Sequential(nn.Linear(WIDTH, TOKENS, bias=False))})
        self.more["deep"][0].weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x) + self.more["deep"](self.embed(x))
        return scores


class BlocksTied(Embedded):
    """Blocks share a weight with each other, and with a layer outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = nn.Linear(WIDTH, WIDTH)
        for block in self.blocks[1:]:
            block[0].weight = self.blocks[0][0].weight
        self.outside.bias = self.blocks[2][0].bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.outside(self.embed(x))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        scores: Tensor = self.head(x)
        return scores


class OneBlock(Embedded):
    """The same block three times."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.blocks[0]] * 3)


class WithBuffer(Embedded):
    """A buffer in the memory of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("view", self.head.weight.detach())


class TwoParameters(Embedded):
    """Two parameters in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.embed.weight.detach())


class InStages(nn.Sequential):
    """A sequence in which one weight is used in three places, and another in two."""

    def __init__(self) -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)]
        head = nn.Linear(WIDTH, TOKENS, bias=False)
        super().__init__(nn.Embedding(TOKENS, WIDTH), *layers, head)
        layers[3].weight = layers[5].weight = layers[0].weight
        head.weight = self[0].weight


class WithinProcess(nn.Sequential):
    """Of four stages the first and the third share a weight."""

    def __init__(self) -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)]
        super().__init__(nn.Embedding(TOKENS, WIDTH), *layers, nn.Linear(WIDTH, TOKENS))
        self[4].weight = self[1].weight


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=TOKENS, n_positions=8, n_embd=WIDTH, n_layer=2, n_head=2, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).double()


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=TOKENS, d_model=WIDTH, d_kv=4, d_ff=16, num_layers=2, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).double()


MODELS = {
    "gpt2": gpt2,
    "t5": t5,
    "three names": ThreeNames,
    "blocks tied": BlocksTied,
    "one block": OneBlock,
    "in stages": InStages,
    "within a process": WithinProcess,
    "with a buffer": WithBuffer,
    "two parameters": TwoParameters,
}


def model_of(name: str) -> nn.Module:
    seed_all(3)
    torch.set_default_dtype(torch.float64)  # .double() would separate tensors in shared memory
    try:
        return MODELS[name]()
    finally:
        torch.set_default_dtype(torch.float32)


def engine_of(name: str, layout: Layout | None) -> Engine:
    model = model_of(name)
    return Engine(
        model, torch.optim.AdamW(model.parameters(), lr=0.02), nn.CrossEntropyLoss(),
        layout=layout, clip_norm=0.5,
    )  # fmt: skip


def next_token(engine: Engine, x: Tensor) -> Output:
    named = {"labels": x} if hasattr(engine.model, "encoder") else {}
    found = engine(x, **named)
    scores = found if isinstance(found, Tensor) else found.logits
    loss = engine.criterion(scores[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    return Output(loss, weight=len(x))


def batches(engine: Engine) -> list[Tensor]:
    drawn = torch.randint(TOKENS, (16, 6), generator=torch.Generator().manual_seed(4))
    return [part_of(engine, (rows,))[0].contiguous() for rows in drawn.split(4)]


def trained(layout: Layout | None, name: str, folder: Path | None = None, steps: int = 4) -> Any:
    """Train in a folder, from its newest checkpoint if it has one; weights and averages."""
    engine = engine_of(name, layout)
    average = hooks.EMA(0.9)
    saves = [hooks.Checkpoint("1st")] if folder is not None else []
    run = Trainer(engine, [average, *saves], step=next_token, run_dir=folder)
    run.fit(batches(engine), max_steps=steps)
    averages = engine.parallel_model.full_weights(average.state_dict()["average"])
    return {name: weight.clone() for name, weight in engine.weights().items()}, averages


def loaded(layout: Layout | None, name: str, path: Path) -> Any:
    """Load weights alone; which did not fit, and the weights of the model then."""
    engine = engine_of(name, layout)
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.zero_()
    return load_weights(engine.model, path), engine.weights()
