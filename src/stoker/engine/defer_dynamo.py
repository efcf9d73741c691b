"""Make and save optimizers without importing torch's compiler."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

_MARK = "__dynamo_disable"
_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


@contextmanager
def defer_dynamo() -> Iterator[None]:
    """Within this context, optimizer methods do not import ``torch._dynamo``.

    Torch excludes these methods from compilation, and imports its compiler at the first call of
    one of them to do so, which takes longer than many a first epoch. Within the context they run
    directly until something else imports the compiler; from then on torch marks them as usual.
    Afterwards torch's optimizer class is as it was.
    """
    deferred: dict[Any, Callable[..., Any]] = {}
    for name in () if "torch._dynamo" in sys.modules else _METHODS:
        excluded = getattr(Optimizer, name)
        method = getattr(excluded, "__wrapped__", None)
        if method is not None and not hasattr(method, _MARK):
            deferred[method] = _until_imported(method, excluded)
            setattr(method, _MARK, deferred[method])
    try:
        yield
    finally:
        for method, direct in deferred.items():
            if vars(method).get(_MARK) is direct:
                delattr(method, _MARK)


def _until_imported(method: Any, excluded: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        vars(method).pop(_MARK, None)
        return excluded(*args, **kwargs)

    return call
