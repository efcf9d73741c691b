"""A training that compiles nothing does without torch's compiler; one that compiles has it."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from stoker import Engine, Trainer, hooks
from stoker.cli import main


def imported():
    return "torch._dynamo" in sys.modules


found = {"before": imported()}
x = torch.randn(32, 4)
data = TensorDataset(x, x.argmax(1))
model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(optimizer.state_dict())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler, clip_norm=1.0)
use = [*hooks.default(), hooks.Metrics("accuracy"), hooks.EMA()]
trainer = Trainer(engine, use, run_dir="run")
trainer.fit(DataLoader(data, 8, shuffle=True), DataLoader(data, 8), epochs=2)
trainer.predict(x)
found["trainer"] = imported()
found["code"] = main(["train", sys.argv[1], "run.max_steps=2"])
found["command"] = imported()

compiled = torch.compile(model, backend="eager")
optimizer.zero_grad()
compiled(x).sum().backward()
optimizer.step()
methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
marks = [getattr(torch.optim.Optimizer, name).__wrapped__.__dynamo_disable for name in methods]
found["marked"] = [mark.__module__ for mark in marks]
print(json.dumps(found))
"""


def test_only_what_compiles_imports_the_compiler(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(EXAMPLES / "digits.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["before"], found["trainer"], found["code"], found["command"]) == (
        False,
        False,
        0,
        False,
    )
    assert found["marked"] == ["torch._dynamo.eval_frame"] * 4  # by torch itself, from then on
