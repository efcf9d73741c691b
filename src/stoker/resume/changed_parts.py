"""Report parts of an engine that training replaces, which a resumed run would not have."""

from collections.abc import Iterator
from typing import Any
from weakref import ref

from torch import nn

from stoker.core.log import get_logger
from stoker.engine import Engine, unwrap

_log = get_logger()


class ChangedParts:
    """Compares an engine with what it was when training began.

    A checkpoint of another optimizer, of more parameter groups or of larger weights does not fit
    the engine that a script builds when it is started again.
    """

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._parameters: dict[str, tuple[ref[nn.Parameter], tuple[int, ...]]] = {}
        self._reported: set[str] = set()

    def begin(self, engine: Engine) -> None:
        """Remember the parts of an engine."""
        self._first = dict(_parts_of(engine))
        self._parameters = {n: (ref(p), tuple(p.shape)) for n, p in _parameters_of(engine)}

    def report(self, engine: Engine) -> None:
        """Log a warning for each part that is another one since training began."""
        for name, change in self._changes(engine):
            if name not in self._reported:
                self._reported.add(name)
                _log.warning(
                    f"during training, {name} {change}, which cannot be saved: a run that resumes "
                    "from this checkpoint will differ, or reject it; build everything before "
                    "training begins"
                )

    def _changes(self, engine: Engine) -> Iterator[tuple[str, str]]:
        parts = dict(_parts_of(engine))
        for name, first in self._first.items():
            now = parts.get(name)
            if isinstance(first, list) and isinstance(now, list) and now != first:
                yield name, f"changed from {first} to {now} parameters"
            elif not isinstance(first, list) and now is not first:
                yield name, "was replaced"
        for name, parameter in _parameters_of(engine):
            first, shape = self._parameters.get(name, (ref(parameter), tuple(parameter.shape)))
            if tuple(parameter.shape) != shape:
                yield name, f"changed from shape {list(shape)} to {list(parameter.shape)}"
            elif first() is not parameter:
                yield name, "was replaced by another parameter"


def _parts_of(engine: Engine) -> Iterator[tuple[str, Any]]:
    """Yield what must stay the same, by names for messages.

    An optimizer of the same class has the same state, so it may be another object.
    """
    for name, optimizer in engine.optimizers.items():
        path = f"optimizer {name}".rstrip()
        yield path, type(optimizer)
        yield f"the groups of {path}", [len(one["params"]) for one in optimizer.param_groups]
    for name, scheduler in engine.lr_schedulers.items():
        yield f"lr_scheduler {name}".rstrip(), scheduler


def _parameters_of(engine: Engine) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model that is not split, whose objects stay the same."""
    if engine.layout.processes == engine.layout.replicate:
        for name, parameter in unwrap(engine.model).named_parameters():
            yield f"model.{name}", parameter
