"""Stages of a model that is cut by its list of blocks: each runs the model's own ``forward``.

A model does more than run its blocks: it makes masks and rotary tables, adds positions, computes a
loss. So every stage calls the complete model, with the arguments of the micro-batch. Modules of
other stages are replaced: those before return blank tensors of the shapes they would return, the
last block before the stage returns what the previous stage has sent, and the model is left after
the last block of the stage. The first micro-batch of a shape runs on trial, to find these shapes
and to check that nothing depends on the blank tensors.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from stoker.core.out_of_memory import is_out_of_memory
from stoker.core.tree import describe, map_tensors, tensors
from stoker.parallel.pipeline.placeholder_trace import PlaceholderTrace, memory_of
from stoker.parallel.pipeline.stage_plan import stage_of
from stoker.parallel.pipeline.stages import Answers, Call, RemoteModule, Stage


class _LeaveModel(BaseException):
    """Leaves the model after the last block of a stage."""

    def __init__(self, output: Any) -> None:
        self.output = output


@dataclass
class _Run:
    """One run of the model in a stage.

    Args:
        stage: the stage.
        received: what the previous stage has sent.
        answers: what the parts of earlier stages return.
        trace: notes what depends on blank tensors, in a trial run.
    """

    stage: "BlockStage"
    received: Sequence[Tensor]
    answers: Answers
    trace: PlaceholderTrace | None
    calls: Counter[str] = field(default_factory=Counter)

    def answer(self, name: str) -> Any:
        """Return what the part of another stage returns to the model."""
        known = self.answers.get(name, []) if name in self.stage.before else []
        number = self.calls[name]
        self.calls[name] += 1
        if number >= len(known):
            raise ValueError(self._misplaced(name, has_run=bool(known)))
        if name == self.stage.entry:
            values = iter(self.received)
            return map_tensors(lambda _: next(values), known[number])
        return map_tensors(lambda blank: self._blank(blank, name), known[number])

    def _blank(self, like: Tensor, name: str) -> Tensor:
        made = torch.zeros(like.shape, dtype=like.dtype, device=self.received[0].device)
        if self.trace is not None:
            self.trace.add(made, name)
        return made

    def _misplaced(self, name: str, *, has_run: bool) -> str:
        if has_run:
            return (
                f"{name!r} runs in an earlier pipeline stage and again in stage "
                f"{self.stage.index}: a part runs in one stage, so give the second use a module of "
                "its own, which may share the weights"
            )
        if name in self.stage.blocks and name not in self.stage.before:
            return self.stage.not_run(self.stage.last)
        order = ("before", "after") if name in self.stage.before else ("after", "before")
        return (
            f"{name!r} is registered {order[0]} the blocks of the model, but runs {order[1]} some "
            f"of them: create it {order[1]} the blocks in __init__, or name the parts in the order "
            "in which they run in pipeline_parts"
        )


class Runs:
    """What the placeholders of a model share.

    Attributes:
        current: the run that answers their calls; None outside of a stage.
        read: the attributes that were read from them.
    """

    def __init__(self) -> None:
        self.current: _Run | None = None
        self.read: set[str] = set()


class SkippedModule(RemoteModule):
    """A placeholder for a part that does not run here, with the attributes of the part.

    Args:
        twin: the part, or a copy without memory.
        runs: the run that answers its calls.
        name: its name in the model.
        remote: the other arguments of `RemoteModule`.
    """

    def __init__(self, twin: nn.Module, runs: Runs, name: str, *remote: Any) -> None:
        super().__init__(name, *remote)
        self._name, self._runs = name, runs
        self._twin = (twin,)  # in a tuple, so that it is not a submodule

    def __getattr__(self, name: str) -> Any:
        if "_twin" not in self.__dict__:
            return super().__getattr__(name)
        self._runs.read.add(name)
        return getattr(self._twin[0], name)

    def __bool__(self) -> bool:
        return bool(self._twin[0])

    def __len__(self) -> int:
        return len(self._twin[0])  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        raise ValueError(
            f"the model takes an element of {self._name!r}, which is in another pipeline stage: "
            "modules that run between the blocks must belong to a block, so use another layout"
        )

    def trace_by(self, trace: PlaceholderTrace) -> None:
        """Note that the tensors of the twin have no values."""
        for tensor in (*self._twin[0].parameters(), *self._twin[0].buffers()):
            trace.add_weight(tensor, self._name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the part would return, without its values."""
        if self._runs.current is None:
            return super().forward(*args, **kwargs)
        return self._runs.current.answer(self._name)


class _LastBlock(nn.Module):
    """The last block of a stage, which leaves the model with its output."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._block = (block,)  # in a tuple, so that it is not a submodule
        for own in ("_parameters", "_buffers", "_modules"):
            self.__dict__[own] = getattr(block, own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_block"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block and leave the model."""
        raise _LeaveModel(self._block[0](*args, **kwargs))


