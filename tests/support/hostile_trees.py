"""Build random hostile YAML trees in this process, and report what they reached.

    python hostile_trees.py FOLDER COUNT [SEED]

Prints the number of configs that were refused and that were built. Exits with 1 at the first
exception that is not a `ConfigError`, and at the first file, process or connection that a config
reached.
"""

import os
import random
import sys
import traceback
import warnings
from pathlib import Path

import torch
import yaml

from stoker.build import build_job
from stoker.config import ConfigError, load
from stoker.config.allowed import RULES, _table
from stoker.config.check import parameters
from stoker.config.other_trainers import KEYS

MARK = "hostile_mark"
SHADOWS = ("tensorboard", "wandb", "mlflow", "random", "json", "secrets", "antlr4", "rich")
REACHED = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "pty.spawn"),
    *("os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"),
    *("shutil.rmtree", "shutil.move", "shutil.copyfile", "pickle.find_class", "os.putenv"),
}
HOSTILE_NAMES = """os.system builtins.eval builtins.exec builtins.open subprocess.Popen
    torch.load torch.save torch.from_file torch.add torch.hub.load torch.jit.load torch.compile
    torch.nn.functional.torch.sys.path.insert torch.os.system torch.sys.modules.clear
    torch.nn.Linear.forward torch.nn.Module.__init__.__globals__ torch.utils.cpp_extension.load
    torch.UntypedStorage.from_file torch.ops.load_library stoker.storage.write_atomic
    stoker.load_weights stoker.config.load stoker.cli.main stoker.metrics.get functools.partial
    torchmetrics.text.BERTScore numpy.load pickle.loads importlib.import_module x . .. a.b.c
    torch torch. .torch torch..nn stoker torch.nn torch.optim"""
HOSTILE = HOSTILE_NAMES.split()
PATHS = ["../up", "/hostile", "a/../../b", "json.py", "~/x", "file:///hostile", "\0", "a\nb", ""]
TEXTS = ["x", "auto", "cpu", "mean", "accuracy", "val/loss", "1ep", "Adam", "BERTScore", "${run}"]
TEXTS += ["${model}", "${oc.env:HOME}", "${.x}", "${oc.decode:'[1]'}", "\\${x}", "${", f"{MARK}()"]


VALID = """
model: {_target_: torch.nn.Sequential, _args_: [{_target_: torch.nn.Linear, _args_: [4, 3]}]}
optimizer: {type: SGD, lr: 0.1}
criterion: CrossEntropyLoss
lr_scheduler: {type: StepLR, step_size: 1}
train_loader:
  _target_: torch.utils.data.DataLoader
  dataset:
    _target_: torch.utils.data.TensorDataset
    _args_: [{_target_: torch.randn, _args_: [8, 4]}, {_target_: torch.ones, _args_: [8]}]
  batch_size: 4
hooks: [{type: Metrics, accuracy: accuracy}, {type: EarlyStopping, patience: 2}]
run: {max_steps: 1, dir: runs, name: x, checkpoint: {every: 1ep}}
"""


