"""A command that compiles nothing does not import torch's compiler, and imports change no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

METHODS = """
import inspect, json, sys
import torch


def members(thing):
    return {name: id(value) for name, value in vars(thing).items()}


def methods():
    found = {}
    kinds = (torch.optim.Optimizer, *torch.optim.Optimizer.__subclasses__())
    for kind in (kind for kind in kinds if kind.__module__.startswith("torch.")):
        for name, value in vars(kind).items():
            found[f"{kind.__name__}.{name}"] = id(value)
            while inspect.isfunction(value):
                found[f"{kind.__name__}.{name}.{value.__code__.co_name}"] = members(value)
                value = getattr(value, "__wrapped__", None)
    return found


def imported():
    return "torch._dynamo" in sys.modules
"""

IMPORTS = """
modules = [sys.modules[f"torch.optim.{name}"] for name in ("optimizer", "lr_scheduler")]
before = methods(), *map(members, modules)
import stoker, stoker.engine, stoker.parallel, stoker.trainer, stoker.build, stoker.cli
stoker.Engine, stoker.Trainer
after = methods(), *map(members, modules)
print(json.dumps([before == after, len(before[0]), imported()]))
"""

COMMAND = """
from torch import nn
from stoker.cli import main

before = methods()
found = {"code": main(["train", sys.argv[1], "run.max_steps=2"]), "command": imported()}
hooked = [name for name, was in before.items() if methods()[name] != was]
found["changed"] = [name for name in hooked if ".step" not in name]  # torch wraps steps itself

model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model, backend="eager")
compiled(torch.ones(2, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
marks = [getattr(torch.optim.Optimizer, name).__wrapped__.__dynamo_disable for name in names]
found["marked"] = [mark.__module__ for mark in marks]
print(json.dumps(found))
"""

COMPILED_WITHIN = """
from torch import nn
from stoker.engine.defer_dynamo import defer_dynamo

with defer_dynamo():
    optimizer = torch.optim.AdamW(nn.Linear(4, 4).parameters())
    found = [imported()]
    import torch._dynamo
    optimizer.zero_grad()
    mark = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable
    found.append(mark.__module__)
found.append(torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable is mark)
found.append(hasattr(torch.optim.Optimizer.state_dict.__wrapped__, "__dynamo_disable"))
print(json.dumps(found))
"""


def run(script, *arguments, folder=None):
    command = [sys.executable, "-c", METHODS + script, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_stoker_changes_nothing_in_torchs_optimizers():
    same, count, imported = run(IMPORTS)
    assert same
    assert count > 100
    assert not imported


def test_a_command_that_does_not_compile_leaves_the_compiler_out(tmp_path):
    found = run(COMMAND, str(EXAMPLES / "digits.yaml"), folder=tmp_path)
    assert (found["code"], found["command"], found["changed"]) == (0, False, [])
    assert found["marked"] == ["torch._dynamo.eval_frame"] * 4  # by torch itself, from then on


def test_what_imports_the_compiler_within_gets_torchs_own_marks():
    assert run(COMPILED_WITHIN) == [False, "torch._dynamo.eval_frame", True, False]
