"""`HookList`: which hooks are called at which point, resolved once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any

from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.hooks.base.hook import POINTS, Hook
from stoker.run import Run
from stoker.step import Step

_log = get_logger()

Call = Callable[[Run], None]

_DEPTH = {
    **dict.fromkeys(("attach", "before_run", "on_exception", "after_run"), 0),
    **dict.fromkeys(("before_train", "after_train", "before_predict", "after_predict"), 1),
    **dict.fromkeys(("before_step", "after_forward", "before_update", "after_step"), 3),
    **dict.fromkeys(("before_val", "before_val_step", "after_val_step", "after_val"), 3),
}
"""How deep a point lies in the loop; 2 where nothing else is said."""


class Observer(Hook):
    """A hook that looks at the others: it is given the list that calls them all."""

    def observe(self, hooks: "HookList") -> None:
        """The list is made; what it calls may be changed, in `HookList.calls`, and put back."""


class HookList:
    """Hooks in calling order, with one tuple of bound methods per point.

    Only methods that a hook really overrides are kept, so a point nobody uses is a loop over an
    empty tuple.
    """

    def __init__(self, hooks: Iterable[Hook | None], run: Run) -> None:
        self.run = run
        self._hooks = sorted(check_hooks(hooks), key=lambda hook: hook.priority)
        self.calls: dict[str, tuple[Call, ...]] = {
            point: tuple(getattr(hook, point) for hook in self.at(point)) for point in POINTS
        }
        for hook in self._hooks:
            if isinstance(hook, Observer):
                hook.observe(self)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks)

    def at(self, point: str) -> list[Hook]:
        """The hooks that act at a point, in order."""
        return [hook for hook in self._hooks if _overrides(hook, point)]

    def order(self) -> str:
        """The hooks in calling order, in one line."""
        return ", ".join(f"{hook.name} ({int(hook.priority)})" for hook in self._hooks) or "none"

    def picture(self) -> str:
        """The points of a run as they lie in each other, with the hooks that act at each."""
        lines = []
        for point in POINTS:
            acting = ", ".join(f"{hook.name} ({int(hook.priority)})" for hook in self.at(point))
            lines.append(f"{'  ' * _DEPTH.get(point, 2)}{point:<20} {acting}".rstrip())
        return "\n".join(lines)

    def fire(self, point: str) -> None:
        """Call every hook that overrides ``point``; the first that raises is named."""
        call: Call | None = None
        try:
            for call in self.calls[point]:
                call(self.run)
        except BaseException as error:
            self._name_culprit(error, call, point)
            raise

    def fire_all(self, point: str) -> None:
        """Call every hook even if one raises, then raise the first error.

        In a run that has failed already the later error is logged and the first one stays.
        """
        failure: BaseException | None = None
        for call in self.calls[point]:
            try:
                call(self.run)
            except BaseException as error:
                self._name_culprit(error, call, point)
                if failure is None and self.run.error is None:
                    failure = error
                else:
                    name = self._name(call, point)
                    _log.error(f"hook {name!r} failed in {point} as well", error=error)
        if failure is not None:
            raise failure

    @contextmanager
    def ending(self, point: str) -> Iterator[None]:
        """Fires ``point`` however the block ends; a failure is told to on_exception first, once."""
        run = self.run
        try:
            yield
        except BaseException as error:
            if run.error is None:
                run.error = error
                with dist.alone():  # the others may never come here
                    self.fire_all("on_exception")
            raise
        finally:
            run.drop_step()
            with nullcontext() if run.error is None else dist.alone():
                self.fire_all(point)

    def without_writers(self) -> "HookList":
        """The hooks that leave no files behind."""
        return HookList([hook for hook in self._hooks if not hook.writes], self.run)

    def _name_culprit(self, error: BaseException, call: Call | None, point: str) -> None:
        name = self._name(call, point)
        error.add_note(f"raised by hook {name!r} in {point}, at {self.run.where()}")

    def _name(self, call: Call | None, point: str) -> str:
        owner = self.owner(call, point)
        return repr(call) if owner is None else owner.name

    def owner(self, call: Call | None, point: str) -> Hook | None:
        """The hook that a call at a point is of."""
        return next((hook for hook in self._hooks if getattr(hook, point) == call), None)


def check_hooks(hooks: Iterable[Any]) -> list[Hook]:
    """The hooks as a new list, or an error that names what is none of them."""
    if isinstance(hooks, Hook | str) or not isinstance(hooks, Iterable):
        raise TypeError(f"hooks is a {type(hooks).__name__}, expected a list of hooks")
    checked: list[Hook] = []
    for index, hook in enumerate(hooks):
        if hook is None:
            continue  # so that a list can say `hook if wanted else None`
        if isinstance(hook, type) and issubclass(hook, Hook):
            raise TypeError(
                f"hooks[{index}] is the class {hook.__name__}: did you mean {hook.__name__}()?"
            )
        if isinstance(hook, Step):
            raise TypeError(f"hooks[{index}] is a {type(hook).__name__}, a Step: pass it as step=")
        if not isinstance(hook, Hook):
            raise TypeError(
                f"hooks[{index}] is {hook!r} of type {type(hook).__name__}, expected a Hook; "
                "hooks.Callback(after_step=function) makes one of a function"
            )
        _warn_of_misspelt_points(hook)
        checked.append(hook)
    repeated = [name for name, n in Counter(hook.name for hook in checked).items() if n > 1]
    if repeated:
        raise ValueError(
            f"two hooks are named {repeated[0]!r}, and a name keys saved state: "
            "set hook.name on one of them"
        )
    return checked


def _warn_of_misspelt_points(hook: Hook) -> None:
    """A method that looks like a point and is none is never called, which is rarely meant."""
    for name in set(dir(type(hook))) - set(dir(Hook)):
        like_others = name.startswith("on_") and name.endswith(("_begin", "_start", "_end"))
        if like_others or get_close_matches(name, POINTS, cutoff=0.85):
            _log.warning(
                f"hook {hook.name!r} has {name!r}, which is no point of a run and is never called"
                f"{did_you_mean(name, POINTS)} (stoker.hooks.POINTS lists them)"
            )


def _overrides(hook: Hook, point: str) -> bool:
    return point in vars(hook) or getattr(type(hook), point) is not getattr(Hook, point)
