"""Cut a model by its list of blocks: what runs before them, the blocks, what runs after them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from stoker.parallel.pipeline.skeleton import call_order


@dataclass(frozen=True)
class BlockList:
    """A model as its list of blocks, and the modules with parameters around them.

    Modules without parameters, such as those that compute rotary tables, and parameters that belong
    directly to a module around the blocks are in no part: every stage has them.

    Args:
        before: the names of the modules that run before the blocks.
        blocks: the names of the blocks, in the order in which they run.
        after: the names of the modules that run after the blocks.
    """

    before: list[str]
    blocks: list[str]
    after: list[str]

    @property
    def parts(self) -> list[str]:
        """The names of all parts in the order in which they run."""
        return [*self.before, *self.blocks, *self.after]

    @property
    def units(self) -> list[list[str]]:
        """The parts in groups that cannot be cut: stages pass on what a block returns.

        The first block stays with what runs before it, and what runs after the blocks stays
        together.
        """
        first, *rest = self.blocks
        units = [[*self.before, first], *([block] for block in rest)]
        return [*units, self.after] if self.after else units


def find_blocks(model: nn.Module, split: Sequence[str] | None = None) -> BlockList | None:
    """Return a model as its longest list of blocks; None if it has no list of two or more.

    Lists within a block, such as its experts, do not count. Lists whose modules are of one class
    take precedence; among equals, the first counts. Other modules run in the order in which they
    are registered, unless a trial shows another one.

    Args:
        model: any model.
        split: the names of parts at which to cut it, which decide if there are several lists.
    """
    found = [
        _around(model, name, blocks)
        for name, blocks in _lists(model, "")
        if len(blocks) > 1  # outermost lists only
    ]
    if not found:
        return None
    named = [one for one in found if split is not None and {*split} <= {*one.parts}]
    chosen = max(named or found, key=lambda one: (_of_one_class(model, one), len(one.blocks)))
    return _as_called(chosen, call_order(model))


def _as_called(found: BlockList, calls: Sequence[str]) -> BlockList:
    """Return the list with modules before or after the blocks as they were called."""
    place = {name: number for number, name in enumerate(calls)}
    if not {*found.blocks} <= place.keys():
        return found
    first, last = place[found.blocks[0]], place[found.blocks[-1]]
    late = [name for name in found.before if place.get(name, -1) > last]
    early = [name for name in found.after if place.get(name, last) < first]
    return BlockList(
        [*(name for name in found.before if name not in late), *early],
        found.blocks,
        [*late, *(name for name in found.after if name not in early)],
    )


def _of_one_class(model: nn.Module, found: BlockList) -> bool:
    return len({type(model.get_submodule(name)) for name in found.blocks}) == 1


def _lists(module: nn.Module, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the outermost lists of modules, with the names of those that have parameters."""
    children = [(key, child) for key, child in module._modules.items() if child is not None]
    held = [f"{name}.{key}".lstrip(".") for key, child in children if _has_parameters(child)]
    if isinstance(module, nn.ModuleList | nn.Sequential) and len(held) > 1:
        yield name, held
        return
    for key, child in children:
        yield from _lists(child, f"{name}.{key}".lstrip("."))


def _around(model: nn.Module, name: str, blocks: list[str]) -> BlockList:
    """Return the blocks with the modules before and after them, in the order in which they run."""
    before: list[str] = []
    after: list[str] = []
    module, prefix = model, ""
    for key in name.split(".") if name else []:
        held = [k for k, child in module._modules.items() if k == key or _has_parameters(child)]
        place = held.index(key)
        before = [*before, *(f"{prefix}{other}" for other in held[:place])]
        after = [*(f"{prefix}{other}" for other in held[place + 1 :]), *after]
        module, prefix = module.get_submodule(key), f"{prefix}{key}."
    return BlockList(before, blocks, after)


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())
