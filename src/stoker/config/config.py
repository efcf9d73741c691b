"""`Config`: a tree of nodes that describes a run; load, override, check, save and build it."""

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.config import paths, rules, run_section
from stoker.config.check import (
    LOADERS,
    SUPPLIED,
    as_tuples,
    faults_of_node,
    named_in,
    nodes,
    parameters,
    positional_names,
    top_key,
    type_of,
    unknown_keys,
    wrong_parts,
)
from stoker.config.files import read_python, read_yaml
from stoker.config.lazy import Lazy, Section, children, copied
from stoker.config.names import UnknownNameError, importing_from, locate, name_of
from stoker.config.other_trainers import KEYS
from stoker.config.override import UnknownKeyError, apply
from stoker.config.registry import METRICS, expanded
from stoker.config.resolve import resolved
from stoker.config.suggest import Suggestions
from stoker.config.trust import Override, Trust
from stoker.config.yaml_text import Named, settled, write
from stoker.core.errors import ConfigError, did_you_mean, did_you_mean_path
from stoker.rundir import files
from stoker.storage import local_path, url_of, write_atomic


class Config:
    """The description of a run: a tree of nodes and plain values.

        load → override → check → print or save → build

    Args:
        tree: the values, from `load` or as a plain dict with `L` nodes.
        name: the name of the run unless ``run.name`` is set.
        folder: the folder of the config's own modules.
        restricted: whether names and paths are restricted to the allowed ones, as in YAML.
        allow: further prefixes of names that it may use, and paths.
    """

    def __init__(
        self,
        tree: dict[str, Any],
        *,
        name: str = "run",
        folder: str | Path = ".",
        restricted: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        self.tree: Section = (
            tree if isinstance(tree, Section) else settled(dict(tree), strict=False)
        )
        self.name = name
        self.restricted = restricted
        self.folders = [Path(folder).resolve()]
        others = self.tree.pop("_path_", [])
        for other in others if isinstance(others, list) else []:
            self._add_folder(other)
        self.allow = tuple(allow)

    @property
    def allow(self) -> tuple[str, ...]:
        """The prefixes of names and the paths that the user allows."""
        return self._allow

    @allow.setter
    def allow(self, allow: Sequence[str]) -> None:
        self._allow = tuple(allow)
        self.trust = Trust(self.folders, self._allow) if self.restricted else None

    @property
    def runs_code(self) -> bool:
        """Whether building it may run code other than that on the list."""
        return self.trust is None or self.trust.runs_code

    def _add_folder(self, folder: Any) -> None:
        """Add a folder of a saved config if it is the current folder or below it."""
        try:
            path = Path(folder).resolve()
        except (TypeError, ValueError, OSError, RuntimeError):
            return
        if Path.cwd() in (path, *path.parents):
            self.folders.append(path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.tree == other.tree

    __hash__ = None  # type: ignore[assignment]

    def override(self, *overrides: str) -> "Config":
        """Change values by path: ``config.override("optimizer.lr=3e-4")``.

        Raises:
            ConfigError: all unknown paths and values of the wrong type.
        """
        faults: list[str] = []
        with self.importable():
            for one in overrides:
                try:
                    apply(self.tree, one, self.callee)
                except UnknownKeyError as error:
                    faults.append(error.fault + self._instead_of(error))
                except ConfigError as error:
                    faults += error.faults
        if faults:
            raise ConfigError(*faults)
        return self

    def suggestions(self) -> Suggestions:
        """Return what finds the override that a user meant with an unknown key."""
        with self.importable():
            return Suggestions(self.tree, self.callee, self._fault_of)

    def _instead_of(self, error: UnknownKeyError) -> str:
        find = self.suggestions().instead_of
        return (
            find(error.key, error.text) or error.near or find(error.key, error.text, similar=True)
        )

    def _fault_of(self, override: str) -> str | None:
        """Return the first fault that an override would add, None if it works."""
        before = self.faults()
        trial = copy(self)
        trial.tree = copied(self.tree)
        try:
            with self.importable():
                apply(trial.tree, override, self.callee)
        except ConfigError as error:
            return str(error)
        return next((fault for fault in trial.faults() if fault not in before), None)

    def importable(self) -> AbstractContextManager[None]:
        """Make the modules that the config names importable inside the block."""
        if self.trust is not None:
            return self.trust.importable()
        return importing_from([*self.folders, Path.cwd()])

    def callee(self, node: Lazy | Named) -> Any:
        """Return the callable of a node, or the object of a name.

        Raises:
            UnknownNameError: it does not exist, or may not be named here.
        """
        made_by = node.made_by if isinstance(node, Lazy) else node.thing
        name = node.target if isinstance(node, Lazy) else node.name
        if made_by is not None:
            if self.trust is not None:
                self.trust.check_made(made_by, name)
            return made_by
        return locate(name) if self.trust is None else self.trust.find(name)

    def resolved(self) -> Section:
        """Return the tree with references resolved, short names expanded and ``run`` filled in.

        Raises:
            ConfigError: unresolvable references or unknown short names.
        """
        faults: list[str] = []
        tree = self._expanded(faults)
        if faults:
            raise ConfigError(*dict.fromkeys((*faults, *self.faults())))
        run = tree.get("run", {})
        if isinstance(run, dict):
            tree["run"] = run_section.filled(run, where=tree.origin("run"))
        return tree

    def check(self, *needed: str) -> Section:
        """Check everything and return the resolved tree.

        Args:
            needed: top-level keys that the config must have.

        Raises:
            ConfigError: all faults, each with its place.
        """
        faults = self.faults(*needed)
        if faults:
            raise ConfigError(*faults)
        return self.resolved()

    def faults(self, *needed: str) -> list[str]:
        """Return all faults of the config, each with its place; see `check`."""
        faults = unknown_keys(self.tree, _referred_to(self.tree), not self.restricted)
        if not faults:  # an unknown key may be a misspelled one that is needed
            faults += [f"the config has no '{k}'" for k in needed if self.tree.get(k) is None]
        tree = self._expanded(faults)
        run = tree.get("run", {})
        faults += run_section.faults_of(run) or self._faults_of_paths(run)
        sized = isinstance(run, dict) and (run.get("micro_batch") or run.get("global_batch"))
        supplied = {**SUPPLIED, **(dict.fromkeys(LOADERS, ("batch_size",)) if sized else {})}
        faults += wrong_parts(tree)
        with self.importable():
            for path, node in nodes(tree):
                faults += self._faults_of_node(path, node, supplied.get(top_key(path), ()))
        return faults

    def _expanded(self, faults: list[str]) -> Section:
        """Return the tree with references resolved and short names expanded.

        An unknown short name may be registered by a module that the config names.
        """
        tree: Section = resolved(self.tree, faults)
        for key in [key for key in tree if key not in KEYS]:
            del tree[key]  # variables are only referred to
        with self.importable():
            imports = tree.pop("imports", None) or []
            self._import(imports if isinstance(imports, list) else [imports], faults)
            unknown: list[str] = []
            found = expanded(tree, unknown)
            if unknown:
                self._import(self._own_modules(tree), [])
                found = expanded(tree, faults)
        return found

    def _import(self, names: Iterable[str], faults: list[str]) -> None:
        """Import modules, which may register short names."""
        for name in names:
            try:
                if self.trust is not None:
                    self.trust.check_import(name)
                import_module(name)
            except Exception as error:
                place = self.tree.origin("imports")
                faults.append(f"{place}: '{name}' cannot be imported: {error}")

    def _own_modules(self, tree: Section) -> list[str]:
        tops = dict.fromkeys(top_key(node.target) for _, node in nodes(tree))
        return [top for top in tops if any((f / f"{top}.py").is_file() for f in self.folders)]

    def _faults_of_node(self, path: str, node: Lazy, supplied: Sequence[str]) -> list[str]:
        try:
            target = self.callee(node)
            passed = [(one.name, self.callee(one)) for one in named_in(node)]
        except UnknownNameError as error:
            return [f"{node.where}: {error}"]
        except Exception as error:  # importing a module can raise anything
            what = f"{type(error).__name__}: {error}"
            return [f"{node.where}: {node.target} cannot be imported: {what}"]
        if not callable(target):
            return [f"{node.where}: {node.target} is not a class or function"]
        faults = faults_of_node(path, node, target, supplied)
        if self.trust is not None:
            faults += self._refused(self.trust, path, node, target)
            reasons = [self.trust.refused_object(thing, name) for name, thing in passed]
            faults += [f"{node.where}: {reason}" for reason in reasons if reason]
        return faults

    def _refused(self, trust: Trust, path: str, node: Lazy, target: Any) -> list[str]:
        """Return the arguments of a node that a YAML may not set."""
        by_position = zip(positional_names(parameters(target) or {}), node.args, strict=False)
        faults = []
        for key, value in [*by_position, *node.items()]:
            place = node.origin(key) or node.where
            reason = trust.refused_argument(target, node.target, key, value)
            if reason and not isinstance(place, Override):
                faults.append(f"{place}: '{path}': {reason}")
        if node.target == "stoker.hooks.Metrics":
            faults += _refused_metrics(trust, node)
        return faults

    def _faults_of_paths(self, run: Any) -> list[str]:
        """Return faults for paths in ``run`` that a YAML may not choose."""
        if self.trust is None or not isinstance(run, Section):
            return []
        folder, faults = self.folders[0], []
        inside = [Path.cwd(), folder]
        for key in ("dir", "resume"):
            value, place = run.get(key), run.origin(key)
            if key == "dir" and value and Path(value.replace("\0", "")).resolve() == folder.parent:
                inside.append(folder.parent)  # the saved config of a run
            if key == "dir" and value and url_of(folder.parent) == value.rstrip("/"):
                continue  # the same, of a run in a store
            if value in (None, "auto", "must", "never") or isinstance(place, Override):
                continue
            try:
                self.trust.check_path(value, f"'run.{key}'", inside)
            except UnknownNameError as error:
                faults.append(f"{place}: {error}")
        return faults

    def text(self) -> str:
        """Return the resolved tree as YAML that reads back equal."""
        return write(self.resolved())

    def save(self, path: str | Path) -> None:
        """Write the resolved tree, so that `load` returns an equal one."""
        target, tree = local_path(path), self.resolved()
        tree["_path_"] = [str(folder) for folder in self.folders]
        write_atomic(target, write(tree))

    def why(self, path: str) -> str:
        """Return where a value comes from: a line of a file, an override, or a default."""
        tree = self.resolved()
        keys = paths.split(path)
        try:
            owner = paths.get(tree, ".".join(keys[:-1])) if len(keys) > 1 else tree
            value = paths.part(owner, keys[-1], ".".join(keys[:-1]))
        except paths.NoSuchPlaceError as error:
            return self._default(tree, keys, error)
        origin = self._origin(tree, keys)
        written = self._written(keys)
        return f"{path} = {_shown(value)}  ({origin}{written})"

    def _origin(self, tree: Section, keys: list[str]) -> str:
        """Return the closest known place of the value."""
        value: Any = tree
        origin = tree.where
        for key in keys:
            if isinstance(value, Section):
                found = value.origins.get(key, value.where)
                origin = found or origin
            value = paths.part(value, key, "")
        if origin == "default":
            return "default of " + ".".join(keys)
        return origin

    def _written(self, keys: list[str]) -> str:
        """Return the reference that produced the value, if any."""
        try:
            raw = paths.get(self.tree, ".".join(keys))
        except paths.NoSuchPlaceError:
            return ""
        return f", written as {raw}" if isinstance(raw, str) and "${" in raw else ""

    def _default(self, tree: Section, keys: list[str], error: paths.NoSuchPlaceError) -> str:
        """Return the default of a value that the config does not set."""
        try:
            node = paths.get(tree, ".".join(keys[:-1]))
        except paths.NoSuchPlaceError:
            raise ConfigError(str(error)) from None
        if isinstance(node, Lazy):
            with self.importable():
                taken = parameters(self.callee(node)) or {}
            if keys[-1] in taken:
                default = taken[keys[-1]].default
                if default is taken[keys[-1]].empty:
                    return f"{'.'.join(keys)} is not set; the run supplies it"
                return f"{'.'.join(keys)} = {_shown(default)}  (default of {node.target})"
            raise ConfigError(f"{node.target} has no '{keys[-1]}'{did_you_mean(keys[-1], taken)}")
        raise ConfigError(str(error))


def load(path: str | Path, overrides: Iterable[str] = (), *, allow: Sequence[str] = ()) -> Config:
    """Read a config from a Python or YAML file and apply overrides.

    Args:
        path: a .py, .yaml or .yml file, or a run folder, whose ``config.yaml`` is read.
        overrides: as on the command line: ``["optimizer.lr=3e-4", "~hooks.1"]``.
        allow: what a YAML may use in addition: prefixes of dotted names, such as "mypackage.", and
            paths of files and folders.

    Raises:
        ConfigError: the faults, with their places.
    """
    path = local_path(path, "the config")
    if path.is_dir():
        path = path / files.CONFIG
    if not path.is_file():
        raise ConfigError(f"there is no config '{path}'{did_you_mean_path(path)}")
    if path.suffix == ".py":
        config = Config(read_python(path), name=path.stem, folder=path.parent)
    elif path.suffix in (".yaml", ".yml"):
        tree = read_yaml(path, allow)
        if (script := tree.get(files.RECORDED_BY)) is not None:
            raise ConfigError(
                f"'{path}' records a run of {script}, it is not a config: run {script} to resume "
                "or repeat it, or read its weights with stoker.load_weights"
            )
        if Path.cwd() not in path.resolve().parents:
            tree.pop("_path_", None)  # a file from elsewhere must not choose code folders
        name = path.resolve().parent.name if path.stem == "config" else path.stem
        name = name if rules.is_name(name) else "run"
        config = Config(tree, name=name, folder=path.parent, restricted=True, allow=allow)
    else:
        raise ConfigError(f"'{path}' ends in '{path.suffix}', expected .py, .yaml or .yml")
    try:
        return config.override(*overrides)
    except ConfigError as error:  # report the faults of the file as well
        raise ConfigError(*dict.fromkeys((*error.faults, *config.faults()))) from None


def build(value: Any) -> Any:
    """Build a node and all nodes inside it; a node used in two places is built once."""
    return Builder(Config({})).build(value)


class Builder:
    """Builds the objects of a config, each node once."""

    def __init__(self, config: Config) -> None:
        self.callee = config.callee
        self._made: dict[int, Any] = {}

    def build(self, value: Any, path: str = "", **supplied: Any) -> Any:
        """Build a value; ``supplied`` are arguments for those that the node does not set."""
        if isinstance(value, Lazy):
            if id(value) not in self._made:
                self._made[id(value)] = self._called(value, path, supplied)
            return self._made[id(value)]
        at = {key: f"{path}.{key}" if path else str(key) for key, _ in children(value)}
        if isinstance(value, dict):
            return {key: self.build(item, at[key]) for key, item in value.items()}
        if isinstance(value, list | tuple):
            made = (self.build(item, at[str(i)]) for i, item in enumerate(value))
            return type(value)(made)
        if isinstance(value, Named):
            return self.callee(value)
        return value.replace("\\${", "${") if isinstance(value, str) else value

    def _called(self, node: Lazy, path: str, supplied: dict[str, Any]) -> Any:
        target = self.callee(node)
        taken = parameters(target) or {}
        args = [self.build(item, f"{path}.{index}") for index, item in enumerate(node.args)]
        kwargs = {key: self.build(item, f"{path}.{key}") for key, item in node.items()}
        kwargs = {
            key: as_tuples(item, type_of(taken[key])) if key in taken else item
            for key, item in kwargs.items()
        }
        given = positional_names(taken)[: len(args)]
        missing = {k: item for k, item in supplied.items() if k in taken and k not in given}
        try:
            return target(*args, **{**missing, **kwargs})
        except Exception as error:
            error.add_note(f"while '{path or node.target}' was built ({node.where})")
            raise


def _refused_metrics(trust: Trust, node: Lazy) -> list[str]:
    """Return the metrics that the hook is passed by short name and a YAML may not name."""
    faults = []
    texts = (value for _, value in children(node) if isinstance(value, str))
    for name in texts:
        try:  # other names than those of classes would import torchmetrics in vain
            if (name[:1].isupper() or METRICS.is_registered(name)) and name in METRICS:
                trust.check_made(thing := METRICS.get(name), name_of(thing))
        except UnknownNameError as error:
            faults.append(f"{node.where}: {error}")
    return faults


def _referred_to(tree: Section) -> set[str]:
    """Return the top-level keys that a reference or shared node leads to."""
    found: set[str] = set()
    by_id = {id(value): key for key, value in tree.items() if isinstance(value, dict | list)}

    def walk(value: Any, top: str, at_top: bool) -> None:
        if isinstance(value, str):
            found.update(re.findall(r"\$\{\.*([A-Za-z_][\w-]*)", value))
        if not at_top and by_id.get(id(value), top) != top:
            found.add(by_id[id(value)])
        for _, item in children(value):
            walk(item, top, False)

    for key, value in tree.items():
        walk(value, key, True)
    return found


def _shown(value: Any) -> str:
    """Format a value in one line."""
    if callable(value) or isinstance(value, Lazy):
        return str(value)
    return write(value, in_one_line=True).strip().removesuffix("...").strip()
