"""Train with Lightning, keep the checkpoint of the second epoch, and print the last weights."""

import sys

import lightning as L
import torch
from common import EPOCHS, KEPT, finish, loader, make_optimizer, network
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn


class Options:
    depth = 2


class Digits(L.LightningModule):
    def __init__(self, kind, options):
        super().__init__()
        self.save_hyperparameters()
        self.net = network()

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = make_optimizer(self.hparams["kind"], self.net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


kind, folder = sys.argv[1:]
saver = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
# Many files have hyper-parameters that are objects of the script.
module = Digits(kind, Options())
trainer = L.Trainer(
    max_epochs=EPOCHS, accelerator="cpu", logger=False, callbacks=[saver],
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, loader())
finish(module.net, f"{folder}/epoch={KEPT - 1}.ckpt")
