"""The numbers by which the state of an optimizer knows parameters, the same in every layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class ParameterIndex:
    """Which of an optimizer's parameters this process has: of a pipeline, those of its stages.

    An optimizer counts the parameters it has. Their numbers in a saved state are those that they
    have in an optimizer of the whole model.

    Args:
        groups: all numbers, by parameter group.
        kept: those that this process has, in their order.
    """

    groups: list[list[int]]
    kept: list[int]

    @classmethod
    def of(cls, optimizer: Optimizer, now: Mapping[int, nn.Parameter | None]) -> "ParameterIndex":
        """The numbers of an optimizer of the whole model, some of whose parameters are gone.

        Args:
            optimizer: still with its parameters.
            now: by ``id``, what has become of a parameter; None where it is gone.
        """
        groups: list[list[int]] = []
        kept: list[int] = []
        count = 0
        for group in optimizer.param_groups:
            groups.append(list(range(count, count + len(group["params"]))))
            kept += [
                n
                for n, p in zip(groups[-1], group["params"], strict=True)
                if now[id(p)] is not None
            ]
            count += len(group["params"])
        return cls(groups, kept)

    def saved(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state dict of the optimizer, in the numbers of the whole model."""
        return {
            "state": {self.kept[number]: value for number, value in state["state"].items()},
            "param_groups": [
                {**group, "params": numbers}
                for group, numbers in zip(state["param_groups"], self.groups, strict=True)
            ],
        }

    def own(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Such a state dict as this process's optimizer takes it."""
        place = {number: index for index, number in enumerate(self.kept)}
        return {
            "state": {place[n]: value for n, value in state["state"].items() if n in place},
            "param_groups": [
                {**group, "params": [place[n] for n in group["params"] if n in place]}
                for group in state["param_groups"]
            ],
        }
