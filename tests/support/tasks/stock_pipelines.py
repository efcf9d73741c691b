"""What processes do in `parallel/test_stock_pipelines.py`: train models that nobody here wrote."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Trainer, hooks
from stoker.core.tree import is_sharded

SAMPLES, BATCH, LENGTH, VOCABULARY, CLASSES, BLOCKS = 36, 8, 9, 37, 3, 4


class InFloat64(TorchFunctionMode):
    """Lets models compute in float64 where they cast to float32, in norms, tables and losses."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.float:
            return args[0].double()
        wide = {torch.float32: torch.float64}
        return func(
            *(wide.get(a, a) if isinstance(a, torch.dtype) else a for a in args),
            **{
                k: wide.get(a, a) if isinstance(a, torch.dtype) else a
                for k, a in (kwargs or {}).items()
            },
        )


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": 4,
        **more,
    }


_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": CLASSES}
_GROUPED = {"num_key_value_heads": 2}

CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "CausalLM",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 16,
            "n_layer": BLOCKS,
            "n_head": 4,
            "n_positions": 16,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "llama": ("CausalLM", "LlamaConfig", _sizes(**_GROUPED)),
    "qwen3": ("CausalLM", "Qwen3Config", _sizes(**_GROUPED, head_dim=8)),
    "gemma": ("CausalLM", "GemmaConfig", _sizes(**_GROUPED, head_dim=8)),
    "mistral": ("CausalLM", "MistralConfig", _sizes(**_GROUPED, sliding_window=4)),
    # the other implementation of experts has no float64
    "mixtral": (
        "CausalLM",
        "MixtralConfig",
        _sizes(**_GROUPED, num_local_experts=4, experts_implementation="eager"),
    ),
    "bert": ("MaskedLM", "BertConfig", _sizes(**_BERT)),
    "bert classifier": ("SequenceClassification", "BertConfig", _sizes(**_BERT)),
    "vit": ("ImageClassification", "ViTConfig", _sizes(**_BERT, image_size=8, patch_size=4)),
    "t5": (
        "Seq2SeqLM",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 24,
            "num_heads": 4,
            "num_layers": BLOCKS,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
}
"""For each architecture the auto class of transformers, the config class, and its sizes."""

TIED = ("gpt2", "llama", "qwen3", "gemma", "mistral", "mixtral", "bert", "t5")
"""The architectures whose embedding and head may share their weights."""


def stock(name: str, *, tied: bool = False, **options: Any) -> nn.Module:
    """A model of transformers as its auto class makes it, with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    auto, config, sizes = CONFIGS[name]
    if name in TIED:
        options["tie_word_embeddings"] = tied
    torch.manual_seed(7)
    made = getattr(transformers, f"AutoModelFor{auto}").from_config(
        getattr(transformers, config)(**sizes, **options)
    )
    return made.double()


def samples(name: str) -> list[dict[str, Tensor]]:
    """Samples as a tokenizer pads them, with labels that are ignored where they do not count."""
    made = []
    for number in range(SAMPLES):
        generator = torch.Generator().manual_seed(number)
        label = torch.randint(CLASSES, (), generator=generator)
        if name == "vit":
            pixels = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64)
            made.append({"pixel_values": pixels, "labels": label})
            continue
        ids = torch.randint(1, VOCABULARY, (LENGTH,), generator=generator)
        mask = (torch.arange(LENGTH) < LENGTH - number * 7 % 6).long()
        ids = ids * mask
        labels = torch.where(mask == 1, ids, -100)
        if name == "bert":  # some samples have no label that counts
            labels = torch.where(torch.arange(LENGTH) % 5 == number % 7, labels, -100)
        if name == "t5":
            labels = labels[:5]
        if name == "bert classifier":
            labels = label
        made.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return made


def _job(
    layout: Layout | None, model: nn.Module, accumulate: int = 2, **options: Any
) -> tuple[Engine, Trainer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine = Engine(model, optimizer, clip_norm=0.5, layout=layout)
    return engine, Trainer(engine, [hooks.Loss()], accumulate=accumulate, seed=3, **options)


def _loader(engine: Engine, data: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH // engine.data_shard.world_size)


def _sum_of_moments(engine: Engine) -> dict[int, float]:
    """The sums of the first moments that this process holds, by the number of the parameter."""
    state = engine.state_dict()["optimizers"][""]["state"]
    return {
        number: float((m.full_tensor() if is_sharded(m) else m).sum())
        for number, m in ((n, entry["exp_avg"]) for n, entry in state.items())
    }


def trained(layout: Layout | None, name: str, tied: bool, saved: Path | None = None) -> Any:
    """Train, validate, predict and save; weights, losses, predictions and optimizer moments."""
    with InFloat64():
        engine, trainer = _job(layout, stock(name, tied=tied))
        data = samples(name)
        inputs = [{k: v for k, v in sample.items() if k != "labels"} for sample in data]
        if name == "t5":
            inputs = [
                {**s, "decoder_input_ids": d["labels"].clamp(min=0)}
                for s, d in zip(inputs, data, strict=True)
            ]
        (row,) = trainer.fit(_loader(engine, data), _loader(engine, data[:20]), epochs=1)
        predicted = trainer.predict(_loader(engine, inputs[:20]))["logits"]
        if saved is not None:
            trainer.save(saved)
        losses = {key: float(row[key]) for key in ("train/loss", "val/loss")}
        return engine.weights(), losses, predicted, _sum_of_moments(engine)


def resumed(layout: Layout | None, name: str, tied: bool, saved: Path) -> Any:
    """Load a checkpoint and train for another epoch; the weights before and after."""
    with InFloat64():
        engine, trainer = _job(layout, stock(name, tied=tied))
        trainer.load(saved)
        before = {key: weight.clone() for key, weight in engine.weights().items()}
        trainer.fit(_loader(engine, samples(name)), epochs=2)
        return before, engine.weights()


class Block(nn.Module):
    """A block that takes a mask, and may keep a value that the model reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.kept: Any = 0.0

    def forward(self, x: Tensor, mask: Tensor, first: Any = None, kept: Any = None) -> Any:
        self.kept = x.square().mean()
        if kept is not None:
            kept.append(self.kept)
        return x + self.linear(x if first is None else x + first).tanh() * mask


