"""`Engine`: a model, its optimizer and criterion, and how they execute."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stoker.engine.check import check_optimizer, check_parts, check_scheduler
from stoker.engine.clip import clip_gradients
from stoker.engine.device import resolve_device
from stoker.engine.precision import Precision, PrecisionName
from stoker.errors import did_you_mean
from stoker.parallel import Layout
from stoker.types import Batch

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
        layout: how the job is split over processes.
        compile: run model and criterion through `torch.compile`; a string names the backend.
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
        self.moves = self.device.type != "cpu"
        self.precision = Precision(precision, self.device)
        self.scaler = self.precision.scaler
        self.layout = layout or Layout()
        self.lr_step = lr_step
        self.clip_norm, self.clip_value, self.norm_type = clip_norm, clip_value, norm_type
        self.grad_norm: Tensor | None = None
        self.lr_moves = 0
        self._compile = compile
        self.model = model.to(self.device)
        self._forward = self._executed(model)
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

    def zero_grad(self, name: str | None = None) -> None:
        """Forget the gradients of all optimizers, or of the one named."""
        if name is None and self.scaler is not None:
            self.precision.adapt()  # an update that was begun and never made is over
        for optimizer in self._every if name is None else self._named(name):
            if type(optimizer).zero_grad is not Optimizer.zero_grad:
                optimizer.zero_grad()
                continue
            for group in optimizer.param_groups:  # what torch does, without its profiling
                for parameter in group["params"]:
                    parameter.grad = None

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
                self.layout,
                norm=self.clip_norm,
                value=self.clip_value,
                norm_type=self.norm_type,
            )
        if self.scaler is not None:
            return self.precision.step(optimizers)
        for optimizer in optimizers:
            optimizer.step()
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
        return self.layout.gradient_sync(self.model, enabled=False)

    def place(self, batch: Batch) -> Batch:
        """The batch on the engine's device."""
        return self.layout.place(batch, self.device) if self.moves else batch

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
        self.lr_schedulers: dict[str, LRScheduler] = {}
        self._groups_clip = any(
            "clip_norm" in group for one in self.optimizers.values() for group in one.param_groups
        )

    def set_criterion(self, criterion: Callable[..., Any] | None) -> None:
        """Use this loss function from now on."""
        if isinstance(criterion, nn.Module):
            criterion = criterion.to(self.device)
        self.given_criterion = criterion
        self.criterion: Any = None if criterion is None else self._executed(criterion)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes; keys of the model carry no wrapper's prefix."""
        criterion = self.given_criterion
        return {
            "model": bare(self.model).state_dict(),
            "criterion": criterion.state_dict() if isinstance(criterion, nn.Module) else {},
            "optimizers": {name: one.state_dict() for name, one in self.optimizers.items()},
            "lr_schedulers": {name: one.state_dict() for name, one in self.lr_schedulers.items()},
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        bare(self.model).load_state_dict(state["model"])
        if isinstance(self.given_criterion, nn.Module):
            self.given_criterion.load_state_dict(state["criterion"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
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
        """Model or criterion as they run here: compiled, in their precision, on the device."""
        if self._compile:
            # Beside the module, not in place: Module.compile() passes over torch's own containers.
            backend = self._compile if isinstance(self._compile, str) else "inductor"
            function = torch.compile(function, backend=backend)
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
