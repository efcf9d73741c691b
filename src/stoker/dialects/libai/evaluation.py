"""Evaluators, and evaluation of a dataset."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Output, Run, Step, Trainer, events, metrics
from stoker.core import dist

_log = logging.getLogger("libai.evaluation")


class DatasetEvaluator:
    """Evaluate a model on a dataset: `reset`, `process` each batch, `evaluate`."""

    def reset(self) -> None:
        """Discard all batches."""

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add a batch and its outputs."""

    def evaluate(self) -> Any:
        """Return the results by name; they may be nested."""


class DatasetEvaluators(DatasetEvaluator):
    """Combine several evaluators; their results must have different names."""

    def __init__(self, evaluators: Iterable[DatasetEvaluator]) -> None:
        self._evaluators = list(evaluators)

    def reset(self) -> None:
        """Discard all batches."""
        for one in self._evaluators:
            one.reset()

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add a batch."""
        for one in self._evaluators:
            one.process(inputs, outputs)

    def evaluate(self) -> dict[str, Any]:
        """Return the results of all evaluators."""
        found: dict[str, Any] = {}
        for one in self._evaluators:
            for name, value in (one.evaluate() or {}).items():
                if name in found:
                    raise ValueError(f"two evaluators return {name!r}: rename one of the results")
                found[name] = value
        return found


class ClsEvaluator(DatasetEvaluator):
    """Report ``Acc@k`` in percent, from "prediction_scores" and "labels"."""

    def __init__(self, topk: tuple[int, ...] = (1, 5)) -> None:
        self._topk = topk
        self.reset()

    def reset(self) -> None:
        """Discard all batches."""
        self._hits, self._total = dict.fromkeys(self._topk, 0), 0

    def process(self, inputs: Any, outputs: Any) -> None:
        """Count a batch."""
        scores, labels = outputs["prediction_scores"], inputs["labels"]
        for k in self._topk:
            best = scores.topk(min(k, scores.shape[1]), 1).indices
            self._hits[k] += int((best == labels[:, None]).sum())
        self._total += len(labels)

    def evaluate(self) -> dict[str, float]:
        """Return the accuracies."""
        return {f"Acc@{k}": 100 * hits / max(1, self._total) for k, hits in self._hits.items()}


class RegEvaluator(DatasetEvaluator):
    """Report the Pearson and Spearman correlations of "prediction_scores" and "labels"."""

    def reset(self) -> None:
        """Discard all batches."""
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add a batch."""
        self._pairs.append((outputs["prediction_scores"].flatten(), inputs["labels"].flatten()))

    def evaluate(self) -> dict[str, float]:
        """Return the correlations and their mean."""
        both = torch.stack([torch.cat(one).double() for one in zip(*self._pairs, strict=True)])
        ranks = torch.stack([_ranks(one) for one in both])
        pearson, spearman = (float(torch.corrcoef(one)[0, 1]) for one in (both, ranks))
        return {"pearson": pearson, "spearman": spearman, "corr": (pearson + spearman) / 2}


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value; ties get the mean of their ranks."""
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    places: Tensor = last - (counts - 1) / 2
    return places[group]


class PPLEvaluator(DatasetEvaluator):
    """Report the perplexity: the exponential of the mean of each loss over all samples."""

    def reset(self) -> None:
        """Discard all batches."""
        self._means: dict[str, metrics.Mean] = {}

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add the losses of a batch."""
        size = next(iter(inputs.values())).shape[0]
        for name, loss in outputs.items():
            if "loss" in name:
                self._means.setdefault(name, metrics.Mean()).update(loss, size)

    def evaluate(self) -> dict[str, float]:
        """Return ``PPL``, or ``PPL/<loss>`` if there are several losses."""
        several = len(self._means) > 1
        found = {name: torch.as_tensor(one.compute()) for name, one in self._means.items()}
        return {f"PPL/{n}" if several else "PPL": float(mean.exp()) for n, mean in found.items()}


class _EvaluatorHook(Hook):
    """Pass the batches of all processes to an evaluator on rank 0."""

    same_on_all_ranks = True

    def __init__(self, evaluator: DatasetEvaluator) -> None:
        self._evaluator = evaluator

    def after_val_step(self, run: Run) -> None:
        seen = None
        if run.outputs and run.sizes[0]:
            seen = (run.outputs[-1].targets, run.outputs[-1].outputs)
        for pair in dist.all_gather_object(seen):
            if pair is not None and dist.is_main():
                self._evaluator.process(*pair)


class _EvalStep(Step):
    """Run the model with a batch as keyword arguments."""

    def __init__(self, get_batch: Callable[..., Any], device: str) -> None:
        self._get_batch, self._device = get_batch, device

    def val_forward(self, engine: Engine, batch: Any) -> Output:
        inputs = self._get_batch(batch, self._device)
        return Output(outputs=engine(**inputs), targets=inputs)


def inference_on_dataset(
    model: nn.Module,
    data_loader: Any,
    batch_size: int,
    eval_iter: int,
    get_batch: Callable[..., Any],
    input_placement_device: str = "cuda",
    evaluator: DatasetEvaluator | None = None,
) -> Any:
    """Evaluate a model on at most ``eval_iter`` batches without changing random states.

    The model is in evaluation mode meanwhile, and afterwards as before, whatever happens.
    ``batch_size`` is that of all processes together, for the log.
    """
    chosen = evaluator or DatasetEvaluator()
    engine = _engine_of(model) or Engine(model, device=device_of(input_placement_device))
    trainer = Trainer(
        engine, [_EvaluatorHook(chosen)], step=_EvalStep(get_batch, input_placement_device)
    )
    length = len(data_loader) if hasattr(data_loader, "__len__") else None
    limit = int(eval_iter) if length is None else min(int(eval_iter), length)
    _log.info(f"evaluating {length or 'a stream of'} batches of {batch_size}, at most {limit}")
    chosen.reset()
    trainer.evaluate(data_loader, limit_batches=limit)
    with dist.alone():
        results = chosen.evaluate() if dist.is_main() else None
    return dist.broadcast_object(results, 0) or {}


def _engine_of(model: nn.Module) -> Engine | None:
    """Return the engine that trains the model, if a run is in progress."""
    with suppress(RuntimeError):
        engine = getattr(events.get_event_storage(), "engine", None)
        return engine if engine is not None and engine.model is model else None
    return None


def device_of(placement: str) -> str:
    """Return the device: "cuda" if available."""
    return "auto" if placement == "cuda" else placement


def flatten_results_dict(results: Mapping[str, Any]) -> dict[str, float]:
    """Return nested results with names such as ``a/b/c``."""
    flat: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": one for key, one in flatten_results_dict(value).items()}
        else:
            flat[name] = value
    return flat


def print_csv_format(results: Mapping[str, Any]) -> None:
    """Log the names and the values of results as two lines to copy."""
    flat = flatten_results_dict(results)
    _log.info(f"copypaste: {','.join(flat)}")
    _log.info(f"copypaste: {','.join(f'{value:.4f}' for value in flat.values())}")
