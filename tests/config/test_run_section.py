"""X07: every field of ``run`` does something, or is refused."""

import dataclasses

import pytest
import torch

from stoker import StokerError, hooks
from stoker.build import build_job
from stoker.config import ConfigError, RunConfig, load
from stoker.config.run_section import CheckpointConfig, Parallel, batch_sizes, help_lines


@pytest.fixture(autouse=True)
def torch_as_it_was():
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


def behaviour(folder, *overrides):
    """Everything that a run shows, as one comparable value, or the words it is refused with."""
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    always = ["model.dropout=0.1", "optimizer.lr=0.5", "lr_scheduler={type: StepLR, step_size: 1}"]
    try:
        job = build_job(load(folder / "cfg.yaml", [*always, *overrides]))
        history = job.fit()
    except (ValueError, StokerError) as error:
        return str(error)
    (sizes,) = [hook for hook in job.trainer.hooks if type(hook).__name__ == "Sizes"]
    (loss,) = [h for h in job.trainer.hooks if isinstance(h, hooks.Loss)] or [None]
    engine = job.trainer.engine
    with torch.no_grad():
        kind = str(engine(torch.ones(2, 4)).dtype)
    row = {name: v for name, v in history[-1].items() if not name.startswith("time")}
    return {
        "sizes": sizes.sizes,
        "rates": sizes.rates,
        "threads": sizes.threads,
        "validated": sizes.val,
        "end": {name: round(value, 5) for name, value in row.items()},
        "kind": kind,
        "compiled": str(type(engine.criterion)),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "hooks": [type(hook).__name__ for hook in job.trainer.hooks],
        "window": loss._recent.maxlen if loss else None,
        "dir": str(job.trainer.run.dir),
    }


FIELDS = {
    "name": "other",
    "dir": "elsewhere",
    "seed": 5,
    "epochs": 3,
    "max_steps": 3,
    "device": "cuda:7",
    "precision": "bf16",
    "compile": "eager",
    "activation_checkpointing": "blocks",  # the model has none: refused
    "deterministic": "true",
    "threads": 1,
    "micro_batch": 5,
    "accumulate": 2,
    "global_batch": 8,
    "last_window": "drop",
    "clip_norm": 0.01,
    "clip_value": 0.001,
    "lr_step": "epoch",
    "validate_every": "2st",
    "log_every": 7,
    "progress": "true",
    "default_hooks": "false",
    "limit_train_batches": 2,
    "limit_val_batches": 1,
    "overfit_batches": 1,
    "resume": "must",
    "grace": -1,
    "dead_after": 0,
    "hung_after": -1,
}
CHECKPOINT = {
    "every": "4st",
    "max_overhead": 2.0,
    "keep": 1,
    "keep_every": 2,
    "best": "val/los",
    "mode": "max",
    "upload_every": "4st",
    "upload_timeout": -1,
}
PARALLEL = {
    "replicate": 2,
    "shard": 2,
    "tensor": 2,
    "pipeline": 2,
    "context": 2,
    "blocks": "net.*",
    "reshard": "false",
    "offload": "true",
    "dtype": "bf16",
    "plan": "{a: col}",
    "sequence_parallel": "true",
    "loss_parallel": "true",
    "sequence": "[a, b]",
    "split": "[b]",
    "virtual": 2,
    "schedule": "gpipe",
    "microbatches": 4,
    "unused": "true",
    "sync_batchnorm": "true",
    "logical_ranks": 1,
}
BESIDE = {"last_window": ["run.accumulate=2"], "micro_batch": ["~train_loader.batch_size"]}


@pytest.mark.parametrize("field", ["log_every=7", "checkpoint.keep=1"])
def test_a_field_of_the_default_hooks_is_refused_without_them(folder, field):
    overrides = ["run.dir=null", "run.default_hooks=false", f"run.{field}"]
    with pytest.raises(ConfigError, match="configures a default hook, which run.default_hooks"):
        build_job(load(folder / "cfg.yaml", overrides))


def kept(folder, *overrides):
    """The steps that a run has checkpoints of, or why there is no run."""
    try:
        job = build_job(load(folder / "cfg.yaml", overrides))
        job.fit()
    except (ValueError, StokerError) as error:
        return str(error)
    return sorted(path.name for path in (job.trainer.run.dir / "checkpoints").glob("step-*"))


