"""Models of transformers, unmodified, that train in a layout; and the same in one process."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Output, Step, Trainer, hooks, seed_all
from support.tasks.stock_pipelines import InFloat64

VOCABULARY, LENGTH, SAMPLES, BATCH = 40, 8, 14, 8


def causal(name: str, **more: Any) -> Any:
    """A function that makes a decoder of transformers."""

    def build(tied: bool, **options: Any) -> nn.Module:
        import transformers

        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = getattr(transformers, f"{name}Config")(
            max_position_embeddings=32, tie_word_embeddings=tied,
            **{"vocab_size": VOCABULARY, **sizes, **heads, **more, **options},
        )  # fmt: skip
        config._experts_implementation = "eager"  # others do not compute in float64
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return build


def gpt2(tied: bool, **options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**{
        "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32,
        "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0,
        "tie_word_embeddings": tied, **options,
    })  # fmt: skip
    return GPT2LMHeadModel(config)


def bert(tied: bool, **options: Any) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "tie_word_embeddings": tied, **options,
    })  # fmt: skip
    return BertForMaskedLM(config)


def t5(tied: bool, **options: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(**{
        "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2,
        "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0,
        "tie_word_embeddings": tied, **options,
    })  # fmt: skip
    return T5ForConditionalGeneration(config)


def vit(tied: bool, **options: Any) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**{
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 8, "patch_size": 4, "num_channels": 1,
        "num_labels": 5, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **options,
    })  # fmt: skip
    return ViTForImageClassification(config)


MODELS = {
    "llama": causal("Llama"),
    "mistral": causal("Mistral"),
    "qwen3": causal("Qwen3"),
    "gemma": causal("Gemma"),
    "mixtral": causal("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "vit": vit,
}


def model_of(name: str, tied: bool = False, **options: Any) -> nn.Module:
    seed_all(3)
    return MODELS[name](tied, **options).double()


def samples(name: str) -> list[dict[str, Tensor]]:
    """Samples of which each has another length: padded inputs, and labels of -100."""
    generator = torch.Generator().manual_seed(5)
    if name == "vit":
        images = torch.randn(SAMPLES, 1, 8, 8, dtype=torch.float64, generator=generator)
        labels = torch.randint(5, (SAMPLES,), generator=generator)
        return [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]
    tokens = torch.randint(1, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    found = []
    for row, ids in enumerate(tokens):
        mask = torch.arange(LENGTH) < LENGTH - row % 4
        labels = torch.where(mask, ids.flip(0) if name == "t5" else ids, -100)
        found.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
    return found


class Tokens(Step):
    """The mean loss over the labels that count, in double precision.

    The models' own losses are computed in float32.
    """

    def forward(self, engine: Engine, batch: Any) -> Output:
        scores, labels = self.predict(engine, batch), batch["labels"]
        if is_causal(engine.model):
            scores, labels = scores[:, :-1], labels[:, 1:]
        loss = engine.criterion(scores.flatten(0, -2), labels.flatten())
        return Output(loss, weight=int((labels != -100).sum()))

    def predict(self, engine: Engine, batch: Any) -> Any:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        if "encoder" in dict(engine.model.named_children()):  # labels become decoder inputs
            inputs["labels"] = batch["labels"]
        return engine(**inputs).logits


def is_causal(model: nn.Module) -> bool:
    return type(model).__name__.endswith(("CausalLM", "LMHeadModel"))


def trained(
    layout: Layout | None,
    name: str,
    tied: bool = False,
    accumulate: int = 1,
    options: dict[str, Any] | None = None,
    folder: Path | None = None,
    steps: int | None = None,
) -> Any:
    """Weights, losses and predictions after training in double precision, clipped."""
    with InFloat64():
        return _trained(layout, name, tied, accumulate, options or {}, folder, steps)


def _trained(
    layout: Layout | None,
    name: str,
    tied: bool,
    accumulate: int,
    options: dict[str, Any],
    folder: Path | None,
    steps: int | None,
) -> Any:
    model = model_of(name, tied, **options)
    engine = Engine(
        model, torch.optim.AdamW(model.parameters(), lr=0.02), nn.CrossEntropyLoss(),
        layout=layout, clip_norm=0.5,
    )  # fmt: skip
    parts = engine.data_shard.world_size
    saves = [hooks.Checkpoint("1st")] if folder is not None else []
    run = Trainer(
        engine, [hooks.Loss(), hooks.GradNorm(), *saves], step=Tokens(), accumulate=accumulate,
        run_dir=folder, seed=3,
    )  # fmt: skip
    data = samples(name)
    train = DataLoader(data[:12], batch_size=BATCH // parts // accumulate)
    held_out = DataLoader(data[3:], batch_size=BATCH // parts)
    history = run.fit(train, held_out, epochs=2, max_steps=steps)
    results = [{key: row[key] for key in sorted(row) if "time" not in key} for row in history]
    predicted = run.predict(DataLoader(data[5:], batch_size=BATCH // parts))
    return engine.weights(), results, torch.stack(list(predicted))


def refusal(layout: Layout, name: str, options: dict[str, Any] | None = None) -> str:
    """The error with which a layout refuses a model."""
    model = model_of(name, **options or {})
    try:
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), layout=layout)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def drawn_in_training(layout: Layout) -> tuple[Tensor, Tensor]:
    """What a process drops between split layers, and a number that it draws afterwards."""
    options = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.5}
    model = model_of("bert", **options)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), layout=layout)
    heads: list[Tensor] = []
    row = model.get_submodule("bert.encoder.layer.0.attention.output.dense")
    row.register_forward_pre_hook(lambda _, args: heads.append(args[0]), prepend=True)
    with torch.no_grad():
        for name in ("query", "key", "value"):  # every head computes the same
            layer = model.get_submodule(f"bert.encoder.layer.0.attention.self.{name}")
            for parameter in layer.parameters():
                parameter.fill_(0.1)
    model.train()
    seed_all(5)
    engine(input_ids=samples("bert")[0]["input_ids"][None])
    return heads[0].detach(), torch.rand(1)
