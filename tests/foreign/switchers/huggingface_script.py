"""The script of docs/from-huggingface.md, with the Hugging Face Trainer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments, set_seed

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
digits = [{"pixels": image, "labels": label} for image, label in zip(x, y, strict=True)]
train_set, val_set = Subset(digits, range(1500)), Subset(digits, range(1500, 1797))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def compute_metrics(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


set_seed(0)
model = Net()
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir="hf_runs",
        num_train_epochs=3,
        per_device_train_batch_size=30,
        per_device_eval_batch_size=99,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        weight_decay=0.01,
        max_grad_norm=1.0,
        lr_scheduler_type="linear",
        eval_strategy="epoch",
        save_strategy="epoch",
        train_sampling_strategy="sequential",
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=train_set,
    eval_dataset=val_set,
    compute_metrics=compute_metrics,
)
trainer.train()
scores = trainer.evaluate()

val_loss, val_accuracy = scores["eval_loss"], scores["eval_accuracy"]