class BlockStage(Stage):
    """Consecutive parts of a model, run by the model's own ``forward``.

    Args:
        index: the number of the stage.
        plan: the names of all parts, stage by stage.
        blocks: the names of all blocks, in order.
        model: the complete model.
        runs: shared with the placeholders in the model.

    Attributes:
        before: the names of the parts of earlier stages.
        blocks: the names of all blocks.
        entry: the last block before the stage; None for the first stage.
        last: the last block of the stage; None for the last stage.
    """

    needs_call = True

    def __init__(
        self,
        index: int,
        plan: Sequence[Sequence[str]],
        blocks: Sequence[str],
        model: nn.Module,
        runs: Runs,
    ) -> None:
        super().__init__(index, [model.get_submodule(name) for name in plan[index]])
        before = [name for parts in plan[:index] for name in parts]
        self.before, self.blocks = frozenset(before), frozenset(blocks)
        self.entry = next((name for name in reversed(before) if name in blocks), None)
        self._names, self._runs = plan[index], runs
        self._model = (model,)  # in a tuple, so that it is not a submodule
        self._replaced: list[tuple[dict[str, Any], str, nn.Module]] = []
        self._answers: Answers = {}
        self._trace: PlaceholderTrace | None = None
        self._copies = False
        self.last: str | None = None
        if index < len(plan) - 1:
            self.last = next(name for name in reversed(self._names) if name in blocks)
            self.replace(self.last, _LastBlock(model.get_submodule(self.last)))
        saved = model.state_dict(keep_vars=True)
        self._shared_buffers = {
            name: buffer
            for name, buffer in model.named_buffers()
            if name in saved and stage_of(name, plan) is None
        }

    def replace(self, name: str, module: nn.Module) -> None:
        """Let another module stand for the part of that name while the stage runs."""
        parent, _, key = name.rpartition(".")
        self._replaced.append((self._model[0].get_submodule(parent)._modules, key, module))

    def arguments(self, received: Sequence[Tensor], call: Call | None, answers: Answers) -> Call:
        """Return the arguments of the stage for a micro-batch."""
        return (tuple(received) if self.index else (), {"call": call, "answers": answers})

    def forward(self, *received: Tensor, call: Call, answers: Answers) -> Any:
        """Call `run` as the engine has prepared it, with its precision and device."""
        self._answers = answers
        return self.prepared(received, call)

    def run(self, received: Sequence[Tensor], call: Call) -> Any:
        """Return the output of the last block as a tuple of tensors, or that of the model."""
        model, (args, kwargs) = self._model[0], call
        if self._copies:
            received = [value.clone() for value in received]
        run = _Run(self, received, self._answers, self._trace)
        with self._installed(run):
            try:
                output = model(*args, **_without_cache(model, kwargs))
                skipped = self.last or self.entry
            except _LeaveModel as left:
                output, skipped = tuple(tensors(left.output)), self.entry
        if skipped is not None and not run.calls[skipped]:
            raise ValueError(self.not_run(skipped))
        if run.trace is not None:
            self._check_sources(run.trace, output)
        return output

    def not_run(self, block: str | None) -> str:
        """Return the error for a block at the border of the stage that the model has left out."""
        return (
            f"{type(self._model[0]).__name__} did not run its block {block!r}: in a pipeline every "
            "block runs for every micro-batch (turn off layer dropout)"
        )

    @contextmanager
    def _installed(self, run: _Run) -> Iterator[None]:
        """Within this context, other modules stand for parts of the model."""
        before = [(modules, key, modules[key]) for modules, key, _ in self._replaced]
        self._runs.current = run
        try:
            for modules, key, module in self._replaced:
                modules[key] = module
            yield
        finally:
            self._runs.current = None
            for modules, key, module in before:
                modules[key] = module

    def probe(
        self, received: Sequence[Tensor], call: Call | None, answers: Answers
    ) -> tuple[Any, Answers]:
        """Return the output for a micro-batch, and what each part of the stage has returned.

        Raises:
            ValueError: the stage needs values that only another stage has.
        """
        model = self._model[0]
        assert call is not None
        _check_collected(model, call[1])
        self._trace = trace = PlaceholderTrace()
        for module in model.modules():
            if isinstance(module, SkippedModule):
                module.trace_by(trace)
        before = [dict(vars(part)) for part in self.parts]
        buffers = {name: buffer.clone() for name, buffer in self._shared_buffers.items()}
        try:
            with _recorded(dict(zip(self._names, self.parts, strict=True))) as learned, trace:
                output, _ = super().probe(received, call, answers)
        except (AttributeError, LookupError, RuntimeError, TypeError) as error:
            if self.index == 0 or is_out_of_memory(error):
                raise
            raise ValueError(
                f"pipeline stage {self.index} of {type(model).__name__} failed in a trial "
                f"({type(error).__name__}: {str(error).partition(chr(10))[0]}): if the model runs "
                "in one process, it reads more from other stages than what the last block before "
                "this stage returns, so cut another list of blocks by split, or use another layout"
            ) from error
        finally:
            self._trace = None
        # torch rejects a change in place of what a stage has received, a leaf that requires grad
        self._copies |= any(value._version for value in received)
        self._check_attributes(before)
        self._check_buffers(buffers)
        return output, learned

    def _check_sources(self, trace: PlaceholderTrace, output: Any) -> None:
        """Reject an output that depends on values of another stage."""
        source = trace.read or trace.source_of(tensors(output))
        if source is not None:
            raise ValueError(
                f"pipeline stage {self.index} of {type(self._model[0]).__name__} needs the output "
                f"or a weight of {source!r}, which is in another stage: a stage gets only what the "
                "last block before it returns, so let the blocks pass it on, or use another layout"
            )

    def _check_attributes(self, before: list[dict[str, Any]]) -> None:
        """Reject a model that reads what its blocks have stored in attributes."""
        for part, old in zip(self.parts, before, strict=True):
            now = vars(part)
            for name in sorted(self._runs.read & now.keys()):
                if name not in old or now[name] is not old[name]:
                    raise ValueError(
                        f"{type(self._model[0]).__name__} reads the attribute {name!r} that "
                        f"{type(part).__name__} sets when it runs, but other processes run some of "
                        "them: let the blocks return it, or use another layout"
                    )

    def _check_buffers(self, before: dict[str, Tensor]) -> None:
        """Reject saved buffers that change and would be changed by every stage."""
        for name, buffer in self._shared_buffers.items():
            if not torch.equal(buffer, before[name]):
                raise ValueError(
                    f"buffer {name!r} changes when the model runs, but is in a module without "
                    "parameters, which every pipeline stage runs: use another layout"
                )


