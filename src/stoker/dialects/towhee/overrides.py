"""`OverrideStep`: the step of a trainer whose methods a subclass overrides."""

from functools import wraps
from typing import Any

import torch

from stoker import Engine, Output, Run, Step
from stoker.dialects.script_step import model_for

METHODS = (
    "train_step", "compute_loss", "compute_metric", "update_metrics", "evaluate", "evaluate_step",
    "prepare_inputs", "set_train_mode",
)  # fmt: skip
"""The methods that are called for batches, and replace part of the step if overridden."""

_USE_INSTEAD = {
    **dict.fromkeys(("run_train", "_run_train"), "train_step, evaluate or train"),
    "_may_evaluate": "evaluate, or set eval_strategy",
    "_create_logs": "a callback's on_train_begin, which may change the logs",
    "_create_training_summary": "save, or give a model_card",
    "_reset_controller": "a callback's on_epoch_begin",
    "_load_before_train": "load",
    "_get_num_workers": "get_train_dataloader and get_eval_dataloader",
    "get_warmup_steps": "_create_scheduler",
    **dict.fromkeys(
        ("_spawn_train_process", "_init_distributed", "_cleanup_distributed"),
        "nothing: start the script with 'stoker run --nproc N'",
    ),
}
USER_EVALUATION = ["the overridden evaluate"]
"""The only batch of an evaluation by an overridden ``evaluate``."""


def is_user_evaluation(run: Run) -> bool:
    """Return whether an overridden ``evaluate`` is in progress."""
    return run.feeder is not None and run.feeder.loader is USER_EVALUATION


def check_overrides(kind: type) -> None:
    """Reject a subclass with methods of Towhee that Stoker would not call.

    Raises:
        TypeError: Names the method, and what to override instead.
    """
    for name in _USE_INSTEAD.keys() & vars(kind).keys():
        raise TypeError(
            f"{kind.__name__} overrides {name}, which is not called here: override "
            f"{_USE_INSTEAD[name]}"
        )


def only_in_training(set_train_mode: Any) -> Any:
    """Return a ``set_train_mode`` that leaves the model alone during evaluations."""

    @wraps(set_train_mode)
    def guarded(trainer: Any, model: Any) -> None:
        if not trainer.evaluating:
            set_train_mode(trainer, model)

    return guarded


class OverrideStep(Step):
    """A step that calls the overridden methods of a trainer."""

    def __init__(self, owner: Any) -> None:
        self._owner, self.stands_for = owner, type(owner).__name__
        self.measures = owner.owns("compute_metric") or owner.owns("update_metrics")

    def train(self, run: Run) -> bool | None:
        """Run an update, or an overridden ``train_step``."""
        owner, model = self._owner, model_for(run.engine)
        run.batches = [owner.prepare_inputs(run.batches[0])]
        if owner.owns("set_train_mode"):
            owner.set_train_mode(model)
        if not owner.owns("train_step"):
            return super().train(run)
        given = dict(owner.train_step(model, run.batches[0]) or {})
        owner.results(training=True).given = given
        if not run.outputs:
            loss = given.get("step_loss")
            run.add_output(Output(None if loss is None else torch.as_tensor(loss).detach()))
        return True

    def forward(self, engine: Engine, batch: Any) -> Output:
        """Run a batch, or an overridden ``compute_loss``."""
        owner = self._owner
        if not owner.owns("compute_loss"):
            return super().forward(engine, batch)
        owner.seen = None
        loss = owner.compute_loss(model_for(engine), batch)
        return Output(loss, owner.seen, batch[-1] if isinstance(batch, tuple | list) else None)

    def update(self, engine: Engine) -> bool | None:
        """Compute overridden metrics with the weights of the loss, then update."""
        if self.measures:
            owner, run = self._owner, self._owner.ready().run
            given = owner.measured(model_for(engine), run.batches[0], run.loss, training=True)
            owner.results(training=True).given = given
        return super().update(engine)

    def val_forward(self, engine: Engine, batch: Any) -> Output:
        """Run an evaluation batch, or an overridden ``evaluate_step`` or ``evaluate``."""
        owner, model = self._owner, model_for(engine)
        results = owner.results(training=False)
        if batch is USER_EVALUATION[0]:
            given = owner.evaluate(model, owner.logs)
        elif owner.owns("evaluate_step"):
            given = owner.evaluate_step(model, engine.place(batch))
        else:
            inputs = owner.prepare_inputs(batch)
            output = self.forward(engine, inputs)
            if self.measures:
                results.given = owner.measured(model, inputs, output.loss, training=False)
            return output
        results.given = dict(given or {})
        return Output(outputs=results.given)
