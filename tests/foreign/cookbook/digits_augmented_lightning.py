"""The job of examples/cookbook/digits_augmented.py with Lightning."""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)


class Shifted(Dataset):
    """Move each image by up to one pixel, another way each time it is read."""

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        top, left = torch.randint(0, 3, (2,)).tolist()
        return nn.functional.pad(x[index], [1] * 4)[:, top : top + 8, left : left + 8], y[index]


class Digits(L.LightningModule):
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
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        outputs = self.net(batch[0])
        self.accuracy(outputs, batch[1])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


L.seed_everything(0, workers=True)
model = Digits()
train = DataLoader(Shifted(), 50, shuffle=True, num_workers=2, persistent_workers=True)
val = DataLoader(list(zip(x[1500:], y[1500:], strict=True)), 99)
trainer = L.Trainer(max_epochs=6, accelerator="cpu", default_root_dir="runs/augmented")
trainer.fit(model, train, val)
print(f"accuracy: {trainer.validate(model, val)[0]['val_accuracy']:.3f}")
