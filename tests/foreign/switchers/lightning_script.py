"""The script of docs/from-lightning.md, with Lightning; needs its own environment."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

x, y = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
train_set, val_set = torch.utils.data.random_split(
    digits, [1500, 297], torch.Generator().manual_seed(0)
)
train_loader = DataLoader(train_set, 30)
val_loader = DataLoader(val_set, 99)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        inputs, targets = batch
        outputs = self(inputs)
        self.accuracy(outputs, targets)
        self.log("val_loss", nn.functional.cross_entropy(outputs, targets), batch_size=len(targets))
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


L.seed_everything(0)
module = Digits()
trainer = L.Trainer(
    max_epochs=5,
    accelerator="cpu",
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    callbacks=[EarlyStopping("val_loss", patience=3), ModelCheckpoint(monitor="val_loss")],
    default_root_dir="lightning_runs",
    enable_progress_bar=False,
)
trainer.fit(module, train_loader, val_loader)
scores = trainer.validate(module, val_loader)

model, val_loss, val_accuracy = module.net, scores[0]["val_loss"], scores[0]["val_accuracy"]
