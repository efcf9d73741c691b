"""Train an operator, or any object with a model."""

from pathlib import Path
from typing import Any

from torch import nn

from stoker.dialects.towhee.trainer import Trainer
from stoker.dialects.towhee.training_config import TrainingConfig


def setup_trainer(
    operator: Any,
    training_config: TrainingConfig | None = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    train_dataloader: Any = None,
    eval_dataloader: Any = None,
    model_card: Any = None,
) -> Trainer:
    """Return the trainer of an object with a ``model`` (or ``_model``), which is built once."""
    given = {
        "configs": training_config,
        "train_dataset": train_dataset,
        "eval_dataset": eval_dataset,
        "train_dataloader": train_dataloader,
        "eval_dataloader": eval_dataloader,
        "model_card": model_card,
    }
    trainer: Trainer | None = getattr(operator, "_trainer", None)
    if trainer is None:
        model = getattr(operator, "model", None) or getattr(operator, "_model", None)
        if not isinstance(model, nn.Module):
            kind = type(operator).__name__
            raise TypeError(f"{kind} has no 'model' to train, expected a torch module, got {model}")
        trainer = operator._trainer = Trainer(model, training_config)
    for name, value in given.items():
        if value is not None:
            setattr(trainer, name, value)
    return trainer


def train(
    operator: Any,
    training_config: TrainingConfig | None = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    resume_checkpoint_path: str | Path | None = None,
    train_dataloader: Any = None,
    eval_dataloader: Any = None,
    model_card: Any = None,
) -> None:
    """Train any object with a ``model``; a second call trains the remaining epochs."""
    trainer = setup_trainer(
        operator,
        training_config,
        train_dataset,
        eval_dataset,
        train_dataloader,
        eval_dataloader,
        model_card,
    )
    trainer.train(resume_checkpoint_path)


class NNOperator:
    """Base class of operators with a ``model``, which have a ``train`` method."""

    model: Any
    _trainer: Trainer | None = None

    setup_trainer = setup_trainer
    train = train

    @property
    def trainer(self) -> Trainer:
        """The trainer, built on first use."""
        return self._trainer if self._trainer is not None else self.setup_trainer()
