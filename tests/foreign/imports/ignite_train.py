"""Train with Ignite, keep the checkpoint of the second epoch, and print the last weights."""

import sys
from pathlib import Path

import torch
from common import EPOCHS, KEPT, finish, loader, make_optimizer, network
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn

kind, folder = sys.argv[1:]
model = network()
optimizer = make_optimizer(kind, model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: scheduler.step())
parts = {"model": model, "optimizer": optimizer, "trainer": trainer, "lr_scheduler": scheduler}
saver = Checkpoint(parts, DiskSaver(folder, require_empty=False), n_saved=None)
trainer.add_event_handler(Events.EPOCH_COMPLETED(once=KEPT), saver)
trainer.run(loader(), max_epochs=EPOCHS)
(kept,) = Path(folder).glob("*.pt")
finish(model, kept)
