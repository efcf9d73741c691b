"""The job of examples/cookbook/lightning_port.py as it was with Lightning."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
train = DataLoader(TensorDataset(x[:1500], y[:1500]), 50, shuffle=True)
val = DataLoader(TensorDataset(x[1500:], y[1500:]), 99)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        other, share = torch.randperm(len(x)), torch.rand(())
        outputs = self(share * x + (1 - share) * x[other])
        loss = share * nn.functional.cross_entropy(outputs, y)
        loss = loss + (1 - share) * nn.functional.cross_entropy(outputs, y[other])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        outputs = self(x)
        self.accuracy(outputs, y)
        self.log("val_loss", nn.functional.cross_entropy(outputs, y))
        self.log("val_accuracy", self.accuracy)

    def predict_step(self, batch, index):
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


L.seed_everything(0)
model = Digits()
average, best = EMAWeightAveraging(decay=0.9), ModelCheckpoint(monitor="val_accuracy", mode="max")
trainer = L.Trainer(
    max_epochs=8,
    gradient_clip_val=1.0,
    callbacks=[average, best],
    default_root_dir="runs/port",
)
trainer.fit(model, train, val)
guesses = torch.cat(trainer.predict(model, val))
print(f"accuracy: {(guesses == y[1500:]).float().mean():.3f}")
