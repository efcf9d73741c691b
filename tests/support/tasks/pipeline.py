"""What the processes of `pool` do in `parallel/test_pipeline.py`."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stoker import Engine, Hook, Layout, Output, Run, Trainer, hooks
from stoker.core.tree import batch_size, split_batch
from stoker.engine.pipeline_schedule import PipelineSchedule
from stoker.engine.schedule import PlainSchedule, StepContext
from stoker.parallel.pipeline.split import split_model
from stoker.parallel.pipeline.stages import Stages
from stoker.step import as_output, as_step


class Net(nn.Module):
    """Embedding, blocks that pass a tuple on, and a head that may be tied to the embedding."""

    pipeline_parts = ("embed", "blocks.*", "head")

    def __init__(self, blocks: int = 6, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = Embed()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = Head()
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, scale: Tensor | None = None) -> Any:
        values = self.embed(ids, scale)
        for block in self.blocks:
            values = block(*values)
        return self.head(*values)


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(11, 8))

    def forward(self, ids: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found = self.weight[ids]
        return (found if scale is None else found * scale[:, None, None]), ids


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        mixed = self.linear(values).tanh() + (ids == 0)[..., None]
        return mixed.transpose(0, 1).contiguous().transpose(0, 1), ids  # laid out another way


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(11, 8))

    def forward(self, values: Tensor, ids: Tensor) -> Tensor:
        return (values @ self.weight.T).flatten(0, 1)


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(7):
        layers += [nn.Linear(6, 6), nn.Tanh()]
    return nn.Sequential(*layers, nn.Sequential(nn.Linear(6, 3), nn.Identity()))


def build(name: str) -> nn.Module:
    torch.manual_seed(3)
    model = mlp() if name == "mlp" else Net(tied=name == "tied")
    return model.double()


def batch(name: str, size: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if name == "mlp":
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        return x, torch.randint(0, 3, (size,), generator=generator)
    ids = torch.randint(0, 11, (size, 5), generator=generator)
    return {
        "ids": ids,
        "scale": torch.rand(size, generator=generator, dtype=torch.float64),
        "mask": torch.rand(size, 5, generator=generator) > 0.4,
    }


def net_step(engine: Engine, batch: Any) -> Output:
    """The mean over the tokens that are not masked; a dict of which the model gets a part."""
    logits = engine(batch["ids"], scale=batch["scale"])
    mask = batch["mask"].flatten()
    losses = nn.functional.cross_entropy(logits, batch["ids"].flatten(), reduction="none")
    return Output((losses * mask).sum() / mask.sum(), logits, weight=float(mask.sum()))


STEPS: dict[str, Any] = {"mlp": None, "tied": net_step}


def engine_of(name: str, model: nn.Module, **options: Any) -> Engine:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss() if name == "mlp" else None
    return Engine(model, optimizer, criterion, device="cpu", **options)


def alone(name: str) -> Engine:
    """Return an engine with the complete model."""
    return engine_of(name, build(name))


def piped(model: nn.Module, kind: str = "1f1b", **options: Any) -> Engine:
    """An engine whose model is split over all processes."""
    name = "tied" if isinstance(model, Net) else "mlp"
    virtual = 2 if kind in ("interleaved", "zero-bubble") else 1
    layout = Layout(pipeline=-1, schedule=kind, virtual=virtual, **options)
    return engine_of(name, model, layout=layout)


def stages_of(engine: Engine) -> Stages:
    assert engine.stages is not None
    return engine.stages


def one_step(engine: Engine, schedule: Any, batches: list[Any], step: Any = None) -> list[Output]:
    """Leave the gradients of one step in the parameters; the outputs that hooks would see."""
    outputs: list[Output] = []

    def on_output(result: Any, size: int | None = None) -> Output:
        output = as_output(owner, result)
        if output.weight is None:
            output.weight = size
        outputs.append(output)
        return output

    owner = as_step(step)
    sizes = [batch_size(batch) for batch in batches]
    engine.zero_grad()
    schedule.run(
        StepContext(
            engine,
            batches,
            sizes,
            float(sum(sizes)),
            owner.forward,
            engine.backward,
            on_output,
        )
    )
    return outputs


def gradients(engine: Engine) -> dict[str, Tensor | None]:
    return {n: p.grad for n, p in engine.model.named_parameters(remove_duplicate=False)}


def gradients_of_pipeline(name: str, kind: Any, sizes: list[int], microbatches: int) -> Any:
    engine = piped(build(name), kind)
    schedule = PipelineSchedule(kind, microbatches)
    batches = [batch(name, size, seed) for seed, size in enumerate(sizes)]
    one_step(engine, schedule, batches, STEPS[name])
    outputs = one_step(engine, schedule, batches, STEPS[name])  # the second is not the first
    return gradients(engine), [(float(output.loss or 0), output.weight) for output in outputs]


def gradients_alone(name: str, sizes: list[int]) -> dict[str, Tensor | None]:
    engine = alone(name)
    batches = [batch(name, size, seed) for seed, size in enumerate(sizes)]
    one_step(engine, PlainSchedule(), batches, STEPS[name])
    return gradients(engine)


def order_of_passes(microbatches: int) -> tuple[str, int]:
    """The letters F and B as this process goes forward and back, and the outputs it has."""
    engine = piped(build("mlp"))
    schedule = PipelineSchedule("1f1b", microbatches)
    passes: list[str] = []

    def went_forward(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:
            passes.append("F")
            output.register_hook(lambda gradient: passes.append("B"))

    (stage,) = stages_of(engine).local.values()
    stage.register_forward_hook(went_forward)
    outputs = one_step(engine, schedule, [batch("mlp", 2 * microbatches, 0)])
    return "".join(passes), len(outputs)


def forward_passes(kind: Any, sizes: list[int]) -> list[Any]:
    """What evaluation and prediction give for batches of these sizes."""
    engine = piped(build("mlp"), kind)
    schedule, step, found = PipelineSchedule(kind, 4), as_step(None), []
    for size in sizes:
        data = batch("mlp", size, 0)
        output = schedule.forward_only(engine, data, step.val_forward)
        predicted = schedule.forward_only(engine, data[0], step.predict)
        found.append(None if output is None else (output.loss, output.outputs, predicted))
    return found


def state_and_owned(processes_agree: bool = True) -> Any:
    """The weights that this process has after the split, and those that it counts."""
    torch.manual_seed(dist.get_rank() if not processes_agree else 3)
    model = Net(tied=True)
    stages = stages_of(piped(model))
    owned = [n for n, p in model.named_parameters(remove_duplicate=False) if stages.owns(p)]
    return model.state_dict(), owned


def frozen_then_thawed(kind: Any) -> Any:
    """Gradients while the first half of the model is frozen, and afterwards."""
    engine = piped(frozen(build("mlp")), kind)
    schedule, found = PipelineSchedule(kind, 4), []
    for thaw in (False, True):
        for parameter in engine.model.parameters():
            parameter.requires_grad_(parameter.requires_grad or thaw)
        one_step(engine, schedule, [batch("mlp", 8, 0)])
        found.append(gradients(engine))
    return found


def frozen(model: nn.Module) -> nn.Module:
    for parameter in list(model.parameters())[:8]:
        parameter.requires_grad_(False)
    return model


def first_step_and_another() -> Any:
    """After each from the same seed: random numbers, and batches that a layer has counted."""
    layers = [nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)]
    engine = piped(nn.Sequential(*layers).double(), split=("3",))
    schedule, found = PipelineSchedule("1f1b", 4), []
    for _ in range(2):
        torch.manual_seed(1)
        one_step(engine, schedule, [batch("mlp", 16, 0)])
        counted = [int(b) for n, b in engine.model.named_buffers() if n.endswith("tracked")]
        found.append((torch.get_rng_state(), counted))
    return found


def sharded_stages(name: str, kind: Any) -> Any:
    """Gradients where each stage is in two shards, each with its half of every batch."""
    engine = piped(build(name), kind, shard=2)
    batches = [batch(name, 16, seed) for seed in range(2)]
    mine = [split_batch(data, 2)[engine.parallel_model.data_rank] for data in batches]
    schedule = PipelineSchedule(kind, 4)
    for _ in range(2):
        one_step(engine, schedule, mine, None if name == "mlp" else mean_over_samples)
    return {n: g.full_tensor() for n, g in gradients(engine).items() if g is not None}


def copied_stages(kind: Any) -> Any:
    """Gradients where there are two of each stage, each with its half of every batch."""
    engine = piped(build("tied"), kind, replicate=2)
    mine = [
        split_batch(batch("tied", 16, seed), 2)[engine.parallel_model.data_rank]
        for seed in range(2)
    ]
    one_step(engine, PipelineSchedule(kind, 4), mine, net_step)
    return gradients(engine)


def mean_over_samples(engine: Engine, batch: Any) -> Tensor:
    logits = engine(batch["ids"], scale=batch["scale"])
    return nn.functional.cross_entropy(logits, batch["ids"].flatten())


class Notes(Hook):
    """At which points of a run there were outputs, and how many."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def after_forward(self, run: Run) -> None:
        self.seen.append(("forward", len(run.outputs)))

    def after_step(self, run: Run) -> None:
        self.seen.append(("step", len(run.outputs)))

    def after_val_step(self, run: Run) -> None:
        self.seen.append(("val", len(run.outputs)))


