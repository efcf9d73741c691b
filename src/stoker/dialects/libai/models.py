"""Models, graphs, tokenizers, optimizers and groups of parameters that a config describes."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stoker.dialects.libai.config import accepts, instantiate, try_get_key
from stoker.nn.parameters import merged_groups, parameter_groups, split_groups

BACKEND = "inductor"
"""The default backend of `torch.compile`."""


class GraphBase:
    """A model to compile with `torch.compile`, and its optimizer.

    A subclass may override `build`, which computes the losses of a batch, calls ``backward`` while
    ``is_train`` is set, and returns the losses; the update follows it.

    ``backend`` is that of `torch.compile`. Other options of LiBai's graphs, such as ``fp16``, are
    taken from the config by the trainer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        *,
        is_train: bool = True,
        backend: str = BACKEND,
        **options: Any,
    ) -> None:
        self.model, self.optimizer, self.lr_scheduler = model, optimizer, lr_scheduler
        self.is_train, self.backend = is_train, backend
        self.options = options

    @property
    def is_stock(self) -> bool:
        """Whether `build` is not overridden, so that the trainer need not call it."""
        return type(self).build is GraphBase.build

    def build(self, **kwargs: Any) -> Any:
        """Return the outputs of the model, after ``backward`` of its losses if it is trained."""
        found = self.model(**kwargs)
        if self.is_train:
            sum(value for name, value in found.items() if "loss" in name).backward()
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `build` returns."""
        return self.build(*args, **kwargs)


def build_model(cfg: Any) -> Any:
    """Build the model that a config describes."""
    return instantiate(cfg)


def build_graph(
    cfg: Any, model: Any, optimizer: Any = None, lr_scheduler: Any = None, is_train: bool = False
) -> Any:
    """Build ``graph.train_graph`` or ``graph.eval_graph`` of a config for a model."""
    node = cfg["graph"]["train_graph" if is_train else "eval_graph"]
    given: dict[str, Any] = {"model": model}
    if accepts(node, "backend"):
        given["backend"] = try_get_key(cfg, "graph.backend", default=BACKEND)
    if not is_train:
        return instantiate(node, **given)
    if optimizer is None or lr_scheduler is None:
        raise TypeError("a graph that trains needs an optimizer and an lr_scheduler")
    return instantiate(node, optimizer=optimizer, lr_scheduler=lr_scheduler, **given)


def build_tokenizer(cfg: Any) -> Any:
    """Build ``cfg.tokenizer``."""
    return instantiate(cfg["tokenizer"])


def build_optimizer(cfg: Any, model: nn.Module) -> Any:
    """Build the optimizer that a config describes, for the parameters of a model.

    ``params`` describes groups of parameters, as a call that takes the model; without it, all
    parameters are one group.
    """
    cfg = cfg.copy()
    groups = cfg.pop("params", cfg.pop("parameters", None))  # older versions of OneFlow
    corrects = accepts(cfg, "do_bias_correction") or cfg.pop("do_bias_correction", True)
    if not corrects:
        raise ValueError(
            "optim.do_bias_correction is False, and torch's optimizers always correct the bias: "
            "leave it out, or use an optimizer that takes do_bias_correction"
        )
    if groups is None:
        return instantiate(cfg, params=model.parameters())
    return instantiate(cfg, params=instantiate(groups, model=model))


def get_default_optimizer_params(
    model: nn.Module,
    base_lr: float | None = None,
    weight_decay: float | None = None,
    weight_decay_norm: float | None = None,
    weight_decay_bias: float | None = None,
    clip_grad_max_norm: float | None = None,
    clip_grad_norm_type: float | None = None,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """Return parameter groups; see `stoker.nn.parameter_groups`. Each is clipped separately."""
    clip = {"clip_norm": clip_grad_max_norm, "norm_type": clip_grad_norm_type}
    return parameter_groups(
        model,
        {"lr": base_lr, "weight_decay": weight_decay, **clip},
        norms={"weight_decay": weight_decay_norm},
        biases={"weight_decay": weight_decay_bias},
        named=overrides,
    )


_expand_param_groups, reduce_param_groups = split_groups, merged_groups