@pytest.mark.row("X07")
def test_every_field_is_in_the_table():
    of_run = {one.name for one in dataclasses.fields(RunConfig)} - {"parallel", "checkpoint"}
    assert of_run == set(FIELDS)
    assert {one.name for one in dataclasses.fields(Parallel)} == set(PARALLEL)
    assert {one.name for one in dataclasses.fields(CheckpointConfig)} == set(CHECKPOINT)


@pytest.mark.slow
@pytest.mark.row("X07")
@pytest.mark.parametrize("field", CHECKPOINT)
def test_every_field_of_checkpoint_changes_what_is_kept_or_is_refused(folder, field):
    beside = {"best": ["run.checkpoint.mode=min"], "mode": ["run.checkpoint.best=val/loss"]}
    few = ["run.checkpoint.every=2st", "run.checkpoint.keep=2", "run.epochs=3"]
    name = f"run.name={field}"
    with_it = [*few, *beside.get(field, []), f"run.checkpoint.{field}={CHECKPOINT[field]}"]
    assert kept(folder, "run.name=plain", *few) != kept(folder, name, *with_it)


@pytest.mark.slow
@pytest.mark.row("X07")
@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_run_changes_what_happens_or_is_refused(folder, field):
    beside = BESIDE.get(field, [])
    without = behaviour(folder, "run.dir=null", *beside) if field != "name" else None
    where = [] if field in ("name", "dir") else ["run.dir=null"]
    with_it = behaviour(folder, *where, *beside, f"run.{field}={FIELDS[field]}")
    assert with_it != without
    if field == "name":
        assert with_it["dir"] == "runs/other"
    if field == "dir":
        assert with_it["dir"] == "elsewhere/cfg"


@pytest.mark.row("X07")
@pytest.mark.parametrize("field", PARALLEL)
def test_every_field_of_parallel_is_refused_in_one_process(folder, field):
    one = ["run.parallel.replicate=1"] if field in ("unused", "sync_batchnorm") else []
    said = behaviour(folder, "run.dir=null", *one, f"run.parallel.{field}={PARALLEL[field]}")
    assert isinstance(said, str)
    assert field in said


@pytest.mark.slow
@pytest.mark.row("X07")
def test_the_comparison_of_options_is_repeatable(folder):
    assert behaviour(folder, "run.dir=null") == behaviour(folder, "run.dir=null")


@pytest.mark.row("T05")
def test_the_defaults_of_run_are_these():
    assert dataclasses.asdict(RunConfig()) == {
        "name": None,
        "dir": "runs",
        "seed": 0,
        "epochs": None,
        "max_steps": None,
        "device": "auto",
        "precision": "fp32",
        "compile": False,
        "activation_checkpointing": None,
        "deterministic": False,
        "threads": None,
        "micro_batch": None,
        "accumulate": None,
        "global_batch": None,
        "last_window": "flush",
        "clip_norm": None,
        "clip_value": None,
        "lr_step": "step",
        "validate_every": "1ep",
        "log_every": 50,
        "progress": True,
        "default_hooks": True,
        "resume": "auto",
        "grace": 30.0,
        "dead_after": 10.0,
        "hung_after": 300.0,
        "limit_train_batches": None,
        "limit_val_batches": None,
        "overfit_batches": None,
        "checkpoint": {
            "every": "epoch",
            "max_overhead": 0.01,
            "keep": 3,
            "keep_every": None,
            "best": None,
            "mode": None,
            "upload_every": None,
            "upload_timeout": 600.0,
        },
        "parallel": {
            "replicate": -1,
            "shard": 1,
            "tensor": 1,
            "pipeline": 1,
            "context": 1,
            "blocks": None,
            "reshard": True,
            "offload": False,
            "dtype": None,
            "plan": "auto",
            "sequence_parallel": False,
            "loss_parallel": False,
            "sequence": None,
            "split": None,
            "schedule": "1f1b",
            "microbatches": None,
            "virtual": None,
            "unused": False,
            "sync_batchnorm": False,
            "logical_ranks": None,
        },
    }


@pytest.mark.row("T05")
def test_an_unknown_argument_of_run_raises():
    with pytest.raises(TypeError):
        RunConfig(max_epochs=3)


@pytest.mark.row("T06")
def test_a_partial_run_keeps_the_other_defaults(folder):
    (folder / "part.yaml").write_text("run: {epochs: 2, clip_norm: 5e-05, parallel: {shard: 1}}\n")
    found = load(folder / "part.yaml").check()["run"]
    expected = dataclasses.asdict(RunConfig(epochs=2, clip_norm=5e-05))
    assert found == expected
    assert type(found["clip_norm"]) is float


