"""Evaluators, and evaluation of a dataset."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from stoker import Engine, Hook, Output, Run, Step, Trainer, events, metrics
from stoker.core import dist
from stoker.dialects.libai.adapter import apply
from stoker.dialects.libai.distributed import device
from stoker.dialects.script_step import call

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


class _Collecting(DatasetEvaluator):
    """Collect pairs: one of the inputs, and one of the outputs."""

    names: tuple[str, str]

    def reset(self) -> None:
        """Discard all batches."""
        self._pairs: list[tuple[Any, Any]] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add a batch."""
        self._pairs.append((inputs[self.names[0]], outputs[self.names[1]]))


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


class RegEvaluator(_Collecting):
    """Report the Pearson and Spearman correlations of "prediction_scores" and "labels"."""

    names = ("labels", "prediction_scores")

    def evaluate(self) -> dict[str, float]:
        """Return the correlations and their mean."""
        from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

        columns = zip(*self._pairs, strict=True)
        both = [torch.cat([one.flatten() for one in part]).double() for part in columns]
        pearson, spearman = float(pearson_corrcoef(*both)), float(spearman_corrcoef(*both))
        return {"pearson": pearson, "spearman": spearman, "corr": (pearson + spearman) / 2}


class BLEUEvaluator(_Collecting):
    """Report ``bleu_score`` of the tokens in "candidate" against those in "reference" (nltk)."""

    names = ("reference", "candidate")

    def evaluate(self) -> dict[str, float]:
        """Return the score of all candidates together."""
        from nltk.translate.bleu_score import corpus_bleu

        return {"bleu_score": float(corpus_bleu(*map(list, zip(*self._pairs, strict=True))))}


class PPLEvaluator(DatasetEvaluator):
    """Report the perplexity: the exponential of the mean of each loss over all samples."""

    def reset(self) -> None:
        """Discard all batches."""
        self._means: dict[str, metrics.Mean] = {}

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add the losses of a batch."""
        size = next(iter(inputs.values())).shape[0]
        for name, loss in outputs.items():
            self._means.setdefault(name, metrics.Mean()).update(loss, size)

    def evaluate(self) -> dict[str, float]:
        """Return ``<loss>_PPL`` for each loss, at most exp(20)."""
        found = {name: torch.as_tensor(one.compute()) for name, one in self._means.items()}
        return {f"{name}_PPL": float(mean.clamp(max=20).exp()) for name, mean in found.items()}


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

    def __init__(self, get_batch: Callable[..., Any], device: str, build: Any) -> None:
        self._get_batch, self._device, self._build = get_batch, device, build

    def val_forward(self, engine: Engine, batch: Any) -> Output:
        inputs = call(self._get_batch, batch, self._device)
        return Output(outputs=apply(self._build or engine, inputs), targets=inputs)


def inference_on_dataset(
    model: Any,
    data_loader: Any,
    batch_size: int,
    eval_iter: float,
    get_batch: Callable[..., Any],
    input_placement_device: str = "cuda",
    evaluator: DatasetEvaluator | Sequence[DatasetEvaluator] | None = None,
) -> Any:
    """Evaluate a model on at most ``eval_iter`` batches without changing random states.

    The model is in evaluation mode meanwhile, and afterwards as before, whatever happens.
    ``model`` is a module or a graph of one; ``batch_size`` is that of all processes together, for
    the log.
    """
    chosen = DatasetEvaluators(evaluator) if isinstance(evaluator, Sequence) else evaluator
    chosen = chosen or DatasetEvaluator()
    graph = None if isinstance(model, nn.Module) else model
    module, backend = model if graph is None else graph.model, getattr(graph, "backend", False)
    engine = _engine_of(module) or Engine(module, device=device(), compile=backend)
    build = None if graph is None or getattr(graph, "is_stock", False) else graph
    step = _EvalStep(get_batch, input_placement_device, build)
    trainer = Trainer(engine, [_EvaluatorHook(chosen)], step=step)
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
