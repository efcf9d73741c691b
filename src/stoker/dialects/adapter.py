"""What the dialects share: hooks of older trainers in a run."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from stoker import Hook, Priority, Run, Trainer
from stoker.core.types import Stateful

T = TypeVar("T")


class Adapter(Hook):
    """Calls a hook of an older trainer at points of a run, and keeps its state.

    Args:
        foreign: that hook, None where another adapter keeps its state.
        name: what it is called here.
        priority: see `Hook`.
        alike: see `Hook`.
    """

    def __init__(
        self,
        foreign: Any,
        name: str,
        priority: int = Priority.NORMAL,
        *,
        same_on_all_ranks: bool = False,
    ) -> None:
        self.foreign, self.name, self.priority, self.same_on_all_ranks = (
            foreign,
            name,
            priority,
            same_on_all_ranks,
        )
        self.places: dict[str, list[str]] = {}
        """Its points, and which of Stoker's they are called at."""

    def place(self, theirs: str, point: str, call: Callable[[Run], None]) -> None:
        """Have ``call`` called at a point of Stoker's, for one of theirs."""
        setattr(self, point, call)
        self.places.setdefault(theirs, []).append(point)

    def state_dict(self) -> dict[str, Any]:
        """That of the hook, if it has one."""
        return dict(self.foreign.state_dict()) if isinstance(self.foreign, Stateful) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give it back."""
        if isinstance(self.foreign, Stateful):
            self.foreign.load_state_dict(state)


def overridden(hook: Any, base: type, names: Iterable[str]) -> list[str]:
    """Those of the methods that a hook does not have from the base."""
    kind, own = type(hook), vars(hook)
    return [n for n in names if n in own or getattr(kind, n) is not getattr(base, n)]


def with_names(hooks: Iterable[T]) -> Iterator[tuple[T, str]]:
    """Each hook with a name of its own: its class's, and a number from the second on."""
    seen: Counter[str] = Counter()
    for hook in hooks:
        kind = type(hook).__name__
        seen[kind] += 1
        yield hook, kind if seen[kind] == 1 else f"{kind} {seen[kind]}"


def explain(trainer: Trainer) -> str:
    """The loop, and for each hook of a script what it has become here."""
    became: dict[str, list[str]] = {}
    for hook in trainer.hooks:
        if isinstance(hook, Adapter):
            places = (f"{own} at {', '.join(points)}" for own, points in hook.places.items())
        else:
            stock = [k for k in type(hook).__mro__[:-2] if k.__module__.startswith("stoker.hooks")]
            places = (f"stoker.hooks.{kind.__name__}" for kind in stock[:1])
        became.setdefault(hook.name.partition(".")[0], []).extend(places)
    if hasattr(trainer.step, "stands_for"):
        became.setdefault(trainer.step.stands_for, []).append("the step")
    lines = [f"  {name:<28} {'; '.join(how)}" for name, how in became.items() if how]
    return "\n".join([trainer.explain(), "", "Hooks of the script", *lines])
