"""`HookList`: which hooks are called at which point, resolved once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from functools import cache
from typing import Any

from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.foreign_words import point_of
from stoker.core.log import get_logger
from stoker.hooks.base.hook import POINTS, Hook, overrides
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
"""The nesting depth of a point in the loop; 2 unless listed."""


class Observer(Hook):
    """A hook that observes the other hooks through the list that calls them."""

    def observe(self, hooks: "HookList") -> None:
        """Called with the finished list; `HookList.calls` may be changed, and restored later."""


class HookList:
    """Hooks in calling order, with one tuple of bound methods per point.

    Only methods that a hook overrides are kept, so a point that no hook uses costs nothing.
    """

    def __init__(self, hooks: Iterable[Hook | None], run: Run) -> None:
        self.run = run
        self._hooks = sorted(check_hooks(hooks), key=lambda hook: hook.priority)
        self.calls: dict[str, tuple[Call, ...]] = {
            point: tuple(getattr(hook, point) for hook in self.at(point)) for point in POINTS
        }
        self.reads_outputs = frozenset(one for hook in self._hooks for one in hook.reads_outputs)
        for hook in self._hooks:
            if isinstance(hook, Observer):
                hook.observe(self)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._hooks)

    def at(self, point: str) -> list[Hook]:
        """Return the hooks that act at a point, in order."""
        return [hook for hook in self._hooks if overrides(hook, point)]

    def order(self) -> str:
        """Return the hooks in calling order, in one line."""
        return ", ".join(f"{hook.name} ({int(hook.priority)})" for hook in self._hooks) or "none"

    def picture(self) -> str:
        """Return the points of a run, nested as they fire, with the hooks at each."""
        lines = []
        for point in POINTS:
            acting = ", ".join(f"{hook.name} ({int(hook.priority)})" for hook in self.at(point))
            lines.append(f"{'  ' * _DEPTH.get(point, 2)}{point:<20} {acting}".rstrip())
        return "\n".join(lines)

    def fire(self, point: str) -> None:
        """Call every hook that overrides ``point``; an error names the hook that raised it."""
        call: Call | None = None
        try:
            for call in self.calls[point]:
                call(self.run)
        except BaseException as error:
            self._name_culprit(error, call, point)
            raise

    def fire_all(self, point: str) -> None:
        """Call every hook even if one raises, then raise the first error.

        If the run has failed already, later errors are logged and the first one is kept.
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
    def ending(self, point: str, drop_step: Callable[[], None]) -> Iterator[None]:
        """Fire ``point`` however the block ends; after a failure fire on_exception first, once.

        ``drop_step`` releases the current step in between.
        """
        run = self.run
        try:
            yield
        except BaseException as error:
            if run.error is None:
                run.error = error
                with dist.alone():  # other ranks may never get here
                    self.fire_all("on_exception")
            raise
        finally:
            drop_step()
            with nullcontext() if run.error is None else dist.alone():
                self.fire_all(point)

    def without_writers(self) -> "HookList":
        """Return a list of the hooks that write no files."""
        return HookList([hook for hook in self._hooks if not hook.writes], self.run)

    def _name_culprit(self, error: BaseException, call: Call | None, point: str) -> None:
        name = self._name(call, point)
        error.add_note(f"raised by hook {name!r} in {point}, at {self.run.where()}")

    def _name(self, call: Call | None, point: str) -> str:
        owner = self.owner(call, point)
        return repr(call) if owner is None else owner.name

    def owner(self, call: Call | None, point: str) -> Hook | None:
        """Return the hook that a call at a point belongs to."""
        return next((hook for hook in self._hooks if getattr(hook, point) == call), None)


def _described(value: Any) -> str:
    """Return what a value in a list of hooks is, and how to make it a hook."""
    found = type(value).__name__
    if isinstance(value, list | tuple):
        return f"a {found}, expected a Hook: unpack it, as in [*hooks.default(), …]"
    if isinstance(value, str):
        return f"{value!r}, expected a Hook, such as hooks.{value.rpartition('.')[2]}()"
    if hasattr(value, "compute") and hasattr(value, "update"):
        return f"of type {found}, a metric: pass hooks.Metrics(metric)"
    if hasattr(value, "write") or hasattr(value, "log_metrics"):
        return f"of type {found}, expected a Hook; wrap a writer with hooks.Write(writer)"
    name = getattr(value, "__name__", f"of type {found}")
    return f"{name}, expected a Hook; wrap a function with hooks.Callback(after_step=function)"


def check_hooks(hooks: Iterable[Any]) -> list[Hook]:
    """Return the hooks as a new list; raise an error that names anything that is not one."""
    if isinstance(hooks, Hook | str | Mapping) or not isinstance(hooks, Iterable):
        found = getattr(hooks, "__name__", f"of type {type(hooks).__name__}")
        raise TypeError(f"hooks is {found}, expected a list of hooks, such as [*hooks.default()]")
    checked: list[Hook] = []
    for index, hook in enumerate(hooks):
        if hook is None:
            continue  # allows `hook if condition else None` in a list
        if isinstance(hook, type) and issubclass(hook, Hook):
            raise TypeError(
                f"hooks[{index}] is the class {hook.__name__}: did you mean {hook.__name__}()?"
            )
        if isinstance(hook, Step):
            raise TypeError(f"hooks[{index}] is a {type(hook).__name__}, a Step: pass it as step=")
        if not isinstance(hook, Hook):
            raise TypeError(f"hooks[{index}] is {_described(hook)}")
        _warn_about_misspelled_points(type(hook), hook.name)  # type: ignore[arg-type]
        checked.append(hook)
    repeated = [name for name, n in Counter(hook.name for hook in checked).items() if n > 1]
    if repeated:
        raise ValueError(
            f"two hooks are named {repeated[0]!r}, but saved state is stored by name: set "
            "hook.name on one of them"
        )
    return checked


@cache
def _warn_about_misspelled_points(kind: type[Hook], hook: str) -> None:
    """Warn once about a method that resembles a point but is never called."""
    for name in set(dir(kind)) - set(dir(Hook)):
        like_others = name.startswith("on_") and name.endswith(("_begin", "_start", "_end"))
        if like_others or get_close_matches(name, POINTS, cutoff=0.85):
            other = point_of(name)
            near = f"; use {other}" if other else did_you_mean(name, POINTS)
            _log.warning(
                f"hook {hook!r} has {name!r}, which is not a hook point and is never called"
                f"{near} (stoker.hooks.POINTS lists them)"
            )
