"""Weigh batches by their targets: a loss that ignores some is a mean over the others."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.core.log import get_logger
from stoker.core.types import Batch
from stoker.parallel import ParallelModel

_log = get_logger()

_IGNORED = -100
"""The target that torch's losses, and models with a loss of their own, ignore by default."""

_count_modes = torch._C._len_torch_function_stack
_to_numpy = torch._C.TensorBase.numpy  # in a fifth of the time, if no mode counts its calls
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_FORWARDS = (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)


def _second(batch: Batch) -> Any:
    """Return the targets of a pair."""
    return batch[1] if isinstance(batch, (tuple, list)) and len(batch) == 2 else None


@dataclass(slots=True)
class TargetWeight:
    """The weight of targets in the mean that a criterion, or a model, returns: what it divides by.

    That is the number of targets that are not ignored, or with weights of classes the sum of
    those. Batches that are weighed by it train like one large batch, however they are padded.

    Args:
        options: returns the ``ignore_index`` and the weights of classes, as they are now.
        targets: returns the targets in a batch.
    """

    options: Callable[[], tuple[int, Tensor | None]]
    targets: Callable[[Batch], Any] = _second
    _key: tuple[int, int] | None = None
    _values: Any = None

    def of(self, batch: Batch) -> float | None:
        """Return the weight of a batch; None if the loss is not a mean over class indices.

        Targets on another device than the CPU are not counted, since that would wait for it.
        """
        targets = self.targets(batch)
        if not _are_indices(targets):
            return None
        ignored, weights = self.options()
        found = _as_array(targets)
        if weights is not None:
            return float(self._read(weights)[found[found != ignored]].sum())
        if not found.size or (ignored < 0 and np.minimum.reduce(found, None) >= 0):
            return int(found.size)  # in half the time
        return int(np.count_nonzero(found != ignored))

    def _read(self, weights: Tensor) -> Any:
        """Return the weights of classes, read from their device only when they have changed."""
        key = (id(weights), weights._version)
        if self._key != key:
            self._key, self._values = key, weights.detach().double().cpu().numpy()
        return self._values


def target_weight(criterion: Any, model: Any = None) -> TargetWeight | None:
    """Return how one of torch's losses for class indices weighs targets; None for any other.

    Without a criterion, the loss is that of a model of transformers, with adapters of peft or not.
    """
    if criterion is None:
        shift = _label_shift(_without_adapters(getattr(model, "_orig_mod", model)))
        return None if shift is None else TargetWeight(_defaults, partial(_labels, shift))
    if type(criterion).__call__ is nn.Module.__call__ and type(criterion).forward in _FORWARDS:
        if criterion.reduction != "mean":
            return None
        return TargetWeight(lambda: (criterion.ignore_index, criterion.weight))
    function, given = criterion, {}
    if isinstance(criterion, partial) and not criterion.args:
        function, given = criterion.func, criterion.keywords
    if all(function is not one for one in _FUNCTIONS) or given.get("reduction", "mean") != "mean":
        return None
    if {"size_average", "reduce"} & given.keys():
        return None
    return TargetWeight(lambda: (given.get("ignore_index", _IGNORED), given.get("weight")))


def _defaults() -> tuple[int, None]:
    return _IGNORED, None


_CLASSIFIERS = (
    "ForMaskedLM",
    "ForTokenClassification",
    "ForSequenceClassification",
    "ForImageClassification",
)


def _label_shift(model: Any) -> int | None:
    """Return how many labels of each sequence the loss of a transformers model leaves out.

    None if the model is not known to return the mean over its labels.
    """
    if not hasattr(model, "loss_function") or not hasattr(model, "config"):
        return None
    name, encodes = type(model).__name__, getattr(model.config, "is_encoder_decoder", False)
    if name.endswith(("ForCausalLM", "LMHeadModel")) and not encodes:
        return _causal_shift(type(model))
    counts_all = name.endswith(_CLASSIFIERS) or (encodes and name.endswith("ConditionalGeneration"))
    return 0 if counts_all else None


def _causal_shift(kind: type) -> int | None:
    """Return how many labels the loss of a class of causal models leaves out.

    The loss of transformers predicts the next token, so that the first label does not count. Some
    decoders, such as that of BART, compute a loss of their own over all labels instead.
    """
    for base in kind.__mro__:
        code = getattr(inspect.unwrap(vars(base).get("forward", _defaults)), "__code__", None)
        names = {*code.co_names, *code.co_varnames} if code is not None else set()
        if "loss_function" in names or any("shift" in name for name in names):
            return 1
        if names & {"CrossEntropyLoss", "cross_entropy"}:
            return 0
        if "forward" in vars(base) and "super" not in names:
            return None
    return None


