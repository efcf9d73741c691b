"""The Trainer of Hugging Face's transformers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from work import Work

ABSENT: dict[str, str] = {}


class Model(nn.Module):
    """A model that returns its own loss, as the Trainer expects."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net, self.criterion = work.model, work.criterion

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": self.criterion(logits, labels), "logits": logits}


class Counting(Model):
    """Count hits in the model, because the Trainer's metrics are for evaluation only."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.right, self.seen = torch.tensor(0), 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = super().forward(x, labels)
        self.right += (output["logits"].argmax(1) == labels).sum()
        self.seen += labels.numel()
        return output


def collated(rows: list[Any]) -> dict[str, Tensor]:
    x, labels = zip(*rows, strict=True)
    return {"x": torch.stack(x), "labels": torch.stack(labels)}


class Given(Trainer):
    """A Trainer that takes prepared batches, or a loader, in the given order."""

    def __init__(self, work: Work, arguments: TrainingArguments, **more: Any) -> None:
        model = more.pop("model", None) or Model(work)
        constant = LambdaLR(work.optimizer, lambda step: 1.0)
        if isinstance(work.data, list):
            known: dict[int, dict[str, Tensor]] = {}
            self.batches: Any = [
                known.setdefault(id(batch), {"x": batch[0], "labels": batch[1]})
                for batch in work.data
            ]
        else:
            self.batches = DataLoader(work.dataset, work.batch_size, collate_fn=collated)
        super().__init__(
            model, arguments, train_dataset=[], optimizers=(work.optimizer, constant), **more
        )

    def get_train_dataloader(self) -> Any:
        return self.batches

    def get_eval_dataloader(self, _: Any = None) -> Any:
        return self.batches

    def get_test_dataloader(self, _: Any = None) -> Any:
        return self.batches


def settings(work: Work, **more: Any) -> TrainingArguments:
    """Return settings with the same mathematics; clipping is on by default."""
    return TrainingArguments(
        str(work.folder / "out"),
        use_cpu=True,
        seed=0,
        max_grad_norm=0.0,
        num_train_epochs=work.epochs,
        per_device_train_batch_size=work.batch_size,
        report_to=[],
        **more,
    )


def off(work: Work, **more: Any) -> TrainingArguments:
    quiet = {"logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    return settings(work, **(quiet | more))


def fit(work: Work) -> None:
    Given(work, off(work)).train()


def defaults(work: Work) -> None:
    Given(work, settings(work)).train()


def accuracy(work: Work) -> float:
    model = Counting(work)
    Given(work, off(work), model=model).train()
    return model.right.item() / model.seen


def callbacks(work: Work, count: int) -> None:
    idle = [type(f"Idle{number}", (TrainerCallback,), {})() for number in range(count)]
    Given(work, off(work), callbacks=idle).train()


def logging(work: Work) -> None:
    """Its log is part of its state, which is printed and saved with the checkpoints."""
    trainer = Given(work, off(work, logging_strategy="steps", logging_steps=1))
    trainer.train()
    trainer.save_state()


def checkpoints(work: Work, every: int) -> None:
    arguments = off(work, save_strategy="steps", save_steps=every, save_total_limit=1)
    if isinstance(work.data, list):
        Given(work, arguments).train()
        return
    constant = LambdaLR(work.optimizer, lambda step: 1.0)
    trainer = Trainer(
        Model(work),
        arguments,
        train_dataset=work.dataset,
        data_collator=collated,
        optimizers=(work.optimizer, constant),
    )
    out = work.folder / "out"
    trainer.train(resume_from_checkpoint=out.exists() and any(out.glob("checkpoint-*")))


def evaluate(work: Work) -> float:
    return float(Given(work, off(work, prediction_loss_only=True)).evaluate()["eval_loss"])


def predict(work: Work) -> Tensor:
    return torch.from_numpy(Given(work, off(work)).predict([]).predictions)  # type: ignore[arg-type]


def job(work: Work) -> float:
    arguments = settings(
        work,
        eval_strategy="epoch",
        per_device_eval_batch_size=work.val_data.batch_size,
        dataloader_num_workers=work.data.num_workers,
        dataloader_persistent_workers=work.data.persistent_workers,
    )
    constant = LambdaLR(work.optimizer, lambda step: 1.0)
    trainer = Trainer(
        Model(work),
        arguments,
        train_dataset=work.dataset,
        eval_dataset=work.val_data.dataset,
        data_collator=collated,
        compute_metrics=share_right,
        optimizers=(work.optimizer, constant),
    )
    trainer.train()
    return float(trainer.state.log_history[-2]["eval_accuracy"])


def share_right(found: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))}
