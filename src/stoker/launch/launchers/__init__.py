"""The launchers, by name.

A launcher is a function::

    def launch(fn, args, *, workers=1, address=None):
        '''Run ``fn(*args)`` in every process and return the value of rank 0.'''

Its keyword arguments are the options of `stoker.launch.run` that it accepts. Each module of this
package holds one launcher. A package of yours registers its own as an entry point:

.. code-block:: toml

    [project.entry-points."stoker.launchers"]
    kubernetes = "my_package.kubernetes:launch"
"""

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stoker.core.errors import did_you_mean

GROUP = "stoker.launchers"
"""The group of entry points that register launchers."""

DEFAULT = "local"

Launcher = Callable[..., Any]


def get(name: str) -> Launcher:
    """Return the launcher with this name.

    Raises:
        ValueError: there is none; the message lists those there are.
        ImportError: it is registered, but cannot be imported.
    """
    if name in _own():
        launcher: Launcher = import_module(f"{__name__}.{name}").launch
        return launcher
    entry_point = next((one for one in _entry_points() if one.name == name), None)
    if entry_point is None:
        known = names()
        near = did_you_mean(name, known)
        raise ValueError(f"there is no launcher {name!r}{near} (launchers: {', '.join(known)})")
    try:
        loaded: Launcher = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"the launcher {name!r} ({entry_point.value}) cannot be imported: {error}"
        ) from error
    return loaded


def names() -> list[str]:
    """Return the names of all launchers, those of installed packages included."""
    return list(dict.fromkeys([*_own(), *sorted(one.name for one in _entry_points())]))


def options_of(launcher: Launcher) -> tuple[str, ...]:
    """Return the options that a launcher accepts, from its keyword arguments."""
    taken = inspect.signature(launcher).parameters.values()
    return tuple(one.name for one in taken if one.kind is one.KEYWORD_ONLY)


def _own() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _entry_points() -> Any:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)
