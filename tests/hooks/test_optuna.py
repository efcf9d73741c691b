"""A study of Optuna: pruned trials are stopped, a study is resumed, and each trial is a run."""

import json

import optuna
import pytest

from stoker import Trainer, hooks
from stoker.cli import main
from support.toys import batches, engine, net, sgd

DATA = batches(24)


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(root, ended=()):
    """Train a run for each trial, in a folder of its own; fail in some trials after two epochs."""

    def train(trial):
        lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        model = net()
        made = engine(model)
        made.set_optimizer(sgd(model, lr))
        fails = hooks.Callback(after_epoch=lambda run: 1 / (run.epoch < 2))
        trainer = Trainer(
            made,
            [
                *hooks.default(progress=False),
                hooks.Prune(trial),
                *([fails] if trial.number in ended else []),
            ],
            run_dir=root / f"trial-{trial.number}",
            params={"trial": trial.number, "lr": lr},
        )
        history = trainer.fit(DATA, DATA, epochs=4)
        if (history.stop_reason or "").startswith("pruned"):
            raise optuna.TrialPruned(history.stop_reason)
        return history[-1]["val/loss"]

    return train


def study(root, **options):
    return optuna.create_study(
        study_name="digits",
        storage=f"sqlite:///{root / 'study.db'}",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=3),
        pruner=optuna.pruners.PercentilePruner(50.0, n_startup_trials=1, n_warmup_steps=6),
        **options,
    )


def states(root, capsys):
    """The state that ``stoker status`` reports of each run, and why it stopped."""
    capsys.readouterr()
    main(["status", str(root), "--json"])
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    return {row["run"].rsplit("/", 1)[-1]: (row["state"], row["why"]) for row in rows}


@pytest.mark.slow
def test_a_study_prunes_resumes_and_keeps_a_run_per_trial(tmp_path, capsys):
    study(tmp_path).optimize(objective(tmp_path), n_trials=3)
    again = study(tmp_path)  # as another process would open it
    again.optimize(objective(tmp_path, ended=(4,)), n_trials=3, catch=ZeroDivisionError)
    found = {f"trial-{one.number}": one.state.name for one in again.trials}
    assert len(found) == 6
    assert set(found.values()) == {"COMPLETE", "PRUNED", "FAIL"}
    runs = states(tmp_path, capsys)
    assert runs.keys() == found.keys()
    expected = {"COMPLETE": "finished", "PRUNED": "stopped", "FAIL": "failed"}
    for name, state in found.items():
        assert runs[name][0] == expected[state], name
        assert runs[name][1].startswith("pruned at val/loss") == (state == "PRUNED")
    assert again.best_value == min(t.value for t in again.trials if t.value is not None)


@pytest.mark.slow
def test_a_trial_that_is_run_again_resumes_and_one_with_other_values_is_another_run(tmp_path):
    trials = study(tmp_path)
    trials.enqueue_trial({"lr": 0.1})
    trials.optimize(objective(tmp_path, ended=(0,)), n_trials=1, catch=ZeroDivisionError)
    trial = optuna.trial.FixedTrial({"lr": 0.1}, number=0)
    loss = objective(tmp_path)(trial)
    assert [path.name for path in tmp_path.glob("trial-*")] == ["trial-0"]
    assert loss == objective(tmp_path / "fresh")(trial)
    objective(tmp_path)(optuna.trial.FixedTrial({"lr": 0.2}, number=0))
    assert sorted(path.name for path in tmp_path.glob("trial-*")) == ["trial-0", "trial-0-2"]


def test_a_search_that_is_repeated_in_the_same_folders_gives_the_same_study(tmp_path):
    found = []
    for _ in range(2):
        again = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=3),
            pruner=optuna.pruners.PercentilePruner(50.0, n_startup_trials=1, n_warmup_steps=6),
        )
        again.optimize(objective(tmp_path), n_trials=4)
        found.append([(one.state, one.value, one.intermediate_values) for one in again.trials])
    assert found[0] == found[1]
    assert optuna.trial.TrialState.PRUNED in [state for state, *_ in found[0]]
    assert len(list(tmp_path.iterdir())) == 4
