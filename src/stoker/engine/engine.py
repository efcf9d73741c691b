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
from stoker.engine import optimizer_fast_path
from stoker.engine.checks import (
    check_optimizer,
    check_parts,
    check_scheduler,
    optimizers_of,
)
from stoker.engine.clip import clip_gradients
from stoker.engine.compile import check_compile, compile_blocks, compiled, compiled_loss
from stoker.engine.device import resolve_device
from stoker.engine.fused import in_its_own_way, take_lists
from stoker.engine.precision import Precision, PrecisionName
from stoker.parallel import Layout, Stages, wrap_model

LrStep: TypeAlias = Literal["step", "epoch"]


class Engine:
    """Owns a model and what trains it. Its calls have the shape of PyTorch's own.

        for x, y in loader:
            engine.zero_grad()
            loss = engine.criterion(engine(x), y)
            engine.backward(loss)
            engine.step()           # unscale, clip, optimizer, learning rate

    Args:
        model: the module to train; it is moved to ``device``.
        optimizer: one optimizer, or several by name: ``{"generator": …, "critic": …}``.
        criterion: the loss function; None where the model returns its own loss.
        lr_scheduler: a torch scheduler, or several by the names of their optimizers.
        lr_step: whether the scheduler moves after every update or after every epoch.
        device: "auto", "cpu", "cuda", "cuda:2", "mps", …
        precision: "fp32", or autocast to "bf16" or "fp16", the latter with loss scaling.
        clip_norm: bound on the norm of all gradients; 0 or None is off. A parameter group that
            has keys "clip_norm" (and "norm_type") of its own is clipped by itself.
        clip_value: bound on each element of the gradients; 0 or None is off.
        norm_type: which norm ``clip_norm`` bounds.
        layout: how the job is split over processes; copies of the model when not given.
        compile: run model and criterion through `torch.compile`; a string names the backend, or
            is "blocks" to compile the repeated blocks of the model alone, once for all of them.
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
    ) -> None:
        check_parts(model, criterion, lr_step, clip_norm, clip_value)
        self.device = resolve_device(device)
        check_compile(compile, model, self.device)
        self.moves = self.device.type != "cpu"
        self.precision = Precision(precision, self.device)
        self.scaler = self.precision.scaler
        dist.connect(self.device.type)
        self.layout = (layout or Layout(replicate=-1)).filled(dist.world_size())
        if precision == "fp16" and self.layout.replicate != self.layout.processes:
            raise ValueError(
                f"precision 'fp16' scales losses in whole copies of a model, not in layout "
                f"{self.layout}: use 'bf16'"
            )
        self.lr_step = lr_step
        self.clip_norm, self.clip_value, self.norm_type = clip_norm, clip_value, norm_type
        self.grad_norm: Tensor | None = None
        self.lr_moves = 0
        self.compiles = compile
        self.model = model.to(self.device)
        check_optimizer(optimizer, model, criterion)
        compile_blocks(model, compile)
        self.parallel_model = wrap_model(self.layout, model, self.device, optimizers_of(optimizer))
        self._shares = self.layout.processes > 1
        self._forward = self._executed(self.parallel_model.wrap(compiled(model, compile)))
        self.set_criterion(criterion)
        self.set_optimizer(optimizer)
        self.lr_schedulers.update(check_scheduler(lr_scheduler, self.optimizers))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for these inputs."""
        return self._forward(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss, added to those there are."""
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._shares:
            self.parallel_model.after_backward()

    def zero_grad(self, name: str | None = None) -> None:
        """Forget the gradients of all optimizers, or of the one named."""
        if name is None and self.scaler is not None:
            self.precision.adapt()  # an update that was begun and never made is over
        for optimizer in self._every if name is None else self._named(name):
            optimizer_fast_path.zero_grad(optimizer)

    def step(self, name: str | None = None) -> bool:
        """One update, and the learning rate where it moves by step; False if it was skipped."""
        updated = self.update(name)
        if updated and self.lr_step == "step":
            self.adjust_lr(name)
        return updated

    def update(self, name: str | None = None) -> bool:
        """Unscale, clip, and let the optimizer step; False where an fp16 overflow skipped it."""
        optimizers = self._every if name is None else self._named(name)
        if self.scaler is not None:
            self.precision.unscale(optimizers)
        if self.clip_norm or self.clip_value or self._groups_clip:
            self.grad_norm = clip_gradients(
                optimizers,
                self.parallel_model,
                norm=self.clip_norm,
                value=self.clip_value,
                norm_type=self.norm_type,
            )
        if self.scaler is not None:
            return self.precision.step(optimizers)
        for optimizer in optimizers:
            optimizer_fast_path.step(optimizer)
        return True

    def skip_update(self) -> None:
        """End an update that is left out, so that fp16 begins the next one afresh."""
        self.precision.adapt()

    def unscale(self) -> None:
        """Bring gradients to their true size before someone looks at them; `update` does it too."""
        self.precision.unscale(self._every)

    def adjust_lr(self, name: str | None = None) -> None:
        """Let the learning-rate scheduler take one step."""
        self.lr_moves += 1
        for key, scheduler in self.lr_schedulers.items():
            if name is None or key == name:
                scheduler.step()

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it, the backward pass shares no gradients between processes."""
        return self.parallel_model.sync(enabled=False)

    def place(self, batch: Batch) -> Batch:
        """The batch on the engine's device."""
        return self.parallel_model.place(batch, self.device) if self.moves else batch

    @property
    def data_shard(self) -> DataShard:
        """The shard of the data that this process reads."""
        return DataShard(self.parallel_model.part, self.parallel_model.parts)

    @property
    def stages(self) -> Stages | None:
        """This process's stages of a pipeline, None where the model is whole."""
        return self.parallel_model.stages

    @property
    def sums(self) -> bool:
        """Whether the criterion gives sums over samples, and not means."""
        return getattr(self.given_criterion, "reduction", None) == "sum"

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self.model.training

    def train(self) -> None:
        """Put the model into training mode."""
        self.model.train()

    def eval(self) -> None:
        """Put the model into evaluation mode."""
        self.model.eval()

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """Within it the model trains or evaluates; afterwards every module is as it was."""
        parts = [self.model]
        if isinstance(self.given_criterion, nn.Module):
            parts.append(self.given_criterion)
        before = [(module, module.training) for part in parts for module in part.modules()]
        for part in parts:
            part.train(training)
        try:
            yield
        finally:
            for module, flag in before:
                module.training = flag

    def set_optimizer(self, optimizer: Optimizer | Mapping[str, Optimizer] | None) -> None:
        """Train with this optimizer from now on; schedulers of another one are dropped."""
        self.optimizers = check_optimizer(optimizer, self.model, self.given_criterion)
        self.optimizer: Any = optimizer
        self._every = list(self.optimizers.values())
        for one in self._every:
            take_lists(one)
        known = self.parallel_model.numbers
        self._numbers = {k: known[id(o)] for k, o in self.optimizers.items() if id(o) in known}
        if self.stages is not None and len(self._numbers) < len(self.optimizers):
            raise ValueError(
                "an optimizer of a pipeline is given to the Engine when it is made, of the whole "
                "model: set_optimizer() comes too late"
            )
        self.lr_schedulers: dict[str, LRScheduler] = {}
        self._groups_clip = any(
            "clip_norm" in group for one in self.optimizers.values() for group in one.param_groups
        )

    def set_criterion(self, criterion: Callable[..., Any] | None) -> None:
        """Use this loss function from now on."""
        if isinstance(criterion, nn.Module):
            criterion = criterion.to(self.device)
            if self.stages is not None and any(True for _ in criterion.parameters()):
                raise ValueError(
                    f"criterion {type(criterion).__name__} has parameters, but only the last stage "
                    "of a pipeline computes it: make it a part of the model"
                )
            self.parallel_model.add(criterion)
        self.given_criterion = criterion
        self.criterion: Any = None
        if criterion is not None:
            self.criterion = self._executed(compiled_loss(criterion, self.compiles))

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes; keys of the model carry no wrapper's prefix."""
        criterion = self.given_criterion
        states = {name: one.state_dict() for name, one in self.optimizers.items()}
        return {
            "model": bare(self.model).state_dict(),
            "criterion": criterion.state_dict() if isinstance(criterion, nn.Module) else {},
            "optimizers": {
                name: self._numbers[name].saved(state) if name in self._numbers else state
                for name, state in states.items()
            },
            "lr_schedulers": {name: one.state_dict() for name, one in self.lr_schedulers.items()},
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
        }

    def numbers(self) -> dict[str, dict[int, nn.Parameter]]:
        """The parameters of each optimizer by the numbers that its state knows them by."""
        found = {}
        for name, one in self.optimizers.items():
            parameters = [p for group in one.param_groups for p in group["params"]]
            numbers = self._numbers.get(name)
            kept = range(len(parameters)) if numbers is None else numbers.kept
            found[name] = dict(zip(kept, parameters, strict=True))
        return found

    def own(self, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the weights that this process has: of a pipeline, its stages."""
        if self.stages is None:
            return weights
        names = bare(self.model).state_dict().keys()
        tied = {own: weights[other] for own, other in self.stages.ties() if other in weights}
        return tied | {name: weight for name, weight in weights.items() if name in names}

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, whole and on the CPU. All processes call it; the first gets all."""
        return self.parallel_model.whole(bare(self.model).state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        bare(self.model).load_state_dict(self.own(state["model"]))
        if isinstance(self.given_criterion, nn.Module):
            self.given_criterion.load_state_dict(state["criterion"])
        for name, optimizer in self.optimizers.items():
            saved = state["optimizers"][name]
            numbers = self._numbers.get(name)
            saved = saved if numbers is None else numbers.own(saved)
            optimizer.load_state_dict(in_its_own_way(optimizer, saved))
        for name, scheduler in self.lr_schedulers.items():
            scheduler.load_state_dict(state["lr_schedulers"][name])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def _named(self, name: str) -> list[Optimizer]:
        if name not in self.optimizers:
            named = ", ".join(repr(key) for key in self.optimizers if key) or "none with a name"
            raise ValueError(
                f"the engine has no optimizer {name!r}{did_you_mean(name, self.optimizers)} "
                f"(there is {named})"
            )
        return [self.optimizers[name]]

    def _executed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Model or criterion as they run here: in their precision, on the device."""
        cast = self.precision.cast(function)
        if not self.moves:
            return cast

        def on_device(*args: Any, **kwargs: Any) -> Any:  # untested: no such device here
            return cast(*self.place(args), **self.place(kwargs))

        return on_device


def bare(model: nn.Module) -> nn.Module:
    """The user's own module, without what torch.compile or DataParallel put around it."""
    compiled = model._modules.get("_orig_mod")
    if compiled is not None:
        return bare(compiled)
    if isinstance(model, nn.DataParallel):
        return bare(model.module)
    return model
