"""Parameters: optimizer options by pattern, and freezing layers."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from torch import nn

from stoker.core.errors import did_you_mean

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def parameter_groups(
    model: nn.Module,
    options: Mapping[str, Any] | None = None,
    *,
    norms: Mapping[str, Any] | None = None,
    biases: Mapping[str, Any] | None = None,
    named: Mapping[str, Mapping[str, Any]] | None = None,
    patterns: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return the trainable parameters of a model in groups of equal options.

    >>> AdamW(parameter_groups(model, norms={"weight_decay": 0.0}, biases={"weight_decay": 0.0}))

    The optimizer's default applies where an option is None. An `Engine` clips a group with
    ``clip_norm`` separately.

    Args:
        model: the model.
        options: options for all parameters.
        norms: options for parameters of normalization layers.
        biases: options for parameters named "bias", including those of normalization layers.
        named: options by the last part of a parameter's name.
        patterns: options by a pattern of the complete name, such as ``"backbone.*"``; later ones
            override earlier ones. ``"lr_ratio"`` multiplies the ``lr`` in ``options``:
            ``parameter_groups(model, {"lr": 1e-3}, patterns={"backbone.*": {"lr_ratio": 0.1}})``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, expected an nn.Module")
    by_pattern = _by_pattern(model, patterns or {})
    groups: list[dict[str, Any]] = []
    seen: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            norm = norms if isinstance(module, _NORMS) else None
            bias = biases if name == "bias" else None
            merged: dict[str, Any] = {}
            matching = by_pattern.get(f"{path}.{name}".lstrip("."), {})
            for given in (options, norm, bias, (named or {}).get(name), matching):
                merged |= {key: value for key, value in (given or {}).items() if value is not None}
            groups.append({"params": [parameter], **_with_ratio(merged)})
    return merged_groups(groups)


def merged_groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge groups with the same options; see `split_groups` for a parameter in several."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in split_groups(groups):
        options = {key: value for key, value in group.items() if key != "params"}
        merged = found.setdefault(tuple(options.items()), {"params": [], **options})
        merged["params"] += group["params"]
    return list(found.values())


def split_groups(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one group per parameter; options of later groups override those of earlier ones."""
    found: dict[Any, dict[str, Any]] = {}
    for group in groups:
        for parameter in group["params"]:
            found.setdefault(parameter, {}).update({**group, "params": [parameter]})
    return list(found.values())


def _by_pattern(
    model: nn.Module, patterns: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the options of each parameter that a pattern matches."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found: dict[str, dict[str, Any]] = {}
    for pattern, options in patterns.items():
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            top = sorted({name.partition(".")[0] for name in names})
            raise ValueError(
                f"no parameter matches the pattern {pattern!r} (names begin with {', '.join(top)})"
            )
        for name in matching:
            found[name] = found.get(name, {}) | dict(options)
    return found


def _with_ratio(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with ``lr_ratio`` applied to ``lr``."""
    ratio = options.pop("lr_ratio", None)
    if ratio is None:
        return options
    if "lr" not in options:
        raise ValueError("lr_ratio multiplies a learning rate: pass options={'lr': …}, too")
    return options | {"lr": options["lr"] * ratio}


Status: TypeAlias = Literal["frozen", "unfrozen"]

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


class LayerFreezer:
    """Freezes and unfreezes the top-level layers of a model, by name, by index or by slice.

    >>> freezer = LayerFreezer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    >>> freezer.set_slice(-1)           # all but the last
    >>> freezer.show_frozen_layers()
    ['0']
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers = dict(model.named_children())
        self.layer_names = list(self._layers)
        self.layer_count = len(self.layer_names)

    def by_names(self, names: Iterable[str], freeze: bool = True) -> None:
        """Freeze layers by name; a dotted name is a nested layer: ``"encoder.0"``."""
        for layer in [self._named(name) for name in names]:
            layer.requires_grad_(not freeze)

    def by_idx(self, idx: Iterable[int], freeze: bool = True) -> None:
        """Freeze layers by index; negative indices count from the end."""
        for layer in [self._at(index) for index in idx]:
            layer.requires_grad_(not freeze)

    def set_slice(self, slice_num: int | slice, freeze: bool = True) -> None:
        """Freeze the layers before ``slice_num`` (-1: all but the last), or those of a slice."""
        part = slice_num if isinstance(slice_num, slice) else slice(slice_num)
        for layer in list(self._layers.values())[part]:
            layer.requires_grad_(not freeze)

    def set_all(self, freeze: bool = True) -> None:
        """Freeze every parameter of the model."""
        self.model.requires_grad_(not freeze)

    def status(self, layer: str | int) -> list[Status]:
        """Return for each parameter of a layer whether it is frozen."""
        module = self._named(layer) if isinstance(layer, str) else self._at(layer)
        return ["unfrozen" if p.requires_grad else "frozen" for p in module.parameters()]

    def show_frozen_layers(self) -> list[str]:
        """Return the names of the top-level layers that have a frozen parameter."""
        return [name for name in self._layers if "frozen" in self.status(name)]

    def freeze_bn(self, freeze: bool = True) -> None:
        """Put every batch norm into evaluation mode, which freezes its running statistics."""
        for module in self.model.modules():
            if isinstance(module, _BATCH_NORMS):
                module.train(not freeze)

    def _named(self, name: str) -> nn.Module:
        modules = dict(self.model.named_modules())
        if not name or name not in modules:
            raise ValueError(
                f"the model has no layer named {name!r}{did_you_mean(name, modules)} "
                f"(top-level layers: {', '.join(self._layers)})"
            )
        layer: nn.Module = modules[name]
        return layer

    def _at(self, index: int) -> nn.Module:
        layers = list(self._layers.values())
        if not -len(layers) <= index < len(layers):
            raise ValueError(
                f"layer index {index} is out of range: the model has {len(layers)} layers"
            )
        return layers[index]
