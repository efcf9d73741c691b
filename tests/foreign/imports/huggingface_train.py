"""Train with the Hugging Face Trainer, keep the checkpoint of an epoch, print the last weights."""

import sys

from common import BATCH, EPOCHS, KEPT, finish, make_optimizer, network, pixels
from torch import nn
from transformers import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


kind, folder = sys.argv[1:]
model = Net()
digits = [{"pixels": x, "labels": y} for x, y in zip(*pixels(), strict=True)]
optimizer = None if kind == "adamw" else make_optimizer(kind, model)
arguments = TrainingArguments(
    output_dir=folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
    learning_rate=3e-3, weight_decay=0.01, max_grad_norm=0.0, lr_scheduler_type="linear",
    save_strategy="epoch", train_sampling_strategy="sequential", report_to="none", use_cpu=True,
    disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=digits, optimizers=(optimizer, None))
trainer.train()
finish(model, f"{folder}/checkpoint-{KEPT * len(digits) // BATCH}")
