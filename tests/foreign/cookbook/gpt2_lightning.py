"""The job of examples/cookbook/gpt2.py with Lightning."""

from pydoc_data.topics import topics

import lightning as L
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

paragraphs = [p for name in sorted(topics) for p in topics[name].split("\n\n") if len(p) > 20]
texts = [torch.tensor([*p.encode()[:64]]) for p in paragraphs[:484]]  # a byte is a token


def collate(rows):
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    ids = pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (labels >= 0).long(), "labels": labels}


config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)


class GPT2(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False  # a window's loss is divided by the tokens of all of it
        self.model = GPT2LMHeadModel(config)
        self.tokens = 0

    def training_step(self, batch, index):
        tokens = (batch["labels"][:, 1:] != -100).sum()
        loss = self.model(**batch).loss
        self.manual_backward(loss * tokens)
        self.tokens += tokens
        self.log("train_loss", loss, batch_size=int(tokens), on_epoch=True)
        if (index + 1) % 2 == 0:
            for parameter in self.parameters():
                parameter.grad /= self.tokens
            self.optimizers().step()
            self.optimizers().zero_grad()
            self.lr_schedulers().step()
            self.tokens = 0

    def validation_step(self, batch, index):
        tokens = (batch["labels"][:, 1:] != -100).sum()
        self.log("val_loss", self.model(**batch).loss, batch_size=int(tokens))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [get_cosine_schedule_with_warmup(optimizer, 0, 36)]


L.seed_everything(0)
model = GPT2()
train = DataLoader(texts[:384], 16, shuffle=True, collate_fn=collate)
val = DataLoader(texts[384:], 50, collate_fn=collate)
trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", precision="bf16-mixed", default_root_dir="runs/gpt2"
)
trainer.fit(model, train, val)
print(f"loss per token: {trainer.validate(model, val)[0]['val_loss']:.3f}")
