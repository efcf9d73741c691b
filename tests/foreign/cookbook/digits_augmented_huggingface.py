"""The job of examples/cookbook/digits_augmented.py with the Hugging Face Trainer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)


class Shifted(Dataset):
    """Move each image by up to one pixel, another way each time it is read."""

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        top, left = torch.randint(0, 3, (2,)).tolist()
        image = nn.functional.pad(x[index], [1] * 4)[:, top : top + 8, left : left + 8]
        return {"pixels": image, "labels": y[index]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 36, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean()}


set_seed(0)
args = TrainingArguments(
    "runs/augmented",
    num_train_epochs=6,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=99,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    dataloader_num_workers=2,
    dataloader_persistent_workers=True,
    eval_strategy="epoch",
)
val = [{"pixels": image, "labels": label} for image, label in zip(x[1500:], y[1500:], strict=True)]
trainer = Trainer(Net(), args, train_dataset=Shifted(), eval_dataset=val, compute_metrics=accuracy)
trainer.train()
print(f"accuracy: {trainer.evaluate()['eval_accuracy']:.3f}")
