"""What processes do with hooks, options and tasks in several layouts."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Trainer, hooks, metrics
from support.tasks.layouts import net
from support.tasks.rows import rows

ROWS = 32


def _loader(engine: Engine, dtype: torch.dtype = torch.float64) -> DataLoader[Any]:
    return DataLoader(rows(ROWS, dtype), batch_size=8 // engine.data_shard.world_size)


def engine_of(layout: Layout | None, dtype: torch.dtype = torch.float64, **options: Any) -> Engine:
    model = net(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout, clip_norm=0.5, **options)


def with_hooks(layout: Layout | None, folder: Path) -> dict[str, Any]:
    """Everything that hooks about weights and results leave behind."""
    engine = engine_of(layout)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        engine.optimizer, patience=0, threshold=0.1
    )
    norms: list[float] = []
    note = hooks.Callback(
        after_step=lambda run: norms.append(float(run.events.latest()["grad_norm"][0]))
    )
    note.same_on_all_ranks = True
    best = hooks.KeepBest("val/loss")
    stock = [
        hooks.Loss(), hooks.GradNorm(), hooks.NaNGuard(), hooks.EMA(0.7), best, hooks.LR(),
        hooks.Plateau(plateau), hooks.EarlyStopping(patience=3, min_delta=0.05), note,
        hooks.Metrics("accuracy", f1=metrics.get("MulticlassF1Score", num_classes=3), on="both"),
        hooks.SaveWeights(folder / "model.safetensors"),
    ]  # fmt: skip
    run = Trainer(engine, stock)
    loader = _loader(engine)
    history = run.fit(loader, loader, epochs=12)
    return {
        "weights": engine.weights(), "saved": load_file(folder / "model.safetensors"),
        "history": [dict(row) for row in history], "norms": norms, "best": best.step,
        "stop": run.run.stop_reason.partition("(")[0], "lr": engine.optimizer.param_groups[0]["lr"],
        "predicted": run.predict(loader),
    }  # fmt: skip


def frozen(layout: Layout | None) -> dict[str, torch.Tensor]:
    """Weights of a run whose first layers thaw after an epoch."""
    engine = engine_of(layout)
    loader = _loader(engine)
    run = Trainer(engine, [hooks.Loss(), hooks.FreezeLayers(["0", "1.0"], until_epoch=1)])
    run.fit(loader, epochs=1)
    before = {name: weight.clone() for name, weight in engine.weights().items()}
    run.fit(loader, epochs=2)
    return {f"{n} then": w for n, w in before.items()} | engine.weights()


def in_shards(**options: Any) -> Any:
    """Weights, sharded modules, and how often parameters are gathered in a step."""
    engine = engine_of(Layout(shard=2, **options))
    loader = _loader(engine)
    run = Trainer(engine, [hooks.Loss()])
    run.fit(loader, max_steps=3)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run.fit(loader, max_steps=4)
    gathered = sum(event.name == "c10d::_allgather_base_" for event in seen.events())
    sharded = sum(isinstance(module, FSDPModule) for module in engine.model.modules())
    return engine.weights(), sharded, gathered


def shard_options() -> Any:
    kinds = {
        "usual": {}, "blocks": {"blocks": "1.*.0"}, "kept": {"reshard": False},
        "offload": {"offload": True}, "bf16": {"dtype": "bf16"},
    }  # fmt: skip
    found = {name: in_shards(**options) for name, options in kinds.items()}
    try:
        in_shards(blocks="1.1.1.*")
    except ValueError as error:
        return found, str(error)
    return found, "nothing"


def in_fewer_bits(compile: Any, precision: str, kind: str) -> Any:
    engine = engine_of(
        Layout(**{kind: 2}),
        torch.float32,
        compile=compile,
        precision=precision,  # type: ignore
    )
    Trainer(engine, [hooks.Loss()]).fit(_loader(engine, torch.float32), epochs=2)
    return engine.weights()


def executed() -> Any:
    kinds = [(False, "fp32"), ("aot_eager", "fp32"), (False, "bf16")]
    return {
        (*options, kind): in_fewer_bits(*options, kind)
        for options in kinds
        for kind in ("replicate", "shard")
    }


def overflowing() -> Any:
    """One process meets a loss that overflows in half precision; what both make of it."""
    engine = engine_of(Layout(replicate=2), torch.float32, precision="fp16")
    x, y = samples_of(engine)
    batches = [(x, y), (x, y), (x, y)]
    if c10d.get_rank() == 1:
        batches[1] = (x * 1e6, y)
    updated: list[bool] = []
    note = hooks.Callback(after_step=lambda run: updated.append(run.updated))
    run = Trainer(engine, [hooks.Loss(), note])
    run.fit(batches, epochs=1)
    assert engine.scaler is not None
    return updated, run.run.step, engine.scaler.get_scale(), engine.weights()


def samples_of(engine: Engine) -> Any:
    return next(iter(_loader(engine, torch.float32)))


# Tasks


def by_epoch(layout: Layout | None) -> Engine:
    """An engine whose rate is halved after every epoch."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return Engine(
        model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler, lr_step="epoch",
        layout=layout,
    )  # fmt: skip


def tasks(folder: Path, layout: Layout | None) -> dict[str, Any]:
    """What the calls of a trainer give, one after the other."""
    engine = by_epoch(layout)
    loader = _loader(engine)
    run = Trainer(engine, [hooks.Loss(), hooks.Metrics("accuracy")], run_dir=folder / "run")
    before = engine.weights()
    dev = run.fit(loader, loader, fast_dev_run=True)
    untouched = all(torch.equal(before[n], w) for n, w in engine.weights().items())
    run.fit(loader, epochs=2)
    rate = engine.optimizer.param_groups[0]["lr"]
    run.save(folder / "saved")
    found = {
        "dev": [dict(row) for row in dev], "untouched": untouched, "rate": rate,
        "scores": run.evaluate(loader), "predicted": run.predict(loader),
        "files": sorted(path.name for path in (folder / "run").glob("*")),
    }  # fmt: skip
    other = Trainer(by_epoch(layout), [hooks.Loss()])
    other.load(folder / "saved")
    other.fit(_loader(other.engine), epochs=3)
    run.fit(loader, epochs=3)
    found["weights"], found["again"] = engine.weights(), other.engine.weights()
    return found


def interrupted(rank: int) -> Any:
    """Ctrl-C reaches one process; where both end."""

    def act(run: Any) -> None:
        if run.step == 3 and c10d.get_rank() == rank:
            os.kill(os.getpid(), signal.SIGINT)

    note = hooks.Callback(after_step=act)
    note.same_on_all_ranks = True
    run = Trainer(engine_of(Layout(replicate=2)), [note])
    history = run.fit(_loader(run.engine), max_steps=100_000)
    return run.run.step, history.stop_reason
