"""`LogicalModel`: a model as one process runs its logical ranks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stoker.core import dist
from stoker.core.seed import mixed_seed, preserve_rng, random_state, seed_all, set_random_state
from stoker.core.types import Output
from stoker.parallel.layout import Layout
from stoker.parallel.logical.buffers import StepBuffers, send_from_first
from stoker.parallel.logical.norms import norm_of_rows
from stoker.parallel.logical.outputs import gather_outputs, gather_rows
from stoker.parallel.logical.reducer import TreeReducer
from stoker.parallel.logical.tree import ranks_of
from stoker.parallel.parallel_model import ParallelModel

T = TypeVar("T")
_TRAINING, _EVALUATION = 0, 1


class LogicalModel(ParallelModel):
    """A model whose arithmetic is that of a fixed number of logical ranks.

    The process executes its logical ranks one after another. Between two steps, weights, buffers,
    random state and what hooks observe are the same on all processes.

    Args:
        layout: for the number of processes in the job.
        model: the model, of which every process has a copy.
    """

    def __init__(self, layout: Layout, model: nn.Module) -> None:
        super().__init__()
        assert layout.logical_ranks is not None
        _check_modules(model)
        torch.set_num_threads(layout.threads)
        self.data_ranks = layout.logical_ranks
        self._modules: list[nn.Module] = []
        self._reduced: tuple[int, ...] = ()
        self._reducer: TreeReducer | None = None
        self._buffers: StepBuffers | None = None
        self._seed = 0
        self._in_rank = False
        self.add(model)

    @property
    def logical_ranks(self) -> range:  # type: ignore[override]
        """The logical ranks that this process executes, which change in an elastic job."""
        return ranks_of(*dist.position(), self.data_ranks)

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass; with gradients it runs only as a logical rank."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not self._in_rank:
                raise RuntimeError(
                    "the layout has logical_ranks, which only Trainer.fit executes, with its own "
                    "schedule: train with it, or leave logical_ranks out"
                )
            return forward(*args, **kwargs)

        return run

    def add(self, module: nn.Module) -> None:
        """Add the gradients of another module too, such as a criterion with parameters."""
        self._modules.append(module)
        send_from_first([*module.parameters(), *module.buffers()])

    def seed(self, seed: int | None) -> None:
        """Give all processes the same seed; without one they take the random state of the first."""
        if seed is None:
            set_random_state(dist.broadcast_from_rank0(random_state()))
        else:
            super().seed(seed)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Within this context, hooks and metrics do not add what every process has observed."""
        with dist.observing_everything():
            yield

    def gathered(self) -> AbstractContextManager[None]:
        """Return the context in which a model without gradients runs. All processes must enter it.

        It is not needed within `step`.
        """
        return nullcontext()

    # Norms of gradients

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients to a total norm of at most ``limit``; return the norm before."""
        held = [parameter for parameter in parameters if parameter.grad is not None]
        norm = self.total_norm(held, norm_type)
        nn.utils.clip_grads_with_norm_(held, limit, norm)
        return norm

    def total_norm(self, parameters: Iterable[nn.Parameter], norm_type: float = 2.0) -> Tensor:
        """Return the norm of all gradients, from the norms of their rows."""
        return norm_of_rows([p.grad for p in parameters if p.grad is not None], norm_type)

    # A step

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a training step; at its end, gradients and buffers are the same on all processes."""
        self._seed = torch.initial_seed()
        self._buffers = StepBuffers([b for module in self._modules for b in module.buffers()])
        reducer = self._current_reducer()
        reducer.begin()
        try:
            with preserve_rng():
                yield
            reducer.finish()
            self._buffers.end_step()
        except BaseException:
            self._buffers.begin_rank()  # for a script that catches the error and continues
            raise

    @contextmanager
    def rank(self, index: int, step: int) -> Iterator[None]:
        """Within this context, run the micro-batches of one logical rank of this process.

        Args:
            index: its number among those of this process.
            step: the number of the step.
        """
        assert self._reducer is not None
        assert self._buffers is not None
        rank = self.logical_ranks[index]
        self._buffers.begin_rank()
        seed_all(mixed_seed(self._seed, _TRAINING, step, rank))
        self._in_rank = True
        try:
            yield
        finally:
            self._in_rank = False
        self._buffers.end_rank(rank)
        self._reducer.add(rank)

    def send_in_backward(self) -> None:
        """Send gradients during the next backward pass, which is the last one of this process."""
        assert self._reducer is not None
        self._reducer.arm()

    @property
    def bytes_sent(self) -> int:
        """The bytes of gradients that this process has sent to others."""
        return self._reducer.bytes_sent if self._reducer is not None else 0

    def _current_reducer(self) -> TreeReducer:
        """Return the reducer of the parameters that are trained now, which may change."""
        found = {id(p): p for module in self._modules for p in module.parameters()}
        trained = [parameter for parameter in found.values() if parameter.requires_grad]
        now = (*dist.position(), dist.generation(), *map(id, trained))
        if self._reducer is None or now != self._reduced:
            if self._reducer is not None:
                self._reducer.close()
            self._reduced = now
            self._reducer = TreeReducer(trained, *dist.position(), self.data_ranks)
        return self._reducer

    def complete(self, work: Callable[[], T], repeat: Callable[[], None]) -> T:
        """Return what the work returns; in an elastic job, repeat it if a process is lost."""
        members = dist.members()
        if members is None:
            return work()
        self._buffers = None

        def prepare() -> None:
            if self._buffers is not None:  # also of a step that lost a process at its very end
                self._buffers.begin_rank()
            repeat()

        return members.complete(work, prepare)

    # Evaluation

    @contextmanager
    def evaluated_rank(self, index: int, step: int, batch: int) -> Iterator[None]:
        """Within this context, evaluate a batch of one logical rank of this process."""
        rank = self.logical_ranks[index]
        seed = mixed_seed(torch.initial_seed(), _EVALUATION, step, batch, rank)
        with preserve_rng():
            seed_all(seed)
            yield

    def gather_outputs(
        self, outputs: list[Any], merge: Callable[[list[list[Any]]], list[Any]]
    ) -> list[Any]:
        """Return the outputs of all processes; ``merge`` orders those of the logical ranks."""
        count = self.predict_ranks
        own = [outputs[index::count] for index in range(count)]
        everywhere = dist.all_gather_object(own) if count < self.data_ranks else [own]
        return merge([of_rank for found in everywhere for of_rank in found])

    @property
    def predict_ranks(self) -> int:
        """The number of logical ranks whose data this process predicts.

        In an elastic job these are all: outputs of a process that is lost would be missing.
        """
        return len(self.logical_ranks) if dist.members() is None else self.data_ranks

    # What all processes observe

    def start_mean(self, numbers: Sequence[float]) -> Callable[[], float]:
        """Return a function that returns the mean over logical ranks, added in their order."""
        count = len(self.logical_ranks)
        own = [float(sum(numbers[index::count])) for index in range(count)]
        rows = torch.tensor(own, dtype=torch.float64)
        total: float = sum(gather_rows(rows, self.logical_ranks, self.data_ranks).tolist())
        mean = total / self.data_ranks
        return lambda: mean

    def share_outputs(
        self, outputs: Mapping[int, Output], rounds: int, *, tensors: bool
    ) -> list[Output]:
        """Return the outputs of all logical ranks, in their order. All processes must call it.

        Args:
            outputs: those of this process, by the number of their micro-batch in the window.
            rounds: the number of micro-batches per logical rank.
            tensors: whether to return the outputs and targets too, not only losses and scalars.
        """
        ranks, found = self.logical_ranks, {}
        for number, output in outputs.items():
            turn, index = divmod(number, len(ranks))
            found[ranks[index], turn] = output
        gather = partial(gather_outputs, found, ranks, self.data_ranks, rounds, tensors=tensors)
        return dist.together(gather)


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"'{name}' is a SyncBatchNorm, whose statistics depend on the number of processes: "
                "with logical_ranks use BatchNorm, which takes those of each logical rank"
            )
