"""The classes and functions of torch, torchmetrics and stoker that a YAML may name.

A rule lists the public names of one module: subclasses of some base classes that are defined in
given places, and single names. Everything listed only computes, or writes into the run folder; a
stream also caches its index next to the data that it reads.
Names are looked up in a table, never by walking through attributes, so that no name leads through
one module into another.
"""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from stoker.config.names import UnknownNameError
from stoker.core.errors import did_you_mean

PACKAGES = ("torch", "torchmetrics", "stoker")
"""Packages whose names are on the list or refused; no module of a user can take their place."""

GUARDED = ("path", "folder", "trace", "uri", "cache")
"""Arguments of Stoker's classes that choose where to write; a YAML needs --allow to set them."""


class Rule(NamedTuple):
    """The names of one module that are on the list."""

    module: str
    bases: tuple[str, ...] = ()
    defined_in: tuple[str, ...] = ()
    names: str = ""


_ACTIVATIONS = """celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_softmax
    logsigmoid mish prelu relu relu6 rrelu selu sigmoid silu softmax softmin softplus softshrink
    softsign tanh tanhshrink"""
_LOSSES = """binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss
    cosine_similarity cross_entropy ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss
    kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss nll_loss pairwise_distance poisson_nll_loss smooth_l1_loss
    soft_margin_loss triplet_margin_loss"""
_METRIC_PACKAGES = """aggregation classification clustering nominal regression retrieval
    segmentation shape wrappers"""
_METRIC_MODULES = """collections audio.sdr audio.snr detection.panoptic_qualities image.d_lambda
    image.d_s image.ergas image.psnr image.psnrb image.qnr image.rase image.rmse_sw image.sam
    image.scc image.ssim image.tv image.uqi image.vif text.bleu text.cer text.chrf text.edit
    text.eed text.mer text.perplexity text.squad text.ter text.wer text.wil text.wip"""
"""Of the other packages of torchmetrics, modules that load no pretrained model and no file."""

_METRICS = tuple(f"torchmetrics.{one}" for one in f"{_METRIC_PACKAGES} {_METRIC_MODULES}".split())
_MODULE = ("torch.nn.Module",)
_DATA = ("torch.utils.data.Dataset", "torch.utils.data.Sampler", "torch.utils.data.DataLoader")
_DATA_FILES = tuple(
    f"torch.utils.data.{one}" for one in ("dataset", "sampler", "dataloader", "distributed")
)

RULES = (
    Rule(
        "torch",
        names="""arange empty eye full linspace logspace ones rand randint randn randperm tensor
        zeros relu sigmoid softmax tanh Generator device""",
    ),
    Rule("torch.nn", _MODULE, ("torch.nn.modules",), "Parameter Buffer"),
    Rule("torch.nn.functional", names=f"{_ACTIVATIONS} {_LOSSES}"),
    Rule(
        "torch.nn.init",
        names="""constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_
        sparse_ trunc_normal_ uniform_ xavier_normal_ xavier_uniform_ zeros_""",
    ),
    Rule("torch.optim", ("torch.optim.Optimizer",), ("torch.optim",)),
    Rule(
        "torch.optim.lr_scheduler",
        ("torch.optim.lr_scheduler.LRScheduler",),
        ("torch.optim.lr_scheduler",),
    ),
    Rule("torch.utils.data", _DATA, _DATA_FILES, "default_collate default_convert random_split"),
    Rule("torchmetrics", _MODULE, _METRICS),
    *(
        Rule(f"torchmetrics.{package}", _MODULE, _METRICS)
        for package in f"{_METRIC_PACKAGES} audio detection image text".split()
    ),
    Rule("stoker", names="Every Step"),
    Rule("stoker.hooks", ("stoker.hooks.Hook",), ("stoker.hooks",), "Budget"),
    Rule("stoker.events", ("stoker.events.Writer",), ("stoker.events.writers",)),
    Rule("stoker.metrics", names="Accuracy Mean"),
    Rule("stoker.data", names="SeededDataset by_sample loader mix pipeline stream unsharded"),
    Rule("stoker.nn", _MODULE, ("stoker.nn",), "parameter_groups"),
    Rule("stoker.nn.lr", names="constant cosine linear polynomial"),
)


def listed(name: str) -> Any:
    """Return the object with a dotted name if it is on the list.

    Raises:
        UnknownNameError: its module has no such name.
        LookupError: it is not on the list.
    """
    table = _table(name.partition(".")[0])
    if name in table:
        return table[name]
    module, _, last = name.rpartition(".")
    if module in {rule.module for rule in RULES} and not hasattr(import_module(module), last):
        names = [one.rpartition(".")[2] for one in table if one.rpartition(".")[0] == module]
        raise UnknownNameError(f"'{module}' has no '{last}'{did_you_mean(last, names)}")
    raise LookupError(name)


def is_listed(thing: Any) -> bool:
    """Return whether an object is on the list, by whatever name it was found."""
    package = str(getattr(thing, "__module__", None) or type(thing).__module__).partition(".")[0]
    if package not in PACKAGES:
        return False
    return any(thing is one for one in _table(package).values())


@cache
def _table(package: str) -> dict[str, Any]:
    """Return the listed objects of a package by public name, and by where they are defined."""
    table: dict[str, Any] = {}
    for rule in RULES:
        if rule.module.partition(".")[0] == package:
            table |= _of_rule(rule)
    if package == "torch":
        import torch

        constants = (torch.dtype, torch.memory_format, torch.layout)
        table |= {f"torch.{n}": one for n, one in vars(torch).items() if isinstance(one, constants)}
    defined = {f"{one.__module__}.{one.__qualname__}": one for one in table.values() if _named(one)}
    return defined | table


def _of_rule(rule: Rule) -> dict[str, Any]:
    module = import_module(rule.module)
    bases = tuple(_attribute(base) for base in rule.bases)
    found = {name: getattr(module, name) for name in rule.names.split() if hasattr(module, name)}
    for name, one in vars(module).items():
        if isinstance(one, type) and issubclass(one, bases) and _is_below(one, rule.defined_in):
            found[name] = one
    return {f"{rule.module}.{name}": one for name, one in found.items() if name[0] != "_"}


def _attribute(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def _is_below(thing: type, places: tuple[str, ...]) -> bool:
    return any(f"{thing.__module__}.".startswith(f"{place}.") for place in places)


def _named(thing: Any) -> bool:
    return bool(getattr(thing, "__module__", None) and getattr(thing, "__qualname__", None))
