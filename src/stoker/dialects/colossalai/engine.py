"""`Engine`: a model and its training components, with the calls of a plain PyTorch loop."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn

from stoker import Engine as Core
from stoker import Layout
from stoker.core import dist
from stoker.core.errors import check_count
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.schedule import BaseSchedule, NonPipelineSchedule, Seen
from stoker.engine.checks import resolve_device
from stoker.parallel.pipeline.joined_stages import StagedModel, join_stages


class Engine:
    """Run a model as configured, by the Stoker engine `core`.

    ``step_schedule`` and ``gradient_clipping`` are older names of ``schedule`` and
    ``clip_grad_norm``; ``gradient_accumulation`` batches make one update. An ``lr_scheduler`` is
    stepped after every update. An operator hook of ``ophook_list`` has ``pre_fwd_exec``,
    ``post_fwd_exec``, ``pre_bwd_exec`` or ``post_bwd_exec``, called around every module.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        criterion: Any = None,
        gradient_handlers: Sequence[Any] | None = None,
        clip_grad_norm: float = 0.0,
        ophook_list: Sequence[Any] | None = None,
        verbose: bool = True,
        schedule: BaseSchedule | None = None,
        *,
        step_schedule: BaseSchedule | None = None,
        lr_scheduler: Any = None,
        gradient_accumulation: int = 1,
        gradient_clipping: float = 0.0,
    ) -> None:
        self.schedule = _chosen(schedule, step_schedule)
        check_count("gradient_accumulation", gradient_accumulation)
        precision, scaler = gpc.precision(self.schedule.fp16)
        self.given_model, self.lr_scheduler = model, lr_scheduler
        model, layout = self._join_stages(model, optimizer, verbose)
        self.core = Core(
            model,
            optimizer,
            criterion,
            lr_scheduler=lr_scheduler,
            clip_norm=clip_grad_norm or gradient_clipping,
            precision=precision,
            layout=layout,
        )
        if self.core.scaler is not None:
            self.core.scaler.load_state_dict({**self.core.scaler.state_dict(), **scaler})
        self.gradient_handlers = list(gradient_handlers or ())
        self.gradient_accumulation = gradient_accumulation
        self.ophooks: list[Any] = []
        for ophook in ophook_list or ():
            self.add_hook(ophook)
        self._backwards = 0
        if verbose and self.core.layout.processes > 1:
            get_dist_logger().info(f"layout of the job: {self.core.layout}", ranks=[0])

    def _join_stages(
        self, model: nn.Module, optimizer: Any, verbose: bool
    ) -> tuple[nn.Module, Layout]:
        """Return the complete model and its layout, even if the script has cut it itself."""
        options = self.schedule.layout_options
        layout = gpc.layout(self.schedule.kind, options)
        if layout.pipeline == 1:
            return model, layout
        device = resolve_device("auto")
        dist.connect(device.type)
        stages, virtual = layout.filled(dist.world_size()).pipeline, options.get("virtual", 1)
        known = gpc.knows_stage
        joined = join_stages(model, optimizer, device, stages, virtual, is_stage=known)
        if isinstance(joined, StagedModel):
            layout = gpc.layout(self.schedule.kind, {**options, "split": joined.pipeline_parts[1:]})
        if verbose:
            how = "split here" if joined is model else "cut by the script"
            get_dist_logger().info(f"pipeline stages are {how}", ranks=[0])
        return joined, layout

    model = property(lambda self: self.core.model, doc="The model.")
    optimizer = property(lambda self: self.core.optimizer, doc="The optimizer.")
    criterion = property(lambda self: self.core.criterion, doc="The loss function.")
    training = property(lambda self: self.core.training, doc="Whether the model is training.")
    uses_pipeline = property(
        lambda self: self.core.stages is not None, doc="Whether it has stages."
    )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the model."""
        with self.sync_context():
            return self.core(*args, **kwargs)

    def zero_grad(self) -> None:
        """Reset the gradients, unless accumulation is in progress."""
        if self._backwards % self.gradient_accumulation == 0:
            self.core.zero_grad()

    def calc_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the criterion."""
        return self.criterion(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of the loss, scaled for gradient accumulation."""
        count = self.gradient_accumulation
        with self.sync_context():
            self.core.backward(loss if count == 1 else loss / count)
        self._backwards += 1

    def backward_by_grad(self, tensor: Tensor, grad: Tensor) -> None:
        """Backpropagate a given gradient of a tensor."""
        self.backward((tensor * grad).sum())

    def step(
        self,
        data_iter: Iterator[Any] | None = None,
        is_last_iteration: bool = False,
        return_loss: bool = True,
    ) -> bool | Seen:
        """Update the weights if accumulation is complete, and return whether they were updated.

        With ``data_iter``, in the style of the oldest version, run a complete iteration: read the
        batches (with ``is_last_iteration``, all that remain) and return ``(output, label, loss)``
        of the last.
        """
        if data_iter is not None:
            return self._iterate(data_iter, is_last_iteration, return_loss)
        if self._backwards % self.gradient_accumulation:
            return False
        self.handle_gradient()
        updated = self.core.update()
        if updated and self.lr_scheduler is not None:
            self.core.adjust_lr()
        return updated

    def handle_gradient(self) -> None:
        """Call the gradient handlers."""
        for handler in self.gradient_handlers:
            handler.handle_gradient()

    def train(self) -> None:
        """Set the model to training mode."""
        self.core.train()

    def eval(self) -> None:
        """Set the model to evaluation mode."""
        self.core.eval()

    def execute_schedule(
        self,
        data_iter: Iterator[Any],
        forward_only: bool = False,
        return_loss: bool = True,
        return_output_label: bool = True,
    ) -> Seen:
        """Run the next batch forward, and backward unless ``forward_only``."""
        return self.schedule.forward_backward_step(
            self, data_iter, forward_only, return_loss, return_output_label
        )

    def add_hook(self, ophook: Any) -> None:
        """Call an operator hook around every module's forward and backward pass."""
        self.ophooks.append(ophook)
        for module in self.model.modules():
            for register, name in (
                (module.register_forward_pre_hook, "pre_fwd_exec"),
                (module.register_forward_hook, "post_fwd_exec"),
                (module.register_full_backward_pre_hook, "pre_bwd_exec"),
                (module.register_full_backward_hook, "post_bwd_exec"),
            ):
                if hasattr(ophook, name):
                    register(partial(_call_ophook, getattr(ophook, name)))

    def sync_context(self) -> AbstractContextManager[None]:
        """Synchronize gradients across ranks if the next backward completes the accumulation."""
        last = (self._backwards + 1) % self.gradient_accumulation == 0
        return nullcontext() if last else self.core.no_sync()

    def count_backward(self, *, bypassed: bool) -> None:
        """Count a backward pass of a schedule that bypassed `backward`."""
        self._backwards += bypassed

    def _iterate(self, data_iter: Iterator[Any], last: bool, return_loss: bool) -> Seen:
        self.zero_grad()
        seen: Seen = (None, None, None)
        for _ in range(self.gradient_accumulation if self.training else 1):
            seen = self.execute_schedule(data_iter, not self.training, return_loss)
        if self.training:
            self.step()
        for _ in data_iter if last else ():
            pass  # too few batches for another update
        return seen


def _chosen(schedule: Any, step_schedule: Any) -> BaseSchedule:
    """Return the schedule that was given by one of its two names."""
    if schedule is not None and step_schedule is not None:
        raise ValueError("schedule and step_schedule are the same option: pass only one of them")
    chosen = schedule or step_schedule or NonPipelineSchedule()
    if not isinstance(chosen, BaseSchedule):
        raise TypeError(f"schedule is {chosen!r}, expected one such as PipelineSchedule(4)")
    return chosen


def _call_ophook(method: Any, module: nn.Module, *values: Any) -> None:
    method(module, *values)


class BaseGradientHandler:
    """Override `handle_gradient`, which is called once before each update."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def handle_gradient(self) -> None:
        """Change the gradients of the model's parameters."""


class DataParallelGradientHandler(BaseGradientHandler):
    """Request gradients that replicas, shards or tied weights share, as the layout provides."""


ZeROGradientHandler = PipelineSharedModuleGradientHandler = DataParallelGradientHandler
