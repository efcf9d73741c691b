"""Every public callable of torch, torchmetrics and stoker is on the list, or refused."""

import importlib
import inspect
import os
import pkgutil
import re
import types
from functools import cache

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

import stoker
from stoker import Hook, events
from stoker.config.allowed import GUARDED, RULES, _table
from stoker.config.check import parameters
from stoker.config.names import UnknownNameError
from stoker.config.trust import Trust

KINDS = (
    *(torch.nn.Module, torch.optim.Optimizer, LRScheduler, Dataset, Sampler, DataLoader),
    *(Hook, events.Writer),
)
FUNCTIONS_AND_VALUES = {"torch", "torch.nn.functional", "torch.nn.init", "torch._C._nn"}
OTHERS = {
    "torch._C._nn.log_sigmoid",  # torch.nn.functional.logsigmoid
    *("torch.nn.Parameter", "torch.nn.Buffer", "torch.nn.parameter.Parameter"),
    *("torch.nn.parameter.Buffer", "torch.utils.data.default_collate"),
    *("torch.utils.data.default_convert", "torch.utils.data.random_split"),
    *("torch.utils.data._utils.collate.default_collate", "torch.utils.data.dataset.random_split"),
    *("torch.utils.data._utils.collate.default_convert", "torch._C.Generator"),
    *("stoker.Every", "stoker.core.every.Every", "stoker.Step", "stoker.step.Step"),
    *("stoker.hooks.Budget", "stoker.hooks.cost_report.Budget", "stoker.metrics.Accuracy"),
    *("stoker.metrics.accuracy.Accuracy", "stoker.metrics.Mean", "stoker.metrics.metric.Mean"),
    *("stoker.data.SeededDataset", "stoker.data.seeded.SeededDataset", "stoker.data.by_sample"),
    *("stoker.data.in_memory.by_sample", "stoker.data.loader", "stoker.data.in_memory.loader"),
    *("stoker.data.unsharded", "stoker.data.sharding.unsharded", "stoker.nn.parameter_groups"),
    *("stoker.nn.parameters.parameter_groups",),
    # Streams read data, and write an index next to it.
    *("stoker.data.mix", "stoker.data.pipeline", "stoker.data.stream"),
    *("stoker.data.streams.stream.mix", "stoker.data.streams.stream.stream"),
    "stoker.data.streams.pipeline.pipeline",
    *(f"stoker.nn.lr.{name}" for name in ("constant", "cosine", "linear", "polynomial")),
}


@cache
def listed():
    """All names on the list; importing torchmetrics for it takes seconds."""
    packages = ("torch", "torchmetrics", "stoker")
    return {name: one for package in packages for name, one in _table(package).items()}


def only_computes(name, thing):
    if isinstance(thing, torch.dtype | torch.memory_format | torch.layout) or name in OTHERS:
        return True
    if isinstance(thing, type) and issubclass(thing, KINDS):
        return True
    module, _, last = name.replace("._VariableFunctionsClass.", ".").rpartition(".")
    words = {word for rule in RULES for word in rule.names.split()}
    return module in FUNCTIONS_AND_VALUES and last in words


def test_what_is_listed_is_of_a_kind_that_only_computes():
    assert [name for name, thing in listed().items() if not only_computes(name, thing)] == []


WRITES = re.compile(
    r"(?<![.\w])(open|eval|exec)\(|torch\.(load|save|hub)\b|download|urlopen|requests\.|subprocess"
    r"|import_module|\.from_pretrained\(|pickle|os\.(system|remove)|from_file"
)


def code_of(thing):
    """The code of a class and those it inherits from, apart from torch's and torchmetrics' base."""
    import torchmetrics

    for one in thing.__mro__ if isinstance(thing, type) else [thing]:
        module = str(getattr(one, "__module__", ""))
        own = module.startswith(("torch.nn.modules", "torchmetrics.", "torch.utils.data.dataset"))
        if own and one not in (torch.nn.Module, torchmetrics.Metric):
            yield re.sub(r'r?"""[\s\S]*?"""|#.*', "", inspect.getsource(one))


@pytest.mark.slow
def test_no_listed_class_of_a_library_reads_writes_or_loads():
    libraries = {one for name, one in listed().items() if not name.startswith("stoker.")}
    found = {one: [WRITES.search(code) for code in code_of(one)] for one in libraries}
    assert {one: match for one, match in found.items() if any(match)} == {}


def test_every_listed_argument_that_is_a_path_is_guarded():
    paths = []
    for name, thing in listed().items():
        for key, one in (parameters(thing) or {}).items() if callable(thing) else ():
            words = r"\b(file|filename|path|folder|dir|root|url|uri)\b"
            if re.search(words, key.replace("_", " ")) or "Path" in str(one.annotation):
                paths.append((name, key))
    assert paths
    unguarded = [one for one in paths if one[1] not in GUARDED or not one[0].startswith("stoker.")]
    assert unguarded == []


MORE = """torch.package torch.hub torch.onnx torch.export torch.fx torch.jit torch.distributed
    torch.multiprocessing torch.profiler torch.utils.data torch.utils.benchmark
    torch.utils.bottleneck torch.utils.checkpoint torch.utils.collect_env torch.utils.cpp_extension
    torch.utils.dlpack torch.utils.model_zoo torch.utils.tensorboard torch.ao torch.nn.utils
    torch.nn.utils.parametrize torch.nn.parallel torch.optim.swa_utils"""


def modules():
    """The modules to walk: those of torch that are imported, all of stoker and torchmetrics."""
    import torchmetrics

    names = {"torch", "torchmetrics", "stoker", *MORE.split()}
    packages = [torchmetrics, stoker, *([torch] if "STOKER_FUZZ" in os.environ else [])]
    for package in packages:
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.", lambda _: None)
        names |= {one.name for one in found if not re.search(r"\._|__main__|\.testing", one.name)}
    for name in sorted(names):
        try:
            yield name, importlib.import_module(name)
        except (ImportError, RuntimeError, OSError, AttributeError, ValueError, TypeError):
            continue  # needs a package or a device that is not here


def callables():
    """Every public name that leads to a callable, also through a class or a foreign module."""
    for name, module in modules():
        for key, one in list(vars(module).items()):
            if key.startswith("_"):
                continue
            inner = vars(one) if isinstance(one, type | types.ModuleType) else {}
            if callable(one):
                yield f"{name}.{key}"
            for below in list(inner):
                if not below.startswith("_") and callable(getattr(one, below, None)):
                    yield f"{name}.{key}.{below}"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
def test_every_public_callable_is_listed_or_refused(tmp_path):
    trust = Trust([tmp_path])
    names = list(dict.fromkeys(callables()))
    with trust.importable():
        found = {name: one for name in names if (one := found_by(trust, name)) is not None}
    assert all(thing is listed()[name] for name, thing in found.items())
    assert not [name for name in found if not name.split(".")[-2].islower()]  # through a class
    assert len(found) > 300
    assert len(names) > 20_000


def found_by(trust, name):
    try:
        return trust.find(name)
    except UnknownNameError:
        return None
