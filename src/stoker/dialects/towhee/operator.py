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
        found = [getattr(operator, name, None) for name in ("model", "_model")]
        model = next((one for one in found if isinstance(one, nn.Module)), None)
        if model is None:
            kind = type(operator).__name__
            raise TypeError(
                f"{kind} has no 'model' to train, expected a torch module, got {found[0]}"
            )
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
    **more: Any,
) -> None:
    """Train any object with a ``model``; a second call trains the remaining epochs.

    Further arguments are those of `setup_trainer`: ``train_dataloader``, ``eval_dataloader`` and
    ``model_card``.
    """
    trainer = setup_trainer(operator, training_config, train_dataset, eval_dataset, **more)
    trainer.train(resume_checkpoint_path)


class Operator:
    """Base class of operators, which are functions with state."""


class NNOperator(Operator):
    """Base class of operators with a ``model``, which have a ``train`` method."""

    _trainer: Trainer | None = None

    def __init__(self, framework: str = "pytorch") -> None:
        if framework != "pytorch":
            raise ValueError(f"framework is {framework!r}, expected 'pytorch'")
        self.framework = framework
        self.operator_name = type(self).__name__
        self.model: Any = None
        self.model_card: Any = None

    setup_trainer = setup_trainer
    train = train

    @property
    def trainer(self) -> Trainer:
        """The trainer, built on first use."""
        return self._trainer if self._trainer is not None else self.setup_trainer()

    @trainer.setter
    def trainer(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def save(self, path: str | Path, overwrite: bool = True) -> None:
        """Save the training state; see `Trainer.save`."""
        self.trainer.save(path, overwrite)

    def load(self, path: str | Path) -> None:
        """Load a saved training state; see `Trainer.load`."""
        self.trainer.load(path)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the model."""
        return self.model(*arguments, **options)
