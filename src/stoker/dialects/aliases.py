"""The module tree of the old packages, under the names of the dialects and under their own."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

HOMES = {
    "colossalai": "stoker.dialects.colossalai",
    "libai": "stoker.dialects.libai",
    "bigdl.dllib": "stoker.dialects.orca.dllib",
    "bigdl.orca": "stoker.dialects.orca",
    "towhee": "stoker.dialects.towhee",
}
"""The old packages and the packages that replace them."""

_PARENTS = {"bigdl"}


def arrange(package: str, table: Mapping[str, str]) -> None:
    """Give a dialect the module tree of the package that it replaces.

    The files of a dialect are arranged for its reader. What only forwards names is in this table.

    Args:
        package: The dialect.
        table: For each module of the original, parents first, the modules of the dialect that have
            its names: ``{"engine": "default trainer", "engine.default": "default"}``. A single one
            is that module itself.
    """
    for old, homes in table.items():
        name, found = f"{package}.{old}", [import_module(f".{h}", package) for h in homes.split()]
        if len(found) == 1 or (found and found[0].__name__ == name):
            module = found[0]
        else:
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, _Empty(), is_package=True)
        for home in found:
            for key, value in vars(home).items():
                if getattr(value, "__module__", None) == home.__name__:
                    setattr(module, key, value)
        parent, _, last = name.rpartition(".")
        sys.modules[name] = module
        sys.modules[parent].__dict__.setdefault("__path__", [])
        sys.modules[parent].__dict__.setdefault(last, module)


class Dialects(MetaPathFinder):
    """An import finder that maps modules of the old packages to the dialects.

    Args:
        prefer: Use the dialects even if the old package is installed.
    """

    on_workers = True
    """Modules that workers of a cluster import by their old names are found there too."""

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
    if parent == "stoker.dialects":
        import_module(module)  # which arranges its modules
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
