"""`EMA`: an exponential moving average of the weights."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.errors import check_number
from stoker.core.tree import local_part
from stoker.engine import unwrap
from stoker.engine.averaging import end_training
from stoker.hooks.base.hook import Hook
from stoker.run import Run


class EMA(Hook):
    """Keep an exponential moving average of the parameters.

        hooks=[*hooks.default(), hooks.EMA(0.999)]

    Args:
        decay: The fraction of the average that is kept at each step, in [0, 1).
        validate: Validate the averaged weights during `fit`. Training continues with its own
            weights either way.
        use_at_end: Leave the averaged weights in the model when training ends without an error.
            Do not combine it with `KeepBest`, which restores the best validated average.
    """

    priority = 65  # after hooks that act on a validation result, before hooks that save
    same_on_all_ranks = True
    replicated_state = True

    def __init__(
        self, decay: float = 0.999, *, validate: bool = True, use_at_end: bool = False
    ) -> None:
        check_number("decay", decay)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and less than 1, got {decay}")
        self.decay = decay
        self.validate = validate
        self.use_at_end = use_at_end
        self._average: dict[str, Tensor] = {}
        self._swapped = False

    def before_train(self, run: Run) -> None:
        """Start the average from the current weights."""
        if not self._average:
            self._average = {n: p.detach().clone() for n, p in self._parameters(run)}

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        """Update the average."""
        if not run.updated:
            return
        pairs = [(self._average[name], p.detach()) for name, p in self._parameters(run)]
        averages, weights = ([*map(local_part, column)] for column in zip(*pairs, strict=True))
        torch._foreach_lerp_(averages, weights, 1 - self.decay)

    def before_val(self, run: Run) -> None:
        """Swap the average into the model."""
        if self.validate and self._average and run.task == "fit":
            self._swap(run)

    def after_val(self, run: Run) -> None:
        """Swap the training weights back into the model, also if the validation failed."""
        if self._swapped:
            self._swap(run)

    on_exception = after_val

    def after_train(self, run: Run) -> None:
        """Leave the average in the model if ``use_at_end`` is set."""
        if self.use_at_end and run.error is None and self._average:
            end_training(run.engine.optimizers.values())
            self._swap(run)
            self._average, self._swapped = {}, False

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        return {"average": {name: average.clone() for name, average in self._average.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average."""
        self._average = {name: average.clone() for name, average in state["average"].items()}

    @torch.no_grad()
    def _swap(self, run: Run) -> None:
        for name, parameter in self._parameters(run):
            average = self._average[name]
            weight = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(weight)
        self._swapped = not self._swapped

    def _parameters(self, run: Run) -> Iterator[tuple[str, nn.Parameter]]:
        return unwrap(run.engine.model).named_parameters()