@pytest.mark.row("T06")
@pytest.mark.parametrize("text", ["run: {epoch: 2}\n", "run: {parallel: {x: 1}}\n", "runn: {}\n"])
def test_an_unknown_section_or_key_is_an_error(folder, text):
    (folder / "part.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"part\.yaml:1"):
        load(folder / "part.yaml").check()


def test_every_field_has_a_help_text():
    lines = help_lines()
    assert len(lines) >= len(FIELDS) + len(PARALLEL)
    assert all(help for _, _, _, help in lines)


# L19


@pytest.mark.row("L19")
@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ((4, None, None, 1), (4, 1, 4)),
        ((4, 3, None, 2), (4, 3, 24)),
        ((4, None, 24, 2), (4, 3, 24)),
        ((None, 3, 24, 2), (4, 3, 24)),
        ((None, None, 24, 2), (12, 1, 24)),
        ((4, 3, 24, 2), (4, 3, 24)),
        ((None, None, None, 2), (None, 1, None)),
        ((None, 3, None, 2), (None, 3, None)),
    ],
)
def test_two_of_the_batch_sizes_give_the_third(given, whole):
    assert batch_sizes(*given) == whole


@pytest.mark.row("L19")
@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ((4, 3, 25, 2), ["4", "3", "24", "25", "2 processes"]),
        ((4, None, 25, 2), ["25", "4", "2"]),
        ((None, 3, 25, 2), ["25", "3", "2"]),
        ((0, None, None, 1), ["micro_batch", "0"]),
        ((4, -1, None, 1), ["accumulate", "-1"]),
        ((4, None, 0, 1), ["global_batch", "0"]),
    ],
)
def test_batch_sizes_that_do_not_agree_are_refused_with_the_numbers(given, numbers):
    with pytest.raises(ValueError, match="run") as caught:
        batch_sizes(*given)
    for number in numbers:
        assert number in str(caught.value)


@pytest.mark.row("L19")
def test_the_batch_algebra_reaches_loader_and_trainer(folder):
    job = build_job(
        load(
            folder / "cfg.yaml",
            ["~train_loader.batch_size", "run.micro_batch=2", "run.global_batch=6", "run.dir=null"],
        )
    )
    assert job.train_loader.batch_size == 2
    assert job.trainer.accumulate == 3
    assert job.run.global_batch == 6


@pytest.mark.row("L19")
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["run.micro_batch=5"], "train_loader.batch_size is 4, but run.micro_batch is 5"),
        (["run.global_batch=6"], "run.global_batch 6 is not divisible by micro_batch 4"),
        (["run.global_batch=8", "run.accumulate=3"], "is 12, but run.global_batch is 8"),
        (["run.accumulate=0"], "run.accumulate must be at least 1, got 0"),
    ],
)
def test_a_batch_algebra_that_fails_is_refused_before_anything_is_built(folder, overrides, words):
    with pytest.raises(ConfigError) as caught:
        build_job(load(folder / "cfg.yaml", overrides))
    assert words in str(caught.value)
    import parts

    assert parts.MADE == []


@pytest.mark.row("X07")
def test_a_micro_batch_for_a_loader_that_takes_none_is_refused(folder):
    with pytest.raises(ConfigError, match="has no batch_size"):
        build_job(
            load(
                folder / "cfg.yaml",
                ["train_loader={_target_: parts.loader_without_size}", "run.micro_batch=2"],
            )
        )


def test_a_batch_size_given_by_its_position_counts(folder):
    loader = "{_target_: torch.utils.data.DataLoader, _args_: [{_target_: parts.data}, 4]}"
    config = load(folder / "cfg.yaml", [f"train_loader={loader}", "run.global_batch=8"])
    assert build_job(config).run.accumulate == 2


# T07


@pytest.mark.row("T07")
@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:2", "device 'cuda:2' was requested, but this machine has cpu only"),
        ("cuda", "device 'cuda' was requested"),
        ("gpu", "device 'gpu' is unknown"),
    ],
)
@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_a_device_that_is_not_there_is_refused_early(folder, device, words):
    assert words in behaviour(folder, f"run.device={device}")
    assert not (folder / "runs").exists()


@pytest.mark.row("T07")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_auto_is_the_cpu_where_there_is_nothing_else(folder, device):
    job = build_job(load(folder / "cfg.yaml", [f"run.device={device}"]))
    assert job.trainer.engine.device == torch.device("cpu")
