"""The script of docs/from-ignite.md, with Ignite; needs its own environment."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
train_set, val_set = torch.utils.data.random_split(
    digits, [1500, 297], torch.Generator().manual_seed(0)
)
train_loader = DataLoader(train_set, 32, shuffle=True, generator=torch.Generator().manual_seed(1))
val_loader = DataLoader(val_set, 99)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

trainer = create_supervised_trainer(model, optimizer, criterion)
evaluator = create_supervised_evaluator(
    model, metrics={"accuracy": Accuracy(), "loss": Loss(criterion)}
)


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val_loader)


def score(engine):
    return -engine.state.metrics["loss"]


evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
saver = Checkpoint(to_save, DiskSaver("ignite_runs", require_empty=False), n_saved=3)
trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)

trainer.run(train_loader, max_epochs=5)

val_loss, val_accuracy = evaluator.state.metrics["loss"], evaluator.state.metrics["accuracy"]
