"""Compile a model, entirely or block by block, and log recompilations."""

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
    """Raise an error if the model cannot be compiled on this machine."""
    if not how:
        return
    backend = check_backend(how)
    if _is_regional(how) and not repeated_blocks(model):
        raise ValueError(
            f"compile is {how!r}, but {type(model).__name__} has no list with two blocks of one "
            "class (torch's own modules do not count): use compile=True"
        )
    if backend == "inductor" and device.type == "cpu":
        _check_toolchain()
    log_recompilations()


def check_backend(how: bool | str) -> str:
    """Return the torch.compile backend, or raise an error if torch does not have it."""
    if not isinstance(how, bool | str):
        raise TypeError(f"compile is {how!r}, expected True, False or the name of a backend")
    backend = backend_of(how)
    if isinstance(how, bool):
        return backend
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise ValueError(
            f"compile is {how!r}, which is not a torch.compile backend"
            f"{did_you_mean(backend, [*known, _BLOCKS])} (backends: {usual}; or use True, or "
            "'blocks' to compile only the repeated blocks of a model)"
        )
    return backend


def _check_toolchain() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        raise ValueError(
            f"compile needs a C++ compiler, but there is no {compiler} on this machine: install "
            "one, set CXX to its name, or leave out compile"
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        raise ValueError(
            f"compile needs the Python headers, but there is no Python.h in '{headers}': "
            "install them (python3-dev), or leave out compile"
        )
    if " " in (home := str(Path(torch.__file__).parent)):
        raise ValueError(
            f"compile links against torch, which fails from a path with a space ('{home}'): "
            "install torch elsewhere, or leave out compile"
        )


def backend_of(how: bool | str) -> str:
    """Return the torch.compile backend of ``True``, "eager", "blocks" or "blocks:eager"."""
    if not isinstance(how, str):
        return "inductor"
    return how.removeprefix(_BLOCKS).removeprefix(":") or "inductor" if _is_regional(how) else how


def _is_regional(how: bool | str) -> bool:
    return isinstance(how, str) and how.partition(":")[0] == _BLOCKS


def compile_model(model: nn.Module, how: bool | str) -> Callable[..., Any]:
    """Return the model run through torch.compile; unchanged if only its blocks are compiled.

    Not in place: ``Module.compile()`` skips torch's own containers.
    """
    if not how or _is_regional(how):
        return model
    made: Callable[..., Any] = torch.compile(model, backend=backend_of(how))
    return made


def compile_criterion(criterion: Callable[..., Any], how: bool | str) -> Callable[..., Any]:
    """Return the criterion run through torch.compile, with a separate code object.

    Torch caches compiled functions by code object, and its modules share one: a model and a loss
    of torch would use up each other's recompilation limit.
    """
    if not how or _is_regional(how):
        return criterion

    def loss(*args: Any, **kwargs: Any) -> Any:
        return criterion(*args, **kwargs)

    loss.__code__ = loss.__code__.replace()
    made: Callable[..., Any] = torch.compile(loss, backend=backend_of(how))
    return made


def compile_blocks(model: nn.Module, how: bool | str) -> None:
    """Compile each repeated block separately; blocks of one class share the compiled code."""
    if _is_regional(how):
        for block in repeated_blocks(model):
            block.compile(backend=backend_of(how))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that occur at least twice, with one class, in a list."""
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
    """Return whether the class is torch's own, which Module.compile() skips."""
    return type(module).__module__.startswith("torch.nn.")


class RecompilationLogger:
    """Logs each recompilation with the number so far and the reason."""

    def __init__(self) -> None:
        self.count = 0
        self._known = 0

    def __call__(self, compilation: Any) -> None:
        """Log a finished compilation if it was not the first of its code."""
        from torch._dynamo.utils import guard_failures

        failures = [failure for found in guard_failures.values() for failure in found]
        known = self._known if self._known <= len(failures) else 0  # torch may have cleared them
        new, self._known = failures[known:], len(failures)
        if not str(compilation.compile_id).endswith("/0") and new:
            self.count += 1
            reasons = dict.fromkeys(_failed_guard(failure) for failure in new)
            _log.info(
                f"recompiled ({self.count} so far): {'; '.join(reasons)}",
                ranks=None,
            )


def _failed_guard(failure: str) -> str:
    """Return the guard that failed, without its number and location."""
    return failure.splitlines()[0].partition(": ")[2].strip()


def log_recompilations() -> None:
    """Log recompilations in this process; repeated calls have no effect."""
    from torch._dynamo.callback import callback_handler

    callbacks = callback_handler.end_callbacks
    if not any(isinstance(callback, RecompilationLogger) for callback in callbacks):
        callback_handler.register_end_callback(RecompilationLogger())
