"""The job of examples/cookbook/multi_task.py with the Hugging Face Trainer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

set_seed(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
targets = {"digit": y, "parity": y % 2}
noisy = x[1500:] + 0.3 * torch.randn(297, 64)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({"digit": nn.Linear(64, 10), "parity": nn.Linear(64, 2)})

    def forward(self, pixels, **targets):
        features = self.body(pixels)
        outputs = {name: head(features) for name, head in self.heads.items()}
        losses = {k: nn.functional.cross_entropy(outputs[k], targets[k]) for k in outputs}
        return {"loss": sum(losses.values()), **outputs}


def accuracies(prediction):
    pairs = zip(("digit", "parity"), prediction.predictions, prediction.label_ids, strict=True)
    return {f"{head}_accuracy": (out.argmax(1) == y).mean() for head, out, y in pairs}


def rows(images, chosen):
    labels = zip(targets["digit"][chosen], targets["parity"][chosen], strict=True)
    return [
        {"pixels": image, "digit": digit, "parity": parity}
        for image, (digit, parity) in zip(images, labels, strict=True)
    ]


args = TrainingArguments(
    "runs/multi_task",
    num_train_epochs=8,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    eval_strategy="epoch",
    label_names=["digit", "parity"],
    remove_unused_columns=False,
)
held_out = slice(1500, None)
trainer = Trainer(
    TwoHeads(),
    args,
    train_dataset=rows(x[:1500], slice(1500)),
    eval_dataset={"clean": rows(x[1500:], held_out), "noisy": rows(noisy, held_out)},
    compute_metrics=accuracies,
)
trainer.train()
print(f"accuracy on noisy images: {trainer.evaluate()['eval_noisy_digit_accuracy']:.3f}")