def _without_adapters(model: Any) -> Any:
    """Return the model that a model of peft adapts; the same one if it adds tokens to batches."""
    configs, base = getattr(model, "peft_config", None), getattr(model, "get_base_model", None)
    if not isinstance(configs, Mapping) or not callable(base):
        return model
    adds_tokens = any(getattr(one, "is_prompt_learning", True) for one in configs.values())
    return model if adds_tokens else base()


def _labels(shift: int, batch: Batch) -> Any:
    """Return the labels that count; None if the batch says what to divide the loss by."""
    if not isinstance(batch, Mapping) or "num_items_in_batch" in batch:
        return None
    labels = batch.get("labels")
    return labels[..., shift:] if shift and isinstance(labels, Tensor) and labels.ndim else labels


@dataclass(slots=True)
class StepWeights:
    """The weights of the batches of a step.

    Args:
        batches: the weight of each batch in this process; 0 for a padding batch.
        expected: their sum on a rank that has an even share of it, or an estimate of that.
        total: returns that sum if ``expected`` is an estimate, so that gradients can be corrected.
        weigh: returns the weight of a part of a batch; None if it follows from its samples.
    """

    batches: Sequence[float]
    expected: float
    total: Callable[[], float] | None = None
    weigh: Callable[[Batch], float | None] | None = None


def weigh_batches(
    weigh: TargetWeight,
    batches: Sequence[Batch],
    sizes: Sequence[int],
    expected: float,
    model: ParallelModel,
) -> StepWeights:
    """Return the weights of the batches of a step. All ranks must call it.

    Where there is one target per sample, few are ignored: the samples are an estimate, and the
    sum of the weights arrives during the forward pass. Otherwise all ranks wait for the sum.

    Args:
        weigh: weighs the targets of a batch.
        batches: the batches of this process.
        sizes: the number of samples in each; 0 for a padding batch.
        expected: the samples of the step on a rank that has an even share of them.
        model: adds the weights over all ranks.
    """
    if len(batches) == 1 and model.data_ranks == 1 and model.logical_ranks is None:
        weight = weigh.of(batches[0])
        if weight and sizes[0]:
            return StepWeights((weight,), float(weight), None, weigh.of)
        return StepWeights(sizes, expected)
    weights = [weigh.of(batch) for batch in batches]
    if model.logical_ranks is not None:
        return _weigh_logical(weigh, weights, sizes, expected, model)
    if None in weights:
        return StepWeights(sizes, expected)
    known = [w if w and size else 0 for w, size in zip(weights, sizes, strict=True)]
    total = float(sum(known))
    if model.data_ranks > 1:
        wait = model.start_mean(known)
        if weigh.targets(batches[0]).ndim < 2:
            return StepWeights(known, expected, wait, weigh.of)
        total = wait()
    return StepWeights(known, total, None, weigh.of) if total else StepWeights(sizes, expected)


def _weigh_logical(
    weigh: TargetWeight,
    weights: Sequence[float | None],
    sizes: Sequence[int],
    expected: float,
    model: ParallelModel,
) -> StepWeights:
    """Return the weights of the batches of logical ranks, of which a process may have none."""
    unknown = float("nan")
    known = [unknown if weight is None else weight for weight in weights]
    total = model.start_mean(known)()
    if not total > 0:  # a weight is unknown somewhere, or there are none
        return StepWeights(sizes, expected)
    return StepWeights(known, total, None, weigh.of)


def has_ignored(batches: Sequence[Batch]) -> bool:
    """Return whether there are targets that losses ignore by default, as far as they show."""
    for batch in batches:
        targets = batch[1] if isinstance(batch, (tuple, list)) and len(batch) == 2 else None
        if isinstance(batch, Mapping):
            targets = batch.get("labels", batch.get("targets"))
        if _are_indices(targets) and targets.numel() and _as_array(targets).min() == _IGNORED:
            return True
    return False


def warn_about_ignored(data_ranks: int, batches: int) -> None:
    """Warn that targets are ignored in a loss whose weight Stoker cannot know."""
    split = f"{batches} batches per step" if batches > 1 else "micro-batches"
    split = f"{data_ranks} data ranks" if data_ranks > 1 else split
    _log.warning(
        f"some targets are {_IGNORED}, which losses ignore, but a batch is weighed by its samples, "
        f"so that with {split} the gradients are not those of one large batch: return "
        "Output(loss, weight=…) from a step, with the number of targets that count as the weight"
    )


def _as_array(targets: Tensor) -> Any:
    """Return targets in host memory as an array; reading them waits for no device.

    They were never on another device, unlike the values whose reads the cost report counts.
    """
    return np.from_dlpack(targets) if _count_modes() else _to_numpy(targets)


def _are_indices(targets: Any) -> TypeGuard[Tensor]:
    return isinstance(targets, Tensor) and targets.is_cpu and targets.dtype in _INTEGERS
