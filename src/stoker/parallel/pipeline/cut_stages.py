"""Cut a model into stages by hand, for scripts in which each process passes its own stage.

`join_stages` makes one model of them again. Without this, name the parts in ``pipeline_parts``.
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

from torch import nn

from stoker.core.errors import did_you_mean
from stoker.parallel.pipeline.stages import Stage

CUT = "SPLIT_NODE"
"""Marks the beginning of a stage in a sequence of layers."""


class FunctionPart(nn.Module):
    """A function without parameters as a part of a model, such as one that flattens."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Call the function."""
        return self.function(*args)


class LayerList:
    """The layers of a model in the order in which they run.

    Args:
        model: the complete model.
        sequence: the names of modules, and functions that run in between: a function belongs to
            the module before it, or to the one after it as ``(function, "front")``. `CUT` marks
            where a stage begins. By default the children of the model, and those of its lists.

    Attributes:
        layers: for each layer its module, and the functions that belong to it.
        cuts: the layers that are marked with `CUT`.
    """

    def __init__(self, model: nn.Module, sequence: Sequence[Any] | None = None) -> None:
        self.layers: list[list[nn.Module]] = []
        self.cuts: list[int] = []
        self._before: list[nn.Module] = []
        self._named = dict(model.named_modules())
        for child in model.children() if sequence is None else ():
            parts = child if isinstance(child, nn.ModuleList | nn.Sequential) else [child]
            self.layers += [[one] for one in parts]
        for one in sequence or ():
            self._add(*(one if isinstance(one, tuple) else (one, "behind")))
        if self._before:
            raise ValueError('the sequence ends with a (function, "front"), expected a module')

    def _add(self, one: Any, where: str) -> None:
        if callable(one):
            if where != "front" and not self.layers:
                raise ValueError('the sequence begins with a function: write (function, "front")')
            (self._before if where == "front" else self.layers[-1]).append(FunctionPart(one))
        elif one == CUT:
            self.cuts.append(len(self.layers))
        elif one not in self._named:
            raise ValueError(f"the model has no module {one!r}{did_you_mean(one, self._named)}")
        else:
            self.layers.append([*self._before, self._named[one]])
            self._before = []

    def sizes(self) -> list[int]:
        """Return the number of parameters of each layer."""
        return [sum(p.numel() for one in part for p in one.parameters()) for part in self.layers]

    def stages(self, starts: Sequence[int], processes: int, rank: int) -> list[Stage]:
        """Return the stages of one of the processes, which hold them in turn."""
        cut = [self.layers[a:b] for a, b in pairwise([*starts, len(self.layers)])]
        own = range(rank, len(cut), processes)
        return [Stage(index, list(chain.from_iterable(cut[index]))) for index in own]