def trained() -> Any:
    """A complete run of a trainer: weights, results, what a hook saw, and predictions."""
    model = build("mlp")
    engine = piped(model, microbatches=4) if dist.is_initialized() else engine_of("mlp", model)
    notes = Notes()
    from torchmetrics import classification

    area = classification.MulticlassAUROC(3)  # keeps all outputs, and gathers them by itself
    measured = hooks.Metrics("accuracy", area=area, on="both")
    trainer = Trainer(engine, [hooks.Loss(), measured, hooks.NaNGuard(), notes], accumulate=2)
    data = [batch("mlp", size, seed) for seed, size in enumerate((8, 8, 8, 8, 4))]
    trainer.fit(data, [batch("mlp", size, 9) for size in (8, 5)], epochs=2)
    results = dict(trainer.run.metrics)
    predicted = trainer.predict([batch("mlp", size, 9)[0] for size in (8, 5)])
    return model.state_dict(), results, notes.seen, predicted


def faults() -> dict[str, str]:
    """Return the errors for steps that a pipeline cannot run, in a pipeline of one process."""
    engine, group = alone("mlp"), dist.group.WORLD
    assert group is not None
    engine.parallel_model.stages = split_model(engine.model, group, engine.device)
    schedule = PipelineSchedule("1f1b", 2)

    def draws(engine: Engine, batch: Any) -> Tensor:
        return engine.criterion(engine(batch[0] + torch.randn(())), batch[1])

    def calls_twice(engine: Engine, batch: Any) -> Tensor:
        return engine.criterion(engine(batch[0]) + engine(batch[0]), batch[1])

    def never_calls(engine: Engine, batch: Any) -> Tensor:
        return batch[0].sum()

    errors = {
        step.__name__: _error(partial(one_step, engine, schedule, [batch("mlp", 4, 0)], step))
        for step in (draws, calls_twice, never_calls)
    }
    context = StepContext(engine, [], [], 1.0, draws, lambda loss: None, max)  # type: ignore[arg-type]
    errors["backward"] = _error(lambda: PipelineSchedule().run(context))
    return errors


