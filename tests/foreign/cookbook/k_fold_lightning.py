"""The job of examples/cookbook/k_fold.py with Lightning."""

import lightning as L
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

x, y = load_wine(return_X_y=True)
x, y = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)


class Wine(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
        self.accuracy = MulticlassAccuracy(3, average="micro")

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
        return torch.optim.Adam(self.parameters(), 0.01)


accuracies = []
for fold, (train, val) in enumerate(KFold(5, shuffle=True, random_state=0).split(x)):
    L.seed_everything(fold)
    model = Wine()
    trainer = L.Trainer(max_epochs=10, default_root_dir=f"runs/k_fold/{fold}")
    val_loader = DataLoader(TensorDataset(x[val], y[val]), 64)
    trainer.fit(model, DataLoader(TensorDataset(x[train], y[train]), 16, shuffle=True), val_loader)
    accuracies.append(trainer.validate(model, val_loader)[0]["val_accuracy"])
spread, mean = torch.std_mean(torch.tensor(accuracies))
print(f"accuracy: {mean:.3f} ± {spread:.3f}")
