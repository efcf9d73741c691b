"""Models of transformers of many more architectures, tiny and with random weights.

Each trains in a layout as in one process, or is refused before training.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Trainer, hooks
from support.tasks.stock_pipelines import InFloat64

SAMPLES, BATCH, LENGTH, VOCABULARY, CLASSES = 20, 8, 9, 40, 3

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "d_model": 16,
    "intermediate_size": 24,
    "ffn_dim": 24,
    "ffn_hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "num_labels": CLASSES,
}
_GROUPED = {"num_key_value_heads": 2}
_BOTH = {
    "encoder_layers": 4,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "forced_eos_token_id": None,
}
_IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 1}
_EXPERTS = {**_GROUPED, "moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2}

ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    # decoders
    "phi": ("Phi", "CausalLM", {**_GROUPED, "partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", "CausalLM", _GROUPED),
    "falcon": ("Falcon", "CausalLM", {}),
    "falcon new": (
        "Falcon",
        "CausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    ),
    "falcon alibi": ("Falcon", "CausalLM", {"alibi": True, "multi_query": False}),
    "opt": ("OPT", "CausalLM", {"word_embed_proj_dim": 16}),
    "opt projected": ("OPT", "CausalLM", {"word_embed_proj_dim": 8}),
    "gpt neo": (
        "GPTNeo",
        "CausalLM",
        {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]]},
    ),
    "gpt neox": ("GPTNeoX", "CausalLM", {}),
    "gptj": ("GPTJ", "CausalLM", {"n_embd": 16, "n_layer": 4, "n_head": 4, "rotary_dim": 4}),
    "gpt bigcode": ("GPTBigCode", "CausalLM", {"n_embd": 16, "n_layer": 4, "n_head": 4}),
    "codegen": ("CodeGen", "CausalLM", {"n_embd": 16, "n_layer": 4, "n_head": 4, "rotary_dim": 4}),
    "bloom": ("Bloom", "CausalLM", {"n_layer": 4, "n_head": 4}),
    "mpt": ("Mpt", "CausalLM", {"n_layers": 4, "n_heads": 4, "max_seq_len": 64}),
    "stablelm": ("StableLm", "CausalLM", {**_GROUPED, "partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2", "CausalLM", _GROUPED),
    "cohere": ("Cohere", "CausalLM", _GROUPED),
    "gemma2": ("Gemma2", "CausalLM", {**_GROUPED, "head_dim": 4, "sliding_window": 4}),
    "gemma3": ("Gemma3Text", "Gemma3ForCausalLM", {**_GROUPED, "head_dim": 4, "sliding_window": 4}),
    "qwen2": ("Qwen2", "CausalLM", _GROUPED),
    "starcoder2": ("Starcoder2", "CausalLM", _GROUPED),
    "granite": ("Granite", "CausalLM", _GROUPED),
    "smollm3": ("SmolLM3", "CausalLM", _GROUPED),
    "glm": ("Glm", "CausalLM", {**_GROUPED, "head_dim": 4}),
    "nemotron": ("Nemotron", "CausalLM", _GROUPED),
    "persimmon": ("Persimmon", "CausalLM", {}),
    "biogpt": ("BioGpt", "CausalLM", {}),
    "ctrl": ("CTRL", "CTRLLMHeadModel", {"n_embd": 16, "dff": 24, "n_layer": 4, "n_head": 4}),
    # mixtures of experts
    "qwen2 moe": (
        "Qwen2Moe", "CausalLM", {**_EXPERTS, "shared_expert_intermediate_size": 12},
    ),
    "qwen3 moe": ("Qwen3Moe", "CausalLM", {**_EXPERTS, "head_dim": 4}),
    "olmoe": ("Olmoe", "CausalLM", _EXPERTS),
    "gpt oss": (
        "GptOss", "CausalLM", {**_GROUPED, "head_dim": 4, "num_local_experts": 4,
                               "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "deepseek v2": (
        "DeepseekV2", "CausalLM",
        {"num_key_value_heads": 4, "moe_intermediate_size": 12, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
         "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
         "v_head_dim": 4, "topk_method": "greedy"},
    ),
    "deepseek v3": (
        "DeepseekV3", "CausalLM",
        {"num_key_value_heads": 4, "moe_intermediate_size": 12, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
         "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
         "v_head_dim": 4, "n_group": 2, "topk_group": 1},
    ),
    # models without attention, or with other layers too
    "mamba": ("Mamba", "CausalLM", {"state_size": 4, "time_step_rank": 2}),
    "mamba2": (
        "Mamba2", "CausalLM",
        {"state_size": 4, "num_heads": 8, "head_dim": 4, "n_groups": 2, "chunk_size": 4},
    ),
    "rwkv": ("Rwkv", "CausalLM", {"attention_hidden_size": 16, "context_length": 64}),
    "recurrent gemma": (
        "RecurrentGemma", "CausalLM",
        {**_GROUPED, "lru_width": 16, "attention_window_size": 8, "num_hidden_layers": 6},
    ),
    # encoders
    "roberta": ("Roberta", "MaskedLM", {}),
    "albert": ("Albert", "MaskedLM", {"embedding_size": 8}),
    "albert groups": ("Albert", "MaskedLM", {"embedding_size": 8, "num_hidden_groups": 2}),
    "distilbert": ("DistilBert", "MaskedLM", {"dim": 16, "hidden_dim": 24, "n_layers": 4,
                                              "n_heads": 4}),
    "electra": ("Electra", "MaskedLM", {"embedding_size": 8}),
    "deberta": ("Deberta", "MaskedLM", {}),
    "deberta v2": (
        "DebertaV2", "MaskedLM",
        {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"],
         "share_att_key": True},
    ),
    "mpnet": ("MPNet", "MaskedLM", {}),
    "modernbert": ("ModernBert", "MaskedLM", {"local_attention": 4}),
    "xlnet": ("XLNet", "XLNetLMHeadModel", {"n_layer": 4, "n_head": 4, "d_inner": 24}),
    "xlm": ("XLM", "MaskedLM", {"emb_dim": 16, "n_layers": 4, "n_heads": 4}),
    "fnet": ("FNet", "MaskedLM", {}),
    "mobilebert": ("MobileBert", "MaskedLM", {"embedding_size": 8, "intra_bottleneck_size": 8,
                                              "true_hidden_size": 8}),
    "squeezebert": ("SqueezeBert", "MaskedLM", {"embedding_size": 16}),
    # heads
    "bert classifier": ("Bert", "SequenceClassification", {}),
    "roberta classifier": ("Roberta", "SequenceClassification", {}),
    "bert tokens": ("Bert", "TokenClassification", {}),
    "bert answers": ("Bert", "QuestionAnswering", {"num_labels": 2}),
    "llama classifier": ("Llama", "SequenceClassification", _GROUPED),
    "llama tokens": ("Llama", "TokenClassification", _GROUPED),
    "llama answers": ("Llama", "QuestionAnswering", {**_GROUPED, "num_labels": 2}),
    "gpt2 classifier": ("GPT2", "SequenceClassification",
                        {"n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 64}),
    "t5 classifier": ("T5", "T5ForSequenceClassification",
                      {"d_kv": 4, "d_ff": 24, "num_layers": 4, "num_heads": 4,
                       "decoder_start_token_id": 0}),
    # encoder-decoders
    "bart": ("Bart", "Seq2SeqLM", _BOTH),
    "bart decoder": ("Bart", "CausalLM", _BOTH),
    "bart classifier": ("Bart", "SequenceClassification", _BOTH),
    "mbart": ("MBart", "Seq2SeqLM", _BOTH),
    "marian": ("Marian", "Seq2SeqLM", _BOTH),
    "pegasus": ("Pegasus", "Seq2SeqLM", _BOTH),
    "mt5": ("MT5", "Seq2SeqLM", {"d_kv": 4, "d_ff": 24, "num_layers": 4, "num_heads": 4}),
    "led": ("LED", "Seq2SeqLM", {**_BOTH, "attention_window": 4,
                                 "max_encoder_position_embeddings": 64,
                                 "max_decoder_position_embeddings": 64}),
    # images and sound
    "beit": ("Beit", "ImageClassification", _IMAGES),
    "dinov2": ("Dinov2", "ImageClassification", _IMAGES),
    "swin": ("Swin", "ImageClassification",
             {**_IMAGES, "image_size": 32, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4],
              "window_size": 2}),
    "convnext": ("ConvNext", "ImageClassification",
                 {"num_channels": 1, "image_size": 32, "hidden_sizes": [8, 16], "depths": [2, 2],
                  "num_stages": 2}),
    "resnet": ("ResNet", "ImageClassification",
               {"num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}),
    "segformer": ("Segformer", "ImageClassification",
                  {"num_channels": 1, "image_size": 32, "num_encoder_blocks": 2, "depths": [2, 2],
                   "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3],
                   "strides": [2, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2]}),
    "vit mae": ("ViTMAE", "ViTMAEForPreTraining",
                {**_IMAGES, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 2,
                 "decoder_num_attention_heads": 4, "decoder_intermediate_size": 24,
                 "mask_ratio": 0.5}),
    "whisper": ("Whisper", "WhisperForConditionalGeneration",
                {**_BOTH, "num_mel_bins": 4, "max_source_positions": 8,
                 "max_target_positions": 64}),
    "wav2vec2": ("Wav2Vec2", "Wav2Vec2ForSequenceClassification",
                 {"conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (4, 4),
                  "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
                  "num_feat_extract_layers": 2, "classifier_proj_size": 8}),
    "clip images": ("CLIP", "CLIPForImageClassification", {
        "text_config": _COMMON, "projection_dim": 8, "vision_config": {**_COMMON, **_IMAGES},
    }),
    "llava": ("Llava", "LlavaForConditionalGeneration", {
        "image_token_index": 3, "vision_feature_layer": -1, "vision_config": {
            **_COMMON, **_IMAGES, "model_type": "clip_vision_model"},
        "text_config": {**_COMMON, **_GROUPED, "model_type": "llama"},
    }),
}  # fmt: skip
"""For each architecture the prefix of its config, the auto class or class, and its sizes."""


def make(name: str, *, tied: bool = False, **options: Any) -> nn.Module:
    """A model without dropout and layer dropout, in double precision."""
    import transformers

    transformers.logging.set_verbosity_error()
    prefix, kind, sizes = ZOO[name]
    config_class = getattr(transformers, f"{prefix}Config")
    known = {*vars(config_class()), *config_class.attribute_map}
    given = {
        key: value
        for key, value in _COMMON.items()
        if (key in known or key == "num_labels")
        and config_class.attribute_map.get(key) not in sizes
        and not (key == "num_hidden_layers" and "depths" in sizes)
    }
    config = config_class(**{**given, **sizes}, **({} if "text_config" in sizes else options))
    for one in (config, *(getattr(config, n, None) for n in ("text_config", "vision_config"))):
        _without_draws(one, tied)
    torch.manual_seed(7)
    auto = getattr(transformers, f"AutoModelFor{kind}", None)
    attention = {k: v for k, v in options.items() if k == "attn_implementation"}
    made = auto.from_config(config, **attention) if auto else getattr(transformers, kind)(config)
    for module in made.modules():  # heads may have dropout that no option of the config names
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for parameter in made.parameters():  # some begin with zeros, and would stay untried
            if not parameter.any():
                parameter.normal_(0, 0.02)
    return made.double()


def _without_draws(config: Any, tied: bool) -> None:
    if config is None:
        return
    for key, value in vars(config).items():
        if isinstance(value, float) and any(word in key for word in ("drop", "layerdrop")):
            setattr(config, key, 0.0)
        if key.startswith("mask_") and key.endswith("_prob"):
            setattr(config, key, 0.0)
    config.tie_word_embeddings = tied
    config._experts_implementation = "eager"  # others do not compute in float64


def samples(name: str) -> list[dict[str, Tensor]]:
    """Samples that the model takes, padded where it takes a mask."""
    prefix, kind, sizes = ZOO[name]
    return [_sample(prefix, kind, sizes, number) for number in range(SAMPLES)]


def _sample(prefix: str, kind: str, sizes: dict[str, Any], number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    label = torch.randint(CLASSES, (), generator=generator)
    sizes = {**sizes, **sizes.get("vision_config", {})}
    side = sizes.get("image_size", 32)
    image = torch.randn(sizes.get("num_channels", 1), side, side, generator=generator).double()
    if prefix == "Wav2Vec2":
        return {"input_values": torch.randn(160, generator=generator).double(), "labels": label}
    if kind == "ViTMAEForPreTraining":
        return {"pixel_values": image, "noise": torch.rand(4, generator=generator).double()}
    if "Image" in kind:
        return {"pixel_values": image, "labels": label}
    ids = torch.randint(5, VOCABULARY, (LENGTH,), generator=generator)
    mask = (torch.arange(LENGTH) < LENGTH - number * 7 % 4).long()
    ids = torch.where(mask == 1, ids, 0)
    if prefix == "Whisper":
        sound = torch.randn(4, 16, generator=generator).double()
        return {"input_features": sound, "labels": torch.where(mask == 1, ids, -100)}
    if prefix == "Llava":
        ids[:4] = 3
    if prefix == "XLM":  # nobody knows how its loss weighs labels
        return {"input_ids": ids, "labels": ids}
    found = {"input_ids": ids, "attention_mask": mask}
    if prefix == "Llava":
        found["pixel_values"] = image
    if kind == "SequenceClassification" or kind.endswith("ForSequenceClassification"):
        if prefix in ("Bart", "T5"):  # they look for the last end of a sentence
            found["input_ids"] = ids.index_fill(0, torch.tensor(LENGTH - 1), 2)
            found["attention_mask"] = torch.ones_like(mask)
        return {**found, "labels": label}
    if kind == "QuestionAnswering":
        return {**found, "start_positions": label, "end_positions": label + 2}
    if kind == "TokenClassification":
        return {**found, "labels": torch.where(mask == 1, ids % CLASSES, -100)}
    return {**found, "labels": torch.where(mask == 1, ids, -100)}


def trained(layout: Layout | None, name: str) -> Any:
    """Train with accumulation and clipping, and evaluate; weights and losses."""
    with InFloat64():
        model = make(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine = Engine(model, optimizer, clip_norm=0.5, layout=layout)
        trainer = Trainer(engine, [hooks.Loss()], accumulate=2, seed=3)
        data = samples(name)
        size = BATCH // engine.data_shard.world_size
        (row,) = trainer.fit(
            DataLoader(data, batch_size=size), DataLoader(data[:11], batch_size=size), epochs=1
        )
        losses = {key: float(row[key]) for key in ("train/loss", "val/loss")}
        return engine.weights(), losses


def attempt(layout: Layout, name: str) -> Any:
    """What training gave; or the error, and whether it is one of Stoker, in one line."""
    try:
        return trained(layout, name)
    except Exception as error:
        told = isinstance(error, ValueError | TypeError) or "in another process" in str(error)
        return str(error), told and "\n" not in str(error)
