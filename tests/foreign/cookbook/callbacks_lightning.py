"""The job of examples/cookbook/callbacks.py with Lightning."""

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
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
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        outputs = self(batch[0])
        self.accuracy(outputs, batch[1])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", self.accuracy)

    def on_before_optimizer_step(self, optimizer):
        self.log("grad_norm", grad_norm(self, 2)["grad_2.0_norm_total"])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Unfreeze(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.body)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(module.body, optimizer, initial_denom_lr=1.0)


L.seed_everything(0)
model = Digits()
best = ModelCheckpoint(monitor="val_loss")
stop, rates = EarlyStopping("val_loss", patience=3), LearningRateMonitor()
trainer = L.Trainer(
    max_epochs=30,
    callbacks=[stop, best, rates, Unfreeze()],
    logger=CSVLogger("runs/callbacks"),
)
trainer.fit(model, train, val)
scores = trainer.validate(model, val, ckpt_path="best", weights_only=True)
print(f"accuracy: {scores[0]['val_accuracy']:.3f}")
