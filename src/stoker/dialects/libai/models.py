"""Models, graphs and tokenizers that a config describes."""

from typing import Any

from torch import nn

from stoker.dialects.libai.config import accepts, instantiate, try_get_key

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
    cfg: Any,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    is_train: bool = False,
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
