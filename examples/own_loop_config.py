"""The config of own_loop.py: the trainer runs the loop, and the weights are the same.

stoker train examples/own_loop_config.py
stoker train examples/own_loop_config.py run.precision=bf16
"""

from own_loop import digits
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

from stoker import hooks
from stoker.config import L
from stoker.nn import lr

width = 128  # a plain value is not part of the config

model = L(nn.Sequential)(L(nn.Linear)(64, width), L(nn.ReLU)(), L(nn.Linear)(width, 10))
optimizer = L(AdamW)(lr=3e-3)
criterion = L(nn.CrossEntropyLoss)()
lr_scheduler = L(lr.cosine)()
train_loader = L(DataLoader)(dataset=L(digits)("train"), batch_size=32, shuffle=True)
val_loader = L(DataLoader)(dataset=L(digits)("held_out"), batch_size=360)
hooks = [L(hooks.Metrics)("accuracy")]
run = {"name": "own_loop", "epochs": 20, "clip_norm": 1.0}
