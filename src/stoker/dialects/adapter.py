"""What dialects share: call the hooks of older trainers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from stoker import Hook, Priority, Run, Trainer
from stoker.core.types import Stateful

T = TypeVar("T")


class Adapter(Hook):
    """Call a hook of an older trainer at points of a run, and save its state.

    Args:
        foreign: The hook; None if another adapter saves its state.
        name: The name of the adapter.
        priority: See `Hook`.
        same_on_all_ranks: See `Hook`.
    """

    def __init__(
        self,
        foreign: Any,
        name: str,
        priority: int = Priority.NORMAL,
        *,
        same_on_all_ranks: bool = False,
    ) -> None:
        self.foreign, self.name, self.priority = foreign, name, priority
        self.same_on_all_ranks = same_on_all_ranks
        self.places: dict[str, list[str]] = {}
        """The points of the foreign hook and the points of Stoker at which they are called."""

    def place(self, theirs: str, point: str, call: Callable[[Run], None]) -> None:
        """Call ``call`` at a point of Stoker, for the point ``theirs`` of the foreign hook."""
        setattr(self, point, call)
        self.places.setdefault(theirs, []).append(point)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the foreign hook, if it has any."""
        return dict(self.foreign.state_dict()) if isinstance(self.foreign, Stateful) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the foreign hook."""
        if isinstance(self.foreign, Stateful):
            self.foreign.load_state_dict(state)


def overridden(hook: Any, base: type, names: Iterable[str]) -> list[str]:
    """Return the methods of ``names`` that a hook overrides."""
    kind, own = type(hook), vars(hook)
    return [n for n in names if n in own or getattr(kind, n) is not getattr(base, n)]


def with_names(things: Iterable[T], separator: str = " ") -> Iterator[tuple[T, str]]:
    """Yield each object with a unique name: its class, and a number from the second on."""
    seen: Counter[str] = Counter()
    for one in things:
        kind = type(one).__name__
        seen[kind] += 1
        yield one, kind if seen[kind] == 1 else f"{kind}{separator}{seen[kind]}"


def explain(trainer: Trainer) -> str:
    """Return the loop, and for each hook of a script what it is translated to."""
    translated: dict[str, list[str]] = {}
    for hook in trainer.hooks:
        if isinstance(hook, Adapter):
            places = (f"{own} at {', '.join(points)}" for own, points in hook.places.items())
        else:
            stock = [k for k in type(hook).__mro__[:-2] if k.__module__.startswith("stoker.hooks")]
            places = (f"stoker.hooks.{kind.__name__}" for kind in stock[:1])
        translated.setdefault(hook.name.partition(".")[0], []).extend(places)
    if hasattr(trainer.step, "stands_for"):
        translated.setdefault(trainer.step.stands_for, []).append("the step")
    lines = [f"  {name:<28} {'; '.join(how)}" for name, how in translated.items() if how]
    return "\n".join([trainer.explain(), "", "Hooks of the script", *lines])
