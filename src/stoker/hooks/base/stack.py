"""What the training thread is doing, read from its stack by another thread."""

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

from stoker.run import Run

_STOKER = str(Path(__file__).parents[2]) + os.sep
_DISTRIBUTED = str(Path(torch.__file__).parent / "distributed") + os.sep
_IMPORTING = "<frozen importlib._bootstrap>"
_COMPILING = ("_dynamo/convert_frame.py", "_inductor/compile_fx.py", "_inductor/codecache.py")
_DEBUGGERS = ("/bdb.py", "/pydevd.py", "/_pydevd_bundle/", "/debugpy/")

_ATTEMPTS = 20
"""How often frames are read that are not complete, as those of a thread that ends."""

_FETCHING = {
    "_train_epoch": "fetching data after step",
    "_validate": "fetching data for the validation after step",
    "predict": "fetching data for a prediction after step",
}
_LABELS = {
    "trainer.py": {
        "_validate": "in the validation after step",
        "predict": "in a prediction after step",
    },
    "resume/manager.py": {
        "_save": "saving after step",
        "restore": "restoring a checkpoint after step",
        "__exit__": "finishing the last save after step",
    },
    "step.py": {"train": "in step"},
}
_PASSES = {
    "forward": "in the forward pass of step",
    "backward": "in the backward pass of step",
    "update": "in the update of step",
}


def outermost_code() -> CodeType:
    """Return the code of the outermost frame of the current thread."""
    return _frames_from(sys._getframe())[0].f_code


def _frames_from(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


class Stack:
    """The frames of a thread, outermost first, at one moment.

    Args:
        thread: the identifier of the thread.
        base: the code of its outermost frame, if known. If the thread leaves a generator meanwhile,
            the callers of that are lost, so the frames are read again until they are complete.
    """

    def __init__(self, thread: int, base: CodeType | None = None) -> None:
        for _ in range(_ATTEMPTS):
            frames = _frames_from(sys._current_frames().get(thread))
            if base is None or not frames or frames[0].f_code is base:
                break
        self._frames = frames
        self._files = [frame.f_code.co_filename for frame in self._frames]

    @property
    def in_trainer(self) -> bool:
        """Whether a trainer is running."""
        return f"{_STOKER}trainer.py" in self._files

    @property
    def waiting(self) -> bool:
        """Whether the innermost call is one of torch's collectives."""
        return bool(self._files) and self._files[-1].startswith(_DISTRIBUTED)

    @property
    def compiling(self) -> bool:
        """Whether it compiles, or imports modules."""
        return any(file == _IMPORTING or file.endswith(_COMPILING) for file in self._files)

    @property
    def in_debugger(self) -> bool:
        """Whether a debugger holds the thread."""
        return any(part in file for file in self._files for part in _DEBUGGERS)

    def where(self, run: Run) -> str:
        """Return what the thread is doing in the run, such as "in the forward pass of step 3"."""
        label, loop = "between two steps, after step", ""
        for frame, file in zip(self._frames, self._files, strict=True):
            name = frame.f_code.co_name
            module = file.removeprefix(_STOKER)
            if module == "trainer.py" and name in _FETCHING:
                loop = name
            if module == "data/feeder.py" and loop:
                label = _FETCHING[loop]
                break
            if module == "hooks/base/dispatch.py" and name in ("fire", "fire_all"):
                label = f"{_hook_at(frame)}, after step"
                break
            label = _LABELS.get(module, {}).get(name, label)
            if label == "in step":
                label = _PASSES.get(name, label)
        in_step = label == "in step" or label in _PASSES.values()
        return f"{label} {run.step + in_step}"


def _hook_at(frame: FrameType) -> str:
    """Return the hook and the point that a call of `HookList.fire` has reached."""
    hooks, call, point = (frame.f_locals.get(name) for name in ("self", "call", "point"))
    hook = hooks.owner(call, point) if hooks is not None and call is not None else None
    return f"in hook {hook.name!r} at {point}" if hook is not None else f"at {point}"
