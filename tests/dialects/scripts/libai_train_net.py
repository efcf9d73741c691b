"""A script as LiBai's page has it: a trainer with hooks and a step of its own.

It trains once more with the stock trainer, which ends at the same weights.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from libai.config import LazyConfig, default_argument_parser
from libai.engine import DefaultTrainer, EagerTrainer, HookBase, default_setup, hooks
from libai.engine.trainer import TrainerBase
from libai.utils import distributed as dist

logger = logging.getLogger("libai." + __name__)


class InfoHook(HookBase):
    """Says where the training is."""

    def before_train(self):
        logger.info(f"start training at {self.trainer.iter}")

    def after_train(self):
        logger.info(f"end training at {self.trainer.iter}")

    def before_step(self):
        self.begun = self.trainer.iter

    def after_step(self):
        assert self.begun == self.trainer.iter
        if self.trainer.iter % 100 == 0:
            logger.info(f"iteration {self.trainer.iter}!")


class MyEagerTrainer(EagerTrainer):
    """A step that is written out, and keeps what the model returned."""

    def __init__(self, model, data_loader, optimizer, grad_acc_steps=1):
        super().__init__(model, data_loader, optimizer, grad_acc_steps)
        self.previous_output = None

    def run_step(self, get_batch: Callable):
        data = get_batch(next(self._data_loader_iter))
        loss_dict = self.model(**data)
        self.previous_output = loss_dict
        (sum(loss_dict.values()) / self.grad_acc_steps).backward()
        self.write_metrics(loss_dict, 0.0)
        self.optimizer.clip_grad()
        self.optimizer.step()
        self.optimizer.zero_grad()


class MyTrainer(DefaultTrainer):
    """The trainer of the page: its own inner trainer, its own list of hooks."""

    def __init__(self, cfg):
        super().__init__(cfg)
        count = cfg.train.num_accumulation_steps
        self._trainer = MyEagerTrainer(self.model, self.train_loader, self.optimizer, count)

    def build_hooks(self):
        ret = [
            hooks.IterationTimer(),
            hooks.LRScheduler(),
            hooks.PeriodicCheckpointer(self.checkpointer, self.cfg.train.checkpointer.period),
        ]
        ret.append(InfoHook())
        if dist.is_main_process():
            ret.append(hooks.PeriodicWriter(self.build_writers(), self.cfg.train.log_period))
        return ret


class Counting(TrainerBase):
    """The loop alone, with what an iteration does written down."""

    def __init__(self):
        super().__init__()
        self.done = []

    def run_step(self):
        self.done.append(self.iter)


def main(args):
    cfg = LazyConfig.apply_overrides(LazyConfig.load(args.config_file), args.opts)
    default_setup(cfg, args)
    kind = DefaultTrainer if cfg.train.output_dir == "stock" else MyTrainer
    trainer = kind(cfg)
    return trainer, trainer.train()


if __name__ == "__main__":
    config = ["--config-file", str(Path(__file__).with_name("libai_config.py"))]
    parse = default_argument_parser().parse_args
    mine, _ = main(parse([*config, "train.output_dir=out", *sys.argv[1:]]))
    stock, results = main(parse([*config, "train.output_dir=stock", *sys.argv[1:]]))
    counting = Counting()
    counting.train(2, 5)
    rows = [json.loads(line) for line in Path("out/metrics.json").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(19, 120, 20))
    assert all("some_accuracy" in row and "total_loss" in row for row in rows)
    assert list(mine._trainer.previous_output) == ["cls_loss"]
    assert [*counting.done, counting.iter] == [2, 3, 4, 5]
    same = zip(mine.model.parameters(), stock.model.parameters(), strict=True)
    assert all(a.equal(b) for a, b in same)
    print("iter", mine.iter, "of", mine.max_iter, "accuracy", results["Acc@1"] > 80)
