"""Train a stock GPT-2 in bf16, with every token weighing the same."""

from pydoc_data.topics import topics

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from stoker import Engine, Output, Trainer, seed_all
from stoker.nn import lr

paragraphs = [p for name in sorted(topics) for p in topics[name].split("\n\n") if len(p) > 20]
texts = [torch.tensor([*p.encode()[:64]]) for p in paragraphs[:484]]  # a byte is a token


def collate(rows):
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    ids = pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (labels >= 0).long(), "labels": labels}


def next_token(engine, batch):
    tokens = (batch["labels"][:, 1:] != -100).sum()
    return Output(engine(**batch).loss, weight=int(tokens))


seed_all(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
train = DataLoader(texts[:384], 16, shuffle=True, collate_fn=collate)
val = DataLoader(texts[384:], 50, collate_fn=collate)
engine = Engine(model, optimizer, lr_scheduler=lr.cosine(optimizer, 36), precision="bf16")
trainer = Trainer(engine, step=next_token, accumulate=2, run_dir="runs/gpt2")
trainer.fit(train, val, epochs=3)
print(f"loss per token: {trainer.evaluate(val)['val/loss']:.3f}")
