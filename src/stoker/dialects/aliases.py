"""Import the dialects under the names of the old packages."""

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
"""The old packages and the packages that replace them."""

_PARENTS = {"bigdl"}


class Dialects(MetaPathFinder):
    """An import finder that maps modules of the old packages to the dialects.

    Args:
        prefer: Use the dialects even if the old package is installed.
    """

    def __init__(self, *, prefer: bool = False) -> None:
        self.prefer = prefer
        self._installed: set[str] = set()

    def install(self) -> None:
        """Install the finder before all others.

        A module imported under both names is a single object. An installed old package is not
        replaced unless ``prefer`` is set.
        """
        if not self.prefer:
            roots = {old.partition(".")[0] for old in HOMES}
            self._installed = {root for root in roots if find_spec(root) is not None}
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of an old package, or None for any other module."""
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
    """Return the name of the module that replaces one of an old package, or None."""
    for old, home in HOMES.items():
        if name == old or name.startswith(f"{old}."):
            return home + name[len(old) :]
    return None


def _exists(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return (parent == "stoker.dialects" or _exists(parent)) and find_spec(module) is not None


class _Alias(Loader):
    """Load an existing module under a second name."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the existing module, which keeps its original name."""
        module = import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which the import replaced; the module was executed before."""
        module.__spec__ = self._spec


class _Empty(Loader):
    """Load a package that only contains other packages."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Create a default module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""
