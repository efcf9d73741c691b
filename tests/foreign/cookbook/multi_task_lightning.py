"""The job of examples/cookbook/multi_task.py with Lightning."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, StackDataset
from torchmetrics.classification import MulticlassAccuracy

L.seed_everything(0)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
targets = {"digit": y, "parity": y % 2}
noisy = x[1500:] + 0.3 * torch.randn(297, 64)


class TwoHeads(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({"digit": nn.Linear(64, 10), "parity": nn.Linear(64, 2)})
        self.accuracy = nn.ModuleDict(
            {
                f"{loader}_{head}": MulticlassAccuracy(10, average="micro")
                for loader in ("clean", "noisy")
                for head in self.heads
            }
        )

    def losses(self, batch, part):
        inputs, targets = batch
        features = self.body(inputs)
        outputs = {name: head(features) for name, head in self.heads.items()}
        losses = {k: nn.functional.cross_entropy(outputs[k], targets[k]) for k in outputs}
        losses["loss"] = sum(losses.values())
        self.log_dict({f"{part}_{k}": v for k, v in losses.items()}, on_epoch=True, batch_size=99)
        return outputs, losses["loss"]

    def training_step(self, batch, index):
        return self.losses(batch, "train")[1]

    def validation_step(self, batch, index, dataloader_idx):
        loader = ("clean", "noisy")[dataloader_idx]
        outputs, _ = self.losses(batch, f"val_{loader}")
        for head, scores in outputs.items():
            metric = self.accuracy[f"{loader}_{head}"]
            metric(scores.argmax(1), batch[1][head])
            self.log(f"val_{loader}_{head}_accuracy", metric, add_dataloader_idx=False)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


def loader(images, rows, batch_size, shuffle=False):
    labels = StackDataset(**{head: labels[rows] for head, labels in targets.items()})
    return DataLoader(StackDataset(images, labels), batch_size, shuffle)


model = TwoHeads()
trainer = L.Trainer(max_epochs=8, default_root_dir="runs/multi_task")
train = loader(x[:1500], slice(1500), 50, True)
val = [loader(x[1500:], slice(1500, None), 99), loader(noisy, slice(1500, None), 99)]
trainer.fit(model, train, val)
scores = trainer.validate(model, val)[1]
print(f"accuracy on noisy images: {scores['val_noisy_digit_accuracy']:.3f}")
