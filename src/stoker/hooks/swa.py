"""`SWA`: stochastic weight averaging."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.errors import check_number
from stoker.core.seed import preserve_rng
from stoker.core.tree import local_part
from stoker.data import BatchFeeder
from stoker.engine import Engine, unwrap
from stoker.engine.averaging import end_training
from stoker.engine.batch import call_model, split_inputs
from stoker.hooks.base.hook import Hook
from stoker.run import Run


class SWA(Hook):
    """Average the weights at the end of each epoch, and end training with the average.

        hooks=[*hooks.default(), hooks.SWA(start_epoch=8)]

    The statistics of batch norms do not belong to averaged weights, so they are computed again, in
    one more pass over the training data; in a job of several ranks, each reads its own share and
    the means are over all of them. For the learning rate of the averaged epochs, pass
    `torch.optim.swa_utils.SWALR` to the engine. Validation during training uses the weights of
    training.

    Args:
        start_epoch: The first epoch whose weights are averaged, from 1.
        update_bn: Compute the statistics of batch norms for the average.
    """

    priority = 65  # after hooks that act on a validation result, before hooks that save
    same_on_all_ranks = True
    replicated_state = True

    def __init__(self, start_epoch: int, *, update_bn: bool = True) -> None:
        check_number("start_epoch", start_epoch, integer=True)
        if start_epoch < 1:
            raise ValueError(f"start_epoch must be at least 1, got {start_epoch}")
        self.start_epoch, self.update_bn = start_epoch, update_bn
        self._count = 0
        self._average: dict[str, Tensor] = {}
        self._feeder: BatchFeeder | None = None

    def before_train(self, run: Run) -> None:
        """Reject batch norms with logical ranks: each process would measure its own data."""
        logical = run.engine.parallel_model.logical_ranks is not None
        if logical and self.update_bn and _batch_norms(run.engine):
            raise ValueError(
                "SWA computes the statistics of batch norms from the data of each process, which "
                "would give other bits on another number of processes: with logical_ranks, pass "
                "update_bn=False"
            )

    def before_epoch(self, run: Run) -> None:
        """Remember the training data."""
        self._feeder = run.feeder

    @torch.no_grad()
    def after_train_epoch(self, run: Run) -> None:
        """Add the weights to the average if the epoch is complete and late enough."""
        if run.epoch < max(self.start_epoch, run.current_epoch):
            return
        weights = dict(unwrap(run.engine.model).named_parameters())
        if not self._average:
            self._average = {name: one.detach().clone() for name, one in weights.items()}
        else:
            averages = [local_part(self._average[name]) for name in weights]
            news = [local_part(one.detach()) for one in weights.values()]
            torch._foreach_lerp_(averages, news, 1 / (self._count + 1))
        self._count += 1

    @torch.no_grad()
    def after_train(self, run: Run) -> None:
        """Put the average into the model, with new statistics of its batch norms."""
        if run.error is not None or not self._average:
            return
        end_training(run.engine.optimizers.values())
        for name, parameter in unwrap(run.engine.model).named_parameters():
            parameter.copy_(self._average[name])
        if self.update_bn and self._feeder is not None:
            self._update_batch_norms(run, self._feeder)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of epochs in it."""
        average = {name: one.clone() for name, one in self._average.items()}
        return {"count": self._count, "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average."""
        self._count = state["count"]
        self._average = {name: one.clone() for name, one in state["average"].items()}

    def _update_batch_norms(self, run: Run, feeder: BatchFeeder) -> None:
        """Replace running statistics by means over one pass of the training data."""
        norms = _batch_norms(run.engine)
        momenta = [norm.momentum for norm in norms]
        if not norms:
            return
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean over all batches
            with run.engine.mode(training=True), preserve_rng(*feeder.generators()):
                self._measure(run.engine, feeder.another_pass(), norms)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum

    def _measure(
        self, engine: Engine, feeder: BatchFeeder, norms: list[nn.modules.batchnorm._BatchNorm]
    ) -> None:
        """Run the model over this rank's data, and average the statistics over all ranks."""
        parallel, synced = engine.parallel_model, engine.layout.sync_batchnorm
        for window in feeder:
            parallel.begin_batch(0 if feeder.padding else 1)
            counts = synced or not feeder.padding  # other ranks may wait for the padding batch
            with nullcontext() if counts else engine.mode(training=False):
                call_model(engine, engine.place(split_inputs(window[0])[0]))
        for norm in norms:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            batches = float(norm.num_batches_tracked or 0)
            parallel.average(batches, norm.running_mean, norm.running_var)
        parallel.sync_buffers()


def _batch_norms(engine: Engine) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the batch norms of the model that have running statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    modules = unwrap(engine.model).modules()
    return [one for one in modules if isinstance(one, kind) and one.track_running_stats]
