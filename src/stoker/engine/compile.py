"""Compiling a model, whole or block by block, and telling when it is compiled anew."""

import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger

_log = get_logger()

_BLOCKS = "blocks"


def check_compile(how: bool | str, model: nn.Module, device: torch.device) -> None:
    """Refuse what cannot be compiled on this machine, before anything runs."""
    if not how:
        return
    backend = backend_of(how)
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise ValueError(
            f"compile is {how!r}, and torch knows no such backend"
            f"{did_you_mean(backend, [*known, _BLOCKS])} (there is {usual}; or True, or 'blocks' "
            "for the repeated blocks of a model alone)"
        )
    if _is_regional(how) and not repeated_blocks(model):
        raise ValueError(
            f"compile is {how!r}, and {type(model).__name__} has no list with two blocks of one "
            "class (torch's own are none): use compile=True"
        )
    if backend == "inductor" and device.type == "cpu":
        _check_toolchain()
    tell_recompilations()


def _check_toolchain() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise ValueError(
            f"compile needs a C++ compiler, and there is no {compiler} on this machine: install "
            "one, name it by CXX=…, or leave out compile"
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        raise ValueError(
            f"compile needs the headers of Python, and there is no Python.h in '{headers}': "
            "install them (python3-dev), or leave out compile"
        )
    if " " in (home := str(Path(torch.__file__).parent)):
        raise ValueError(
            f"compile links with torch, which torch cannot do from a path with a blank ('{home}'): "
            "install it elsewhere, or leave out compile"
        )


def backend_of(how: bool | str) -> str:
    """The backend of torch.compile: ``True``, ``"eager"``, ``"blocks"`` or ``"blocks:eager"``."""
    if not isinstance(how, str):
        return "inductor"
    return how.removeprefix(_BLOCKS).removeprefix(":") or "inductor" if _is_regional(how) else how


def _is_regional(how: bool | str) -> bool:
    return isinstance(how, str) and how.partition(":")[0] == _BLOCKS


def compiled(model: nn.Module, how: bool | str) -> Callable[..., Any]:
    """The model run through torch.compile; as it is where only its blocks are compiled.

    Beside the module and not in place: ``Module.compile()`` passes over torch's own containers.
    """
    if not how or _is_regional(how):
        return model
    made: Callable[..., Any] = torch.compile(model, backend=backend_of(how))
    return made


def compiled_loss(criterion: Callable[..., Any], how: bool | str) -> Callable[..., Any]:
    """The criterion, likewise, with code of its own.

    Torch keeps what it compiled by code, and its own modules share theirs: a model and a loss of
    torch would use up each other's limit of recompilations.
    """
    if not how or _is_regional(how):
        return criterion

    def loss(*args: Any, **kwargs: Any) -> Any:
        return criterion(*args, **kwargs)

    loss.__code__ = loss.__code__.replace()
    made: Callable[..., Any] = torch.compile(loss, backend=backend_of(how))
    return made


def compile_blocks(model: nn.Module, how: bool | str) -> None:
    """Compile each repeated block by itself: those of one class share what was compiled first."""
    if _is_regional(how):
        for block in repeated_blocks(model):
            block.compile(backend=backend_of(how))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules of one class that stand in a list of the model, twice or more; the outermost."""
    return list(_repeated_in(model))


def _repeated_in(module: nn.Module) -> Iterator[nn.Module]:
    is_list = isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
    children = list(module.children())
    classes = Counter(type(child) for child in children if not _is_torchs(child))
    for child in children:
        if is_list and classes[type(child)] > 1:
            yield child
        else:
            yield from _repeated_in(child)


def _is_torchs(module: nn.Module) -> bool:
    """Whether the class is torch's own, which Module.compile() passes over."""
    return type(module).__module__.startswith("torch.nn.")


class Recompilations:
    """Says when torch compiles code anew that it had compiled, how often it did, and why."""

    def __init__(self) -> None:
        self.count = 0
        self._known = 0

    def __call__(self, compilation: Any) -> None:
        """A compilation is over."""
        from torch._dynamo.utils import guard_failures

        failures = [failure for found in guard_failures.values() for failure in found]
        known = self._known if self._known <= len(failures) else 0  # torch may have forgotten them
        new, self._known = failures[known:], len(failures)
        if not str(compilation.compile_id).endswith("/0") and new:
            self.count += 1
            reasons = dict.fromkeys(_in_short(failure) for failure in new)
            _log.info(
                f"compiled anew ({self.count} so far): {'; '.join(reasons)}",
                ranks=None,
            )


def _in_short(failure: str) -> str:
    """The guard that failed, without its number and where it stands."""
    return failure.splitlines()[0].partition(": ")[2].strip()


def tell_recompilations() -> None:
    """Have recompilations told in this process, once however often it is called."""
    from torch._dynamo.callback import callback_handler

    listening = callback_handler.end_callbacks
    if not any(isinstance(one, Recompilations) for one in listening):
        callback_handler.register_end_callback(Recompilations())
