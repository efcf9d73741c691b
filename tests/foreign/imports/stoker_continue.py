"""Import the checkpoint of another trainer, continue its training, and print the last weights."""

import sys

import torch
from common import BATCH, EPOCHS, EPSILON, KEPT, finish, loader, make_optimizer, network
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.cli import main
from stoker.nn import lr, parameter_groups


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, pixels):
        return self.net(pixels)


trainer_name, kind, checkpoint = sys.argv[1:]
is_hf = trainer_name == "huggingface"
model = Net() if is_hf else network()
nn.init.zeros_(next(model.parameters()))  # what is trained comes from the checkpoint
optimizer = make_optimizer(kind, model)
if is_hf and kind == "adamw":
    groups = parameter_groups(model, norms={"weight_decay": 0.0}, biases={"weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.01, fused=True)
if trainer_name == "keras" and kind == "adamw":
    optimizer.param_groups[0]["eps"] = EPSILON
batches = loader()
schedulers = {
    "huggingface": lambda: lr.linear(optimizer, EPOCHS * len(batches)),
    "keras": lambda: None,
}
step_lr = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
scheduler = schedulers.get(trainer_name, step_lr)()

known = ["--epoch", str(KEPT)] if trainer_name == "keras" else []
assert main(["ckpt", "import", checkpoint, "-o", "imported", *known]) == 0
engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler)
trainer = Trainer(engine, [hooks.Checkpoint("1ep")], run_dir="run")
trainer.fit(batches, epochs=EPOCHS, resume="imported")
assert trainer.run.step == EPOCHS * 1500 // BATCH
finish(model, "imported")
