"""What to write instead of a name that a config does not have: an override that works."""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from stoker.config import paths
from stoker.config.check import parameters
from stoker.config.lazy import Lazy, Section, children
from stoker.config.other_trainers import FLAGS, stoker_name
from stoker.config.registry import registry_at
from stoker.config.run_section import help_lines

Fault = Callable[[str], str | None]
"""Returns what is wrong with an override, None if it works."""

_MEANT = re.compile(r"did you mean '?([^'?]+)'?\?")
_OPPOSITE = {"true": "false", "false": "true"}


class Suggestions:
    """Finds the override that a user meant.

    Args:
        tree: the config.
        callee: returns the callable of a node.
        fault: checks an override of the config.
    """

    def __init__(self, tree: Section, callee: Callable[..., Any], fault: Fault) -> None:
        self._tree, self._callee, self._fault = tree, callee, fault
        self._known = [*self._arguments(tree, ""), *(line[0] for line in help_lines())]

    def instead_of(self, name: str, text: str | None, *, similar: bool = False) -> str:
        """Return the end of an error message: the override to use instead of ``name=text``.

        Without one that works, the message names the place alone, or is empty.

        Args:
            name: a name that the config does not have, perhaps of another trainer.
            text: the value, None for a flag.
            similar: accept places that are only spelled like the name.
        """
        name = name.rpartition(".")[2].lower().replace("-", "_")
        found = list(dict.fromkeys(self._similar(name) if similar else self._places(name)))
        for place in found:
            for value in _values(name, text):
                if (works := self._corrected(place, value)) is not None:
                    return f"; use '{place}={works}'"
        if not found:
            return ""
        reason = (self._fault(f"{found[0]}={text or ''}") or "").partition("': ")[2]
        wrong = f" ({reason})" if text and ("expected" in reason or "must be" in reason) else ""
        return f"; use '{found[0]}'{wrong}"

    def _corrected(self, place: str, value: str) -> str | None:
        """Return the value, or the one that its error suggests, if it works at a place."""
        fault = self._fault(f"{place}={value}")
        meant = _MEANT.search(fault) if fault is not None else None
        if meant is not None and self._fault(f"{place}={meant[1]}") is None:
            return meant[1]
        return value if fault is None else None

    def _places(self, name: str) -> Iterator[str]:
        """Yield the paths that a name may mean, the most likely first."""
        name = name if name in FLAGS else name.removeprefix("no_")
        same = [path for path in self._known if _leaf(path) == name]
        yield from (path for path in same if self._is_set(path))
        ours = stoker_name(name)
        if ours == "run.micro_batch" and self._is_set("train_loader.batch_size"):
            yield "train_loader.batch_size"  # only one of the two can be set
        if ours is not None:
            yield ours
            yield from (path for path in self._known if _leaf(path) == _leaf(ours))
        yield from same

    def _similar(self, name: str) -> Iterator[str]:
        leaves = {_leaf(path): path for path in self._known}
        for leaf in get_close_matches(name, list(leaves), n=1, cutoff=0.75):
            yield leaves[leaf]

    def _arguments(self, value: Any, at: str) -> Iterator[str]:
        """Yield the path of every argument that a call in the config accepts."""
        for name in parameters(self._target(value, at)) or {}:
            yield f"{at}.{name}"
        for key, item in children(value):
            if isinstance(item, dict | list) and key != "run":
                yield from self._arguments(item, f"{at}.{key}" if at else str(key))

    def _target(self, value: Any, at: str) -> Any:
        try:
            if isinstance(value, Lazy):
                return self._callee(value)
            registry = registry_at(at.split("."))
            if registry is not None and isinstance(value, dict):
                return registry.get(value.get("type", ""))
        except Exception:  # an unknown name, or importing a module failed
            return None
        return None

    def _is_set(self, path: str) -> bool:
        try:
            paths.get(self._tree, path)
        except paths.NoSuchPlaceError:
            return False
        return True


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _values(name: str, text: str | None) -> Iterator[str]:
    """Yield the values that may be meant, the most likely first."""
    if name in FLAGS and (text is None or text.lower() in ("", "true", "yes", "on", "1")):
        yield FLAGS[name]
    if text is None:
        yield "false" if name.startswith("no_") else "true"
        return
    if name.startswith(("disable_", "no_")) and text.lower() in _OPPOSITE:
        yield _OPPOSITE[text.lower()]
    if name.endswith(("_epoch", "_epochs")) and "every" in name:
        yield f"{text}ep"
    yield text