class Trees:
    """Random trees: names on the list and others, arguments that fit and others."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        packages = sorted({rule.module.partition(".")[0] for rule in RULES})
        self.listed = [(name, one) for p in packages for name, one in _table(p).items()]
        self.public = [f"torch.{name}" for name in dir(torch)]
        self.public += [f"torch.nn.functional.{name}" for name in dir(torch.nn.functional)]

    def tree(self):
        if self.random.random() < 0.7:
            tree = yaml.safe_load(VALID)
            for _ in range(self.random.choice([1, 1, 2, 4])):
                self.change(tree)
            return tree
        keys = self.random.sample([*KEYS, "x", "defaults", "_path_", "_target_"], k=5)
        tree = {key: self.value(3) for key in keys}
        if self.random.random() < 0.7:
            tree |= {"model": self.call(2), "optimizer": "SGD", "train_loader": self.call(2)}
            tree["run"] = {"max_steps": 1, **self.run()}
        if self.random.random() < 0.3:
            tree["hooks"] = [self.call(2) for _ in range(self.random.randint(0, 3))]
        return tree

    def change(self, tree):
        """Replace, add or remove one value somewhere in a tree."""
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = self.random.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and self.random.random() < 0.8:
            self.change(tree[key])
        elif key in ("_target_", "_object_", "type"):
            tree[key] = self.random.choice([*HOSTILE, *(name for name, _ in self.listed)])
        elif self.random.random() < 0.2:
            del tree[key]
        elif isinstance(tree, list) and self.random.random() < 0.5:
            tree.append(self.call(2))
        else:
            tree[key] = self.value(2)

    def run(self):
        fields = ("name", "dir", "resume", "device", "checkpoint", "parallel", "compile", "seed")
        return {name: self.value(1) for name in fields if self.random.random() < 0.1}

    def call(self, depth):
        chance = self.random.random()
        name, thing = self.random.choice(self.listed)
        if chance < 0.25:
            name = self.random.choice(HOSTILE if chance < 0.15 else self.public)
        if chance > 0.9:
            return {"type": name.rpartition(".")[2], **self.arguments(thing, depth)}
        return {"_target_": name, **self.arguments(thing, depth)}

    def arguments(self, thing, depth):
        taken = list(parameters(thing) or {}) if callable(thing) else []
        odd = ["out", "path", "folder", "uri", "trace", "_partial_", 3, "collate_fn", "__class__"]
        found = {key: self.value(depth - 1) for key in taken if self.random.random() < 0.6}
        if self.random.random() < 0.3:
            found[self.random.choice(odd)] = self.value(depth - 1)
        if self.random.random() < 0.3:
            found["_args_"] = self.value(depth - 1)
        return found

    def value(self, depth):
        pick = self.random.random()
        if depth > 0 and pick < 0.25:
            return self.call(depth)
        if depth > 0 and pick < 0.4:
            return [self.value(depth - 1) for _ in range(self.random.randint(0, 3))]
        if depth > 0 and pick < 0.5:
            return {self.random.choice(TEXTS): self.value(depth - 1)}
        if pick < 0.55:
            name = self.random.choice(self.listed)[0]
            return {"_object_": name if pick < 0.52 else self.random.choice(HOSTILE)}
        kinds = [None, True, False, 0, 1, 2, 4, -1, 0.5, float("nan"), 2**31]
        return self.random.choice([*kinds, *kinds, *PATHS, *TEXTS, {"_tuple_": [1, 2]}])


def is_ours(path):
    """Return whether a path may be read: the folder, installed code, and what the system shows."""
    folders = (str(FOLDER), sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/usr", "/lib")
    code = [str(Path(one).resolve()) for one in sys.path]
    system = ("/etc/ssl", "/etc/localtime", "/etc/mime.types", "/etc/ld.so.cache", "/tmp/torch")
    return os.path.realpath(path).startswith((*folders, *code, *system))


def watch(event, args):
    """End the process at an event that no config may cause."""
    if event == "open" and isinstance(args[0], str | bytes) and WATCHING:
        path, flags = os.fsdecode(args[0]), args[2] or 0
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path != os.devnull
        if not is_ours(path) or (writes and not path.endswith(".pyc")):
            fail(f"{event} {args}")
        return
    own = event == "exec" and getattr(args[0], "co_filename", "").startswith(str(FOLDER))
    marked = event == "compile" and MARK in str(args[0])
    if own or (WATCHING and (marked or event in REACHED)):
        fail(f"{event} {args}")


def fail(why):
    """Print the config and the reason, and exit."""
    WATCHING.clear()
    traceback.print_stack()
    print((FOLDER / "cfg.yaml").read_text(), why, sep="\n", flush=True)
    os._exit(1)


FOLDER = Path(sys.argv[1]).resolve()
WATCHING: list[bool] = []


def main():
    """Build the trees."""
    warnings.simplefilter("ignore")
    trees = Trees(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    os.chdir(FOLDER)
    sys.path.insert(0, str(FOLDER))  # as python -m does
    for name in SHADOWS:
        (FOLDER / f"{name}.py").write_text("raise SystemExit('imported')\n")
    sys.addaudithook(watch)
    refused = built = 0
    for _ in range(int(sys.argv[2])):
        (FOLDER / "cfg.yaml").write_text(yaml.safe_dump(trees.tree(), sort_keys=False))
        before = set(os.listdir(FOLDER))
        WATCHING.append(True)
        try:
            build_job(load("cfg.yaml"), training=trees.random.random() < 0.8)
            built += 1
        except ConfigError:
            refused += 1
        except BaseException:
            traceback.print_exc()
            fail("a raw exception")
        WATCHING.clear()
        if set(os.listdir(FOLDER)) - before:
            fail(f"new files: {set(os.listdir(FOLDER)) - before}")
    print(refused, built)


if __name__ == "__main__":
    main()