@contextmanager
def _recorded(parts: Mapping[str, nn.Module]) -> Iterator[Answers]:
    """Within this context, note what these modules return, as tensors without memory.

    Raises:
        ValueError: what a module returns, or leaves in its arguments, is not the same in every
            stage.
    """
    learned: Answers = {}
    marks: dict[str, list[tuple[Any, int]]] = {}

    def begin(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor | list | dict | set)]
        marks[name] = [(value, _mark(value)) for value in found]

    def record(name: str, output: Any) -> None:
        kinds = (Tensor, bool, int, str, type(None))
        for value in tree_leaves(output):
            if not isinstance(value, kinds) and not is_dataclass(value):
                raise ValueError(
                    f"{name!r} returned a {type(value).__name__}, which another stage of a "
                    "pipeline would not get: expected tensors"
                )
        returned = {memory_of(value) for value in tensors(output)}
        for value, mark in marks[name]:
            returns = isinstance(value, Tensor) and memory_of(value) in returned
            if _mark(value) != mark and not returns:
                raise ValueError(
                    f"{name!r} changes one of its arguments, {describe(value)}, in place, which "
                    "other stages of a pipeline do not see: let it return what it computes"
                )
        blank = map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), output)
        learned.setdefault(name, []).append(blank)

    with ExitStack() as stack:
        for name, part in parts.items():
            before = part.register_forward_pre_hook(
                lambda _, args, kwargs, name=name: begin(name, args, kwargs), with_kwargs=True
            )
            after = part.register_forward_hook(lambda _, __, out, name=name: record(name, out))
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield learned


def _mark(value: Any) -> int:
    """Return a number that changes when a tensor, or the length of a container, changes."""
    return value._version if isinstance(value, Tensor) else len(value)


def _without_cache(model: nn.Module, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a transformers model without a cache of keys and values.

    Models make one by default, but a stage has only that of its own blocks.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "use_cache") and not _passes_cache_on(model, config):
        return kwargs
    if kwargs.get("use_cache"):
        raise ValueError(
            "use_cache is True, but each stage of a pipeline has the keys and values of its own "
            "blocks only: leave use_cache out"
        )
    return {**kwargs, "use_cache": False}


def _passes_cache_on(model: nn.Module, config: Any) -> bool:
    """Return whether a part of the model makes the cache, and the model takes its option."""
    if not hasattr(getattr(config, "text_config", None), "use_cache"):
        return False
    taken = inspect.signature(type(model).forward).parameters
    return "use_cache" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())


def _check_collected(model: nn.Module, kwargs: Mapping[str, Any]) -> None:
    """Reject outputs that a transformers model collects from all of its blocks."""
    for module in model.modules():
        for key in getattr(module, "_can_record_outputs", None) or ():
            option = f"output_{key}"
            if kwargs.get(option, getattr(getattr(module, "config", None), option, False)):
                raise ValueError(
                    f"{option} is on, but the stages of a pipeline have the {key} of their own "
                    f"blocks only: turn {option} off, or use another layout"
                )