def logged_of_a_size() -> list[str]:
    """What is logged where the first batch does not divide, and where only a later one does not."""
    engine, group = alone("mlp"), dist.group.WORLD
    assert group is not None
    engine.parallel_model.stages = split_model(engine.model, group, engine.device)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("stoker").addHandler(handler)
    for sizes in ((6, 8), (8, 6)):
        schedule = PipelineSchedule("1f1b", 4)
        for size in sizes:
            one_step(engine, schedule, [batch("mlp", size, 0)])
    logging.getLogger("stoker").removeHandler(handler)
    return lines


def _error(act: Callable[[], Any]) -> str:
    with pytest.raises(ValueError, match=" ") as caught:
        act()
    return str(caught.value)


def call_of_the_model() -> str:
    engine = piped(build("mlp"))
    with pytest.raises(RuntimeError) as caught:
        engine.model(batch("mlp", 4, 0)[0])
    return str(caught.value)


class Dropping(nn.Module):
    """Notes what it drops."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.kept: list[list[bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        kept = nn.functional.dropout(torch.ones_like(x), 0.5, self.training)
        self.kept.append((kept != 0).flatten().tolist())
        return x * kept * self.weight


def dropped(steps: int = 2) -> tuple[list[list[bool]], float]:
    """What the stage of this process drops in each micro-batch, and a number drawn afterwards."""
    model = nn.Sequential(Dropping(), Dropping())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, nn.MSELoss(), layout=Layout(pipeline=2))
    torch.manual_seed(11)
    trainer = Trainer(engine, [])
    trainer.fit([(torch.ones(4, 64), torch.ones(4, 64))], epochs=steps)
    (stage,) = [part for part in model if isinstance(part, Dropping)]
    return stage.kept, float(torch.rand(()))
