"""`Engine`: a model, its optimizer and criterion, and how they execute."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.types import Batch
from stoker.data import DataShard
from stoker.engine import averaging, optimizer_fast_path
from stoker.engine.activation_checkpointing import Recompute, checkpoint_activations
from stoker.engine.checks import (
    check_arguments,
    check_optimizer,
    check_scheduler,
    list_optimizers,
    resolve_device,
    select_device,
)
from stoker.engine.compile import check_compile, compile_blocks, compile_criterion, compile_model
from stoker.engine.describe_model import describe_model
from stoker.engine.fused import keep_implementation, prefer_foreach
from stoker.engine.precision import Precision, PrecisionName
from stoker.engine.target_weight import target_weight
from stoker.parallel import Layout, Stages, local_weights, wrap_model
from stoker.parallel.meta_device import is_meta

LrStep: TypeAlias = Literal["step", "epoch"]


class Engine:
    """A model, its optimizer and criterion, and how they execute. Its calls resemble PyTorch's.

        for x, y in loader:
            engine.zero_grad()
            loss = engine.criterion(engine(x), y)
            engine.backward(loss)
            engine.step()           # unscale, clip, optimizer, learning rate

    Args:
        model: the module to train; it is moved to ``device``.
        optimizer: one optimizer, or several by name: ``{"generator": …, "critic": …}``.
        criterion: the loss function, which returns a loss or a dict of losses to be added; None if
            the model returns its own loss.
        lr_scheduler: a torch scheduler, or several by the names of their optimizers.
        lr_step: whether the scheduler steps after every update or after every epoch.
        device: "auto", "cpu", "cuda", "cuda:2", "mps", …
        precision: "fp32", or autocast to "bf16" or "fp16", the latter with loss scaling.
        clip_norm: maximum norm of all gradients; 0 or None turns clipping off. A parameter group
            with the key "clip_norm" (and "norm_type") is clipped separately.
        clip_value: maximum absolute value of each gradient element; 0 or None turns it off.
        norm_type: the norm that ``clip_norm`` limits.
        layout: how the job is split over processes; by default each has a copy of the model.
        compile: run model and criterion through `torch.compile`; a string names the backend, or
            is "blocks" to compile only the repeated blocks of the model, once for all of them.
        activation_checkpointing: compute activations again in the backward pass to save memory:
            those of the repeated "blocks" of the model; "selective", which keeps results of matrix
            products and attention in them; "full", which includes all other parts.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        criterion: Callable[..., Any] | None = None,
        *,
        lr_scheduler: Any = None,
        lr_step: LrStep = "step",
        device: str | torch.device = "auto",
        precision: PrecisionName = "fp32",
        clip_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
        layout: Layout | None = None,
        compile: bool | str = False,
        activation_checkpointing: Recompute | None = None,
    ) -> None:
        check_arguments(model, criterion, lr_step, clip_norm, clip_value, layout)
        self.device = resolve_device(device)
        select_device(self.device)
        check_compile(compile, model, self.device)
        self.moves_batches = self.device.type != "cpu"
        self.precision = Precision(precision, self.device)
        self.scaler = self.precision.scaler
        dist.connect(self.device.type)
        self.layout = (layout or Layout(replicate=-1)).filled(dist.world_size())
        if precision == "fp16" and self.layout.replicate != self.layout.processes:
            raise ValueError(
                f"precision 'fp16' needs the unsharded model on every process, but the layout is "
                f"{self.layout}: use 'bf16'"
            )
        self.lr_step = lr_step
        self.clip_norm, self.clip_value, self.norm_type = clip_norm, clip_value, norm_type
        self.grad_norm: Tensor | None = None
        self.lr_updates = 0
        self.compile_mode = compile
        self.model = model if is_meta(model) else model.to(self.device)
        check_optimizer(optimizer, model, criterion)
        self.described: dict[str, Any] | None = None
        is_split = self.layout.processes > self.layout.replicate
        if is_split or self.layout.sync_batchnorm:  # the model is about to be changed
            self.described = describe_model(model, optimizer)
        checkpoint_activations(model, activation_checkpointing)
        compile_blocks(model, compile)
        self.parallel_model = wrap_model(
            self.layout, model, self.device, list_optimizers(optimizer)
        )
        self._is_distributed = self.layout.processes > 1
        self._forward = self._prepare(self.parallel_model.wrap(compile_model(model, compile)))
        self.set_criterion(criterion)
        self.set_optimizer(optimizer)
        self.lr_schedulers.update(check_scheduler(lr_scheduler, self.optimizers))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._forward(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the loss to those of the parameters."""
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._is_distributed:
            self.parallel_model.after_backward()

    def zero_grad(self, name: str | None = None) -> None:
        """Clear the gradients of all optimizers, or of the named one."""
        if name is None and self.scaler is not None:
            self.precision.skip_update()  # in case an update was begun and not made
        for optimizer in self._all_optimizers if name is None else self._named(name):
            optimizer_fast_path.zero_grad(optimizer)

    def step(self, name: str | None = None) -> bool:
        """Update, then step the LR scheduler if it steps per update; return False if skipped."""
        updated = self.update(name)
        if updated and self.lr_step == "step":
            self.adjust_lr(name)
        return updated

    def update(self, name: str | None = None) -> bool:
        """Unscale, clip and step the optimizer; return False if an fp16 overflow skipped it."""
        optimizers = self._all_optimizers if name is None else self._named(name)
        if self.scaler is not None:
            self.precision.unscale(optimizers)
        if self.clip_norm or self.clip_value or self._groups_clip:
            self.grad_norm = self._clip(optimizers)
        if self.scaler is not None:
            return self.precision.step(optimizers)
        for optimizer in optimizers:
            optimizer_fast_path.step(optimizer)
        return True

    def skip_update(self) -> None:
        """End an update that is not made, so that fp16 starts the next one from scratch."""
        self.precision.skip_update()

    def unscale(self) -> None:
        """Divide gradients by the fp16 loss scale before you read them; `update` does so too."""
        self.precision.unscale(self._all_optimizers)

    def adjust_lr(self, name: str | None = None) -> None:
        """Step the learning-rate scheduler."""
        self.lr_updates += 1
        for key, scheduler in self.lr_schedulers.items():
            if name is None or key == name:
                scheduler.step()

    def no_sync(self) -> AbstractContextManager[None]:
        """Within this context, backward does not synchronize gradients between processes."""
        return self.parallel_model.sync(enabled=False)

    def place(self, batch: Batch) -> Batch:
        """Move the batch to the engine's device."""
        return self.parallel_model.place(batch, self.device) if self.moves_batches else batch

    @property
    def data_shard(self) -> DataShard:
        """The shard of the data that this process reads."""
        model = self.parallel_model
        if model.logical_ranks is not None:
            ranks = model.logical_ranks
            return DataShard(ranks.start, model.data_ranks, len(ranks))
        return DataShard(model.data_rank, model.data_ranks)

    @property
    def predict_shard(self) -> DataShard:
        """The shard of the data that this process predicts."""
        model = self.parallel_model
        if model.logical_ranks is not None and model.predict_ranks == model.data_ranks:
            return DataShard(0, model.data_ranks, model.data_ranks)
        return self.data_shard

    @property
    def stages(self) -> Stages | None:
        """The pipeline stages of this process; None without a pipeline."""
        return self.parallel_model.stages

    @property
    def loss_is_sum(self) -> bool:
        """Whether the criterion returns a sum over samples instead of a mean."""
        return getattr(self.given_criterion, "reduction", None) == "sum"

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self.model.training

    def train(self) -> None:
        """Put the model into training mode, and optimizers that have one."""
        self.model.train()
        for one in averaging.switching(self._all_optimizers):
            one.train()

    def eval(self) -> None:
        """Put the model into evaluation mode, and optimizers that have one."""
        self.model.eval()
        for one in averaging.switching(self._all_optimizers):
            one.eval()

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """Within this context, the model is in that mode; every module gets its old mode back.

        An optimizer that averages weights puts the average into the model for evaluation.
        """
        parts = [self.model]
        if isinstance(self.given_criterion, nn.Module):
            parts.append(self.given_criterion)
        before = [(module, module.training) for part in parts for module in part.modules()]
        for part in parts:
            part.train(training)
        if training:
            for one in averaging.switching(self._all_optimizers):
                one.train()
        try:
            with averaging.evaluated_weights([] if training else self._all_optimizers):
                yield
        finally:
            for module, flag in before:
                module.training = flag

    def set_optimizer(self, optimizer: Optimizer | Mapping[str, Optimizer] | None) -> None:
        """Train with this optimizer from now on; LR schedulers of the old one are dropped."""
        self.optimizers = check_optimizer(optimizer, self.model, self.given_criterion)
        self.optimizer: Any = optimizer
        self._all_optimizers = list(self.optimizers.values())
        for one in self._all_optimizers:
            prefer_foreach(one)
            self.parallel_model.adapt_optimizer(one)
        for one in averaging.switching(self._all_optimizers):
            one.train()
        known = self.parallel_model.parameter_indices
        self._indices = {k: known[id(o)] for k, o in self.optimizers.items() if id(o) in known}
        if self.stages is not None and len(self._indices) < len(self.optimizers):
            raise ValueError(
                "set_optimizer() cannot be used with a pipeline: the optimizer must hold the "
                "parameters of the complete model, so pass it to Engine(…)"
            )
        self.lr_schedulers: dict[str, LRScheduler] = {}
        self._groups_clip = any(
            "clip_norm" in group for one in self.optimizers.values() for group in one.param_groups
        )

    def set_criterion(self, criterion: Callable[..., Any] | None) -> None:
        """Use this criterion from now on."""
        if isinstance(criterion, nn.Module):
            criterion = criterion.to(self.device)
            if self.stages is not None and any(True for _ in criterion.parameters()):
                raise ValueError(
                    f"criterion {type(criterion).__name__} has parameters, but only the last stage "
                    "of a pipeline computes it: make it part of the model"
                )
            self.parallel_model.add(criterion)
        self.given_criterion = criterion
        self.target_weight = target_weight(criterion, self.model)
        self.criterion: Any = None
        if criterion is not None:
            self.criterion = self._prepare(compile_criterion(criterion, self.compile_mode))

    def state_dict(self) -> dict[str, Any]:
        """Return all state that training changes; keys of the model have no wrapper prefix."""
        criterion = self.given_criterion
        states = {
            name: averaging.add_weights(one, one.state_dict())
            for name, one in self.optimizers.items()
        }
        return {
            "model": averaging.weights_to_save(unwrap(self.model), self._all_optimizers),
            "criterion": criterion.state_dict() if isinstance(criterion, nn.Module) else {},
            "optimizers": {
                name: self._indices[name].to_global(state) if name in self._indices else state
                for name, state in states.items()
            },
            "lr_schedulers": {name: one.state_dict() for name, one in self.lr_schedulers.items()},
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
        }

    def indexed_parameters(self) -> dict[str, dict[int, nn.Parameter]]:
        """Return the parameters of each optimizer by their index in its saved state."""
        found = {}
        for name, one in self.optimizers.items():
            parameters = [p for group in one.param_groups for p in group["params"]]
            index = self._indices.get(name)
            numbers = range(len(parameters)) if index is None else index.local
            found[name] = dict(zip(numbers, parameters, strict=True))
        return found

    def local_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights that this process holds, under all names that they have here."""
        return local_weights(unwrap(self.model), weights)

    def weights(self) -> dict[str, Tensor]:
        """Return the unsharded weights by name, on the CPU. All processes must call it.

        Extra state of modules, from `get_extra_state`, is included.
        """
        weights = averaging.weights_to_save(unwrap(self.model), self._all_optimizers)
        return self.parallel_model.full_weights(weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, optimizer in self.optimizers.items():
            averaging.prepare_to_load(optimizer, state["optimizers"][name])
        unwrap(self.model).load_state_dict(self.local_weights(state["model"]))
        if isinstance(self.given_criterion, nn.Module):
            self.given_criterion.load_state_dict(state["criterion"])
        for name, optimizer in self.optimizers.items():
            saved = state["optimizers"][name]
            index = self._indices.get(name)
            saved = saved if index is None else index.to_local(saved)
            saved = averaging.load_weights(optimizer, saved)
            optimizer.load_state_dict(keep_implementation(optimizer, saved))
        for name, scheduler in self.lr_schedulers.items():
            scheduler.load_state_dict(state["lr_schedulers"][name])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def _named(self, name: str) -> list[Optimizer]:
        if name not in self.optimizers:
            named = ", ".join(repr(key) for key in self.optimizers if key) or "none with a name"
            raise ValueError(
                f"the engine has no optimizer {name!r}{did_you_mean(name, self.optimizers)} "
                f"(optimizers: {named})"
            )
        return [self.optimizers[name]]

    def _clip(self, optimizers: list[Optimizer]) -> Tensor | None:
        """Clip by value, then by norm; return the total norm before clipping by norm.

        Parameter groups with a "clip_norm" are clipped separately and not part of the total norm.
        """
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        clip = self.parallel_model.clip_grad_norm
        if self.clip_value:
            parameters = [p for group in groups for p in group["params"]]
            self.parallel_model.clip_grad_value(parameters, self.clip_value)
        for group in groups:
            if group.get("clip_norm"):
                norm_type = group.get("norm_type", self.norm_type)
                clip(group["params"], group["clip_norm"], norm_type)
        if not self.clip_norm:
            return None
        common = [p for group in groups if "clip_norm" not in group for p in group["params"]]
        return clip(common, self.clip_norm, self.norm_type)

    def _prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a model or criterion to run in the engine's precision and on its device."""
        cast = self.precision.cast(function)
        if not self.moves_batches:
            return cast

        def on_device(*args: Any, **kwargs: Any) -> Any:  # untested: needs an accelerator
            return cast(*self.place(args), **self.place(kwargs))

        return on_device


def unwrap(model: nn.Module) -> nn.Module:
    """Return your module without the wrappers of torch.compile and DataParallel."""
    compiled = model._modules.get("_orig_mod")
    if compiled is not None:
        return unwrap(compiled)
    if isinstance(model, nn.DataParallel):
        return unwrap(model.module)
    return model
