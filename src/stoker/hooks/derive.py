"""`Derive`: results that are functions of other results."""

import inspect
from collections.abc import Callable

from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run


class Derive(Hook):
    """Compute results from other results of the same data, such as perplexity from the loss.

        hooks.Derive(perplexity=lambda loss: math.exp(loss))      # train/, val/ perplexity

    Args:
        functions: Functions by the name of their result. The names of their arguments are the
            results to compute it from; "/" is written "__".
    """

    priority = Priority.MEASURE + 5  # after the results it reads
    same_on_all_ranks = True

    def __init__(self, **functions: Callable[..., float]) -> None:
        if not functions:
            raise ValueError("Derive needs a function: Derive(perplexity=lambda loss: exp(loss))")
        self._functions: dict[str, tuple[Callable[..., float], list[str]]] = {}
        for name, function in functions.items():
            if not callable(function):
                raise TypeError(f"{name} is {function!r}, expected a function of other results")
            self._functions[name] = (function, _results_read_by(name, function))
        self.produces = tuple(f"{part}/{name}" for part in ("train", "val") for name in functions)

    def after_train_epoch(self, run: Run) -> None:
        """Compute the results of the training data."""
        self._record(run, "train", required=not run.val_names)

    def after_val(self, run: Run) -> None:
        """Compute the results of the validation data."""
        self._record(run, run.val_name, required=True)

    def _record(self, run: Run, part: str, *, required: bool) -> None:
        for name, (function, reads) in self._functions.items():
            missing = [one for one in reads if f"{part}/{one}" not in run.metrics]
            if not missing:
                run.record(f"{part}/{name}", function(*(run.metrics[f"{part}/{r}"] for r in reads)))
            elif required:
                known = ", ".join(sorted(run.metrics)) or "none"
                raise ValueError(
                    f"{name} is computed from {missing[0]!r}, but there is no result "
                    f"'{part}/{missing[0]}' (known results: {known})"
                )


def _results_read_by(name: str, function: Callable[..., float]) -> list[str]:
    try:
        arguments = inspect.signature(function).parameters
    except ValueError:  # some functions written in C
        raise ValueError(
            f"{name} is {function!r}, whose arguments have no names: pass a function such as "
            "lambda loss: …"
        ) from None
    return [one.replace("__", "/") for one in arguments]
