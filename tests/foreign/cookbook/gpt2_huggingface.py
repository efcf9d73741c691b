"""The job of examples/cookbook/gpt2.py with the Hugging Face Trainer."""

from pydoc_data.topics import topics

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

paragraphs = [p for name in sorted(topics) for p in topics[name].split("\n\n") if len(p) > 20]
texts = [torch.tensor([*p.encode()[:64]]) for p in paragraphs[:484]]  # a byte is a token


def collate(rows):
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    ids = pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (labels >= 0).long(), "labels": labels}


set_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
args = TrainingArguments(
    "runs/gpt2",
    num_train_epochs=3,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=50,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    bf16=True,
    eval_strategy="epoch",
    remove_unused_columns=False,
    use_cpu=True,
)
trainer = Trainer(
    GPT2LMHeadModel(config),
    args,
    train_dataset=texts[:384],
    eval_dataset=texts[384:],
    data_collator=collate,
)
trainer.train()
print(f"loss per token: {trainer.evaluate()['eval_loss']:.3f}")