class Foreign(nn.Module):
    """A model with a list of blocks, a parameter and a buffer of its own, and its own loss.

    Args:
        fault: what it does that stages cannot.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        if fault == "early head":
            self.head = nn.Linear(8, VOCABULARY)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.positions = nn.Parameter(torch.randn(LENGTH, 8))
        self.register_buffer("mask", torch.linspace(0.5, 1, LENGTH)[:, None])
        self.spread = nn.BatchNorm1d(LENGTH, affine=False) if fault == "statistics" else None
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2 * (fault == "lists")))
        if fault != "early head":
            self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(tokens) + self.positions
        if self.spread is not None:
            x = self.spread(x)
        if self.fault == "reads":
            x = x * float(x.mean())
        first = x if self.fault == "first" else None
        kept: list[Tensor] | None = [] if self.fault == "appends" else None
        for number, block in enumerate(self.blocks):
            if self.fault == "dropped" and number == 1:
                continue
            x = block(x, self.mask, first, kept)
            x *= 0.9  # in place, between blocks
            if self.norms:
                x = self.norms[number % len(self.norms)](x)
        for block in self.blocks if self.fault == "twice" else ():
            x = block(x, self.mask)
        if self.fault == "embeds again":
            x = x + self.embed(tokens)
        logits = self.head(self.norm(x))
        if self.fault == "functional":
            logits = nn.functional.linear(x, self.embed.weight)
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if self.fault == "kept":
            loss = loss + sum(block.kept for block in self.blocks)
        return {"loss": loss, "logits": logits}


FAULTS = {
    "early head": "'head' is registered before the blocks of the model, but runs after some",
    "statistics": "buffer 'spread.running_mean' changes when the model runs",
    "reads": "needs the output or a weight of 'embed', which is in another stage",
    "first": "needs the output or a weight of 'embed', which is in another stage",
    "functional": "needs the output or a weight of 'embed', which is in another stage",
    "dropped": "Foreign did not run its block 'blocks.1'",
    "twice": "'blocks.0' runs in an earlier pipeline stage and again in stage 1",
    "lists": "the model takes an element of 'norms', which is in another pipeline stage",
    "embeds again": "'embed' runs in an earlier pipeline stage and again in stage 1",
    "appends": "'blocks.0' changes one of its arguments, [float64[]], in place",
    "kept": "Foreign reads the attribute 'kept' that Block sets when it runs",
    "hidden states": "output_hidden_states is on, but the stages of a pipeline have the hidden",
    "router": "output_router_logits is on",
    "cache": "use_cache is True, but each stage",
}


def _faulty(fault: str) -> tuple[nn.Module, dict[str, Any]]:
    tokens = torch.arange(4 * LENGTH).view(4, LENGTH) % VOCABULARY
    if fault in ("hidden states", "router", "cache"):
        given = {"hidden states": {"output_hidden_states": True}, "cache": {"use_cache": True}}
        options = {"output_router_logits": True} if fault == "router" else {}
        batch = {"input_ids": tokens, "labels": tokens, **given.get(fault, {})}
        return stock("mixtral", **options), batch
    return Foreign(fault).double(), {"tokens": tokens, "labels": tokens}


def refusals() -> dict[str, str]:
    """What each process is told of a model that stages cannot run."""
    found = {}
    for fault in FAULTS:
        model, batch = _faulty(fault)
        layout = Layout(pipeline=2, split=("blocks.2",) if fault == "dropped" else None)
        try:
            _job(layout, model, 1)[1].fit([batch], epochs=1)
        except (ValueError, RuntimeError) as error:
            found[fault] = str(error)
    return found


def foreign(layout: Layout | None, saved: Path | None = None) -> Any:
    """Train a model that is not of transformers; its weights."""
    torch.manual_seed(5)
    engine, trainer = _job(layout, Foreign().double())
    data = [{"tokens": s["input_ids"], "labels": s["input_ids"]} for s in samples("bert")]
    trainer.fit(_loader(engine, data), epochs=1)
    if saved is not None:
        trainer.save(saved)
    return engine.weights()


def loaded(layout: Layout | None, saved: Path) -> dict[str, Tensor]:
    """The weights of the foreign model from a checkpoint."""
    engine, trainer = _job(layout, Foreign().double())
    trainer.load(saved)
    return engine.weights()


def shards_a_parameter_of_no_stage() -> str:
    """What is said of a parameter that every stage has."""
    try:
        _job(Layout(pipeline=2, shard=2), Foreign().double())
    except ValueError as error:
        return str(error)
    return ""


def run_example(source: str) -> tuple[list[str], int]:
    """Run the example of a page; the names of the parameters here, and the number of its steps."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(source, names)
    held = [name for name, _ in names["model"].named_parameters()]
    return held, names["history"][-1]["step"]
