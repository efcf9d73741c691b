"""The old packages' own names, which lead to the dialects."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

HOMES = {
    "colossalai": "stoker.dialects.colossalai",
    "libai": "stoker.dialects.libai",
    "bigdl.orca": "stoker.dialects.orca",
    "towhee": "stoker.dialects.towhee",
}
"""An old package, and where its names are here."""

_PARENTS = {"bigdl"}


class Dialects(MetaPathFinder):
    """Finds the modules of the old packages in the dialects.

    Args:
        prefer: also where the old package is installed.
    """

    def __init__(self, *, prefer: bool = False) -> None:
        self.prefer = prefer
        self._installed: set[str] = set()

    def install(self) -> None:
        """Let imports ask here first: a module is one object, whatever name it is asked for by.

        A package that is installed is left alone, unless the dialects are preferred.
        """
        if not self.prefer:
            roots = {old.partition(".")[0] for old in HOMES}
            self._installed = {root for root in roots if find_spec(root) is not None}
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a module of this name comes from; None if it is no old package's."""
        if name.partition(".")[0] in self._installed:
            return None
        if name in _PARENTS:
            return ModuleSpec(name, _Empty(), is_package=True)
        home = home_of(name)
        if home is None or not _exists(home):
            return None
        found = find_spec(home)
        is_package = found is not None and found.submodule_search_locations is not None
        return ModuleSpec(name, _Alias(home), is_package=is_package)


def home_of(name: str) -> str | None:
    """The module that stands for one of an old package; None for any other name."""
    for old, home in HOMES.items():
        if name == old or name.startswith(f"{old}."):
            return home + name[len(old) :]
    return None


def _exists(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return (parent == "stoker.dialects" or _exists(parent)) and find_spec(module) is not None


class _Alias(Loader):
    """Gives the module itself, under a second name."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, which keeps its own name."""
        module = import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; only its spec, which importing replaced, is put back."""
        module.__spec__ = self._spec


class _Empty(Loader):
    """A package with nothing in it but other packages."""

    def create_module(self, spec: ModuleSpec) -> None:
        """A plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""
