import json
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stoker import Engine, Hook, Output, PlainSchedule, Step, Trainer, hooks
from stoker.hooks import Callback
from support.toys import (
    Recorder,
    batches,
    engine,
    loader,
    net,
    plain_loop,
    same_bits,
    samples,
    sgd,
    trainer,
    weights,
)

EPOCH = [
    "before_epoch",
    *["before_step", "after_forward", "before_update", "after_step"] * 2,
    "after_train_epoch",
    "before_val",
    "before_val_step",
    "after_val_step",
    "after_val",
    "after_epoch",
]


def test_the_points_fire_in_the_order_of_the_picture():
    recorder = Recorder()
    trainer(recorder).fit(batches(8), batches(4), epochs=2)
    around = ["attach", "before_run", "before_train"], ["after_train", "after_run"]
    assert recorder.points == [*around[0], *EPOCH, *EPOCH, *around[1]]


def test_points_of_micro_batches_fire_once_for_each():
    recorder = Recorder()
    trainer(recorder, accumulate=2).fit(batches(8), epochs=1)
    step = [p for p in recorder.points if "step" in p or "forward" in p or "update" in p]
    assert step == ["before_step", "after_forward", "after_forward", "before_update", "after_step"]


@pytest.mark.row("C04")
def test_a_trainer_without_anything_fits_evaluates_and_predicts():
    plain = trainer()
    plain.fit(batches(), epochs=5, max_steps=3)
    assert plain.run.step == 3
    assert plain.evaluate(batches()) == {}
    assert plain.predict(batches()).shape == (20, 3)


@pytest.mark.row("C06")
@pytest.mark.parametrize("wrong", ["hook", 3, object()])
def test_an_element_that_is_no_hook_is_named(wrong):
    with pytest.raises(TypeError, match=r"hooks\[1\] is .* expected a Hook"):
        Trainer(engine(), [Hook(), wrong])


def test_a_hook_class_in_place_of_a_hook_is_named_with_the_way_out():
    with pytest.raises(TypeError, match=r"did you mean Loss\(\)\?"):
        Trainer(engine(), [hooks.Loss])


def test_one_hook_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match="hooks is of type Loss, expected a list"):
        Trainer(engine(), hooks.Loss())


def test_no_hooks_means_the_defaults_and_an_empty_list_means_nothing():
    assert [type(h) for h in Trainer(engine()).hooks] == sorted(
        [type(h) for h in hooks.default()], key=lambda kind: kind.priority
    )
    assert list(Trainer(engine(), []).hooks) == []


def test_two_hooks_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two hooks are named 'Loss'"):
        Trainer(engine(), [hooks.Loss(), hooks.Loss()])


@pytest.mark.row("C07")
def test_hooks_run_by_priority_then_in_the_order_given_and_the_list_stays_as_it_was():
    order: list[str] = []

    def hook(name: str, priority: int) -> Hook:
        return Callback(name=name, priority=priority, after_step=lambda _: order.append(name))

    given = [hook("c", 50), hook("a", 10), hook("d", 50), hook("b", 10), hook("e", 90)]
    before = list(given)
    Trainer(engine(), given).fit(batches(4), epochs=1)
    assert order == ["a", "b", "c", "d", "e"]
    assert given == before


@pytest.mark.row("C07")
def test_the_effective_order_is_logged_once(tmp_path):
    run = Trainer(engine(), run_dir=tmp_path)
    run.fit(batches(4), epochs=1)
    run.fit(batches(4), epochs=2)
    said = (tmp_path / "log.txt").read_text()
    assert (
        said.count("hooks in order: Loss (10), Timing (10), Checkpoint (70), SaveWeights (70)") == 1
    )


@pytest.mark.row("C08")
def test_a_hook_that_never_calls_super_still_runs():
    class Bare(Hook):
        def __init__(self) -> None:
            self.steps = 0

        def after_step(self, run):
            self.steps += 1

    bare = Bare()
    trainer(bare).fit(batches(), epochs=1)
    assert bare.steps == 5
    assert bare.priority == 50
    assert bare.name == "Bare"


@pytest.mark.row("C10")
def test_a_step_shows_its_own_output_targets_and_loss():
    seen = []

    def look(run):
        (output,) = run.outputs
        expected = nn.functional.cross_entropy(output.outputs.detach(), output.targets)
        seen.append(
            (torch.equal(output.targets, run.batches[0][1]), torch.equal(run.loss, expected))
        )

    trainer(Callback(after_step=look)).fit(batches(), epochs=1)
    assert seen == [(True, True)] * 5


@pytest.mark.row("C12")
def test_a_number_is_visible_at_its_point_only_to_later_hooks():
    class Writes(Hook):
        priority = 40

        def after_step(self, run):
            run.record("mine", run.step)

    seen: dict[str, list] = {"early": [], "late": []}
    early = Callback(
        name="early", priority=30, after_step=lambda r: seen["early"].append(r.metrics.get("mine"))
    )
    late = Callback(
        name="late", priority=50, after_step=lambda r: seen["late"].append(r.metrics.get("mine"))
    )
    trainer(late, Writes(), early).fit(batches(12), epochs=1)
    assert seen == {"early": [None, 1, 2], "late": [1, 2, 3]}


@pytest.mark.slow
@pytest.mark.row("C23", "T24")
@pytest.mark.parametrize(
    ("every", "epochs", "expected"),
    [("1ep", 3, [1, 2, 3]), ("2ep", 5, [2, 4, 5]), ("5ep", 3, [3]), (None, 2, [])],
)
def test_validation_follows_completed_multiples_and_the_end(every, epochs, expected):
    seen = []
    look = Callback(before_val=lambda run: seen.append(run.epoch))
    trainer(look).fit(batches(8), batches(4), epochs=epochs, validate_every=every)
    assert seen == expected


@pytest.mark.row("T24")
@pytest.mark.parametrize(("every", "expected"), [("2st", [2, 4, 6]), (4, [4, 6]), ("3st", [3, 6])])
def test_validation_by_steps_is_not_made_at_step_0_and_not_twice(every, expected):
    seen = []
    look = Callback(before_val=lambda run: seen.append(run.step))
    trainer(look).fit(batches(12), batches(4), epochs=2, validate_every=every)
    assert seen == expected


@pytest.mark.slow
def test_validation_by_the_clock(monkeypatch):
    clock = iter(range(0, 100_000, 25))
    monkeypatch.setattr("stoker.core.dist.now", lambda: next(clock))
    seen = []
    look = Callback(before_val=lambda run: seen.append(run.step))
    trainer(look).fit(batches(40), batches(4), epochs=1, validate_every="1min")
    assert len(seen) > 2
    assert seen[-1] == 10


@pytest.mark.row("C24")
def test_max_steps_makes_exactly_so_many_updates_and_closes_the_epoch():
    recorder = Recorder()
    run = trainer(recorder)
    history = run.fit(batches(20), batches(4), epochs=10, max_steps=7)
    assert run.run.step == 7
    assert run.run.epoch == 1
    assert recorder.points.count("after_train_epoch") == 2
    assert recorder.points.count("after_epoch") == 2
    assert recorder.points.count("after_train") == 1
    assert recorder.points.count("before_val") == 2  # after epoch 1 and at the end
    assert [row["epoch"] for row in history] == [1, 2]


def test_max_steps_at_the_end_of_an_epoch_finishes_that_epoch():
    run = trainer()
    run.fit(batches(20), max_steps=5)
    assert (run.run.step, run.run.epoch) == (5, 1)


@pytest.mark.row("C25")
def test_evaluation_fires_its_points_alone_and_changes_nothing():
    model = net(norm=True, dropout=True)
    recorder = Recorder()
    looking = trainer(recorder, hooks.Loss(), model=model)
    before, random_before = weights(model), torch.get_rng_state()
    model.train()
    model[0].eval()
    looking.evaluate(loader(8, shuffle=True))
    assert recorder.points == [
        "attach",
        "before_run",
        "before_val",
        *["before_val_step", "after_val_step"] * 2,
        "after_val",
        "after_run",
    ]
    assert same_bits(before, model)
    assert torch.equal(random_before, torch.get_rng_state())
    assert [module.training for module in model] == [False, True, True, True, True]


@pytest.mark.row("L22")
def test_evaluation_that_fails_restores_the_modes_too():
    model = net()
    broken = trainer(Callback(after_val_step=lambda run: 1 / 0), model=model)
    with pytest.raises(ZeroDivisionError):
        broken.evaluate(batches())
    assert all(module.training for module in model.modules())


def test_a_fit_leaves_the_modes_as_it_found_them():
    model = net().eval()
    trainer(model=model).fit(batches(), epochs=1)
    assert not any(module.training for module in model.modules())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, a, b):
        return {"sum": self.layer(a + b), "pair": (a, b.sum(1))}


@pytest.mark.row("C26")
def test_predict_takes_a_tensor_a_tuple_or_a_dict_and_keeps_the_structure():
    x, _ = samples(6)
    model = net(dropout=True)
    predicted = trainer(model=model).predict(x)
    assert torch.equal(predicted, model.eval()(x))
    assert not predicted.requires_grad
    two = Trainer(Engine(Two()), [])
    for data in ((x, x), {"a": x, "b": x}):
        out = two.predict(data)
        assert out["sum"].shape == (6, 1)
        assert torch.equal(out["pair"][1], x.sum(1))
    assert two.engine.training


@pytest.mark.row("O15")
def test_predict_keeps_shapes_and_joins_in_input_order():
    x, y = samples(10)
    two = Trainer(Engine(Two()), [])
    whole = two.predict((x, x))
    joined = two.predict([((x[i : i + 4], x[i : i + 4]), y[i : i + 4]) for i in (0, 4, 8)])
    assert joined["sum"].shape == (10, 1)
    assert torch.equal(joined["pair"][0], x)
    torch.testing.assert_close(joined["sum"], whole["sum"])


def test_the_points_of_a_prediction():
    recorder = Recorder()
    trainer(recorder).predict(batches(8))
    assert recorder.points == [
        "attach",
        "before_run",
        "before_predict",
        *["before_predict_step", "after_predict_step"] * 2,
        "after_predict",
        "after_run",
    ]


@pytest.mark.slow
@pytest.mark.row("C27")
@pytest.mark.parametrize(("policy", "updates"), [("drop", 2), ("flush", 3)])
def test_the_last_short_window_is_dropped_or_flushed(policy, updates):
    run = trainer(accumulate=4, last_window=policy)
    run.fit(batches(40), epochs=1)
    assert len(batches(40)) == 10
    assert run.run.step == updates
    assert run.run.epoch == 1


@pytest.mark.row("L01")
def test_every_point_fires_once_per_step_and_around_training():
    recorder = Recorder()
    trainer(recorder).fit(batches(12), epochs=1)
    assert [recorder.points.count(p) for p in ("before_train", "before_step", "after_step")] == [
        1,
        3,
        3,
    ]
    assert recorder.points.count("after_train") == 1


@pytest.mark.row("L02")
def test_the_counter_distinguishes_success_from_failure():
    seen = []

    def fail(run):
        if run.step == 2:
            raise RuntimeError("boom")

    well = trainer(Callback(after_train=lambda run: seen.append(run.step)))
    well.fit(batches(20), max_steps=4)
    ill = trainer(
        Callback(before_update=fail, after_train=lambda run: seen.append((run.step, run.error)))
    )
    with pytest.raises(RuntimeError, match="boom") as caught:
        ill.fit(batches(20), max_steps=4)
    assert seen == [4, (2, caught.value)]


@pytest.mark.row("L03")
def test_a_failure_is_logged_and_stays_on_top_when_a_closing_hook_fails_too(tmp_path):
    closed = []

    def fail(run):
        if run.step == 2:
            raise KeyError("first")

    broken = Trainer(
        engine(),
        [
            hooks.LogFile(),
            Callback(name="fails", after_step=fail),
            Callback(name="closes badly", after_train=lambda run: {}[1]),
            Callback(name="closes", after_train=closed.append, after_run=closed.append),
        ],
        run_dir=tmp_path,
    )
    with pytest.raises(KeyError, match="first"):
        broken.fit(batches(), epochs=1)
    said = (tmp_path / "log.txt").read_text()
    assert "the run failed at step 2" in said
    assert "KeyError: 'first'" in said
    assert "hook 'closes badly' failed in after_train as well" in said
    assert len(closed) == 2


@pytest.mark.row("L04")
def test_none_among_hooks_is_left_out():
    assert list(Trainer(engine(), [None, None]).hooks) == []


@pytest.mark.row("X03")
def test_a_failing_hook_is_named_with_point_and_step_and_its_type_stays():
    closed = []
    broken = trainer(
        Callback(name="bad one", after_step=lambda run: {}["missing"]),
        Callback(name="closer", after_train=closed.append, after_run=closed.append),
    )
    with pytest.raises(KeyError, match="missing") as caught:
        broken.fit(batches(), epochs=3)
    note = "raised by hook 'bad one' in after_step, at step 1 (0 of 3 epochs finished)"
    assert caught.value.__notes__ == [note]
    assert len(closed) == 2


def test_on_exception_comes_before_the_closing_points_and_once():
    recorder = Recorder()

    def fail(run):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        trainer(recorder, Callback(before_step=fail)).fit(batches(), epochs=1)
    assert recorder.points[-4:] == ["before_step", "on_exception", "after_train", "after_run"]


def test_a_closing_hook_that_fails_alone_is_raised_after_all_have_closed():
    closed = []
    broken = trainer(
        Callback(name="closes badly", after_train=lambda run: {}[1]),
        Callback(name="closes", priority=60, after_train=closed.append, after_run=closed.append),
    )
    with pytest.raises(KeyError):
        broken.fit(batches(), epochs=1)
    assert len(closed) == 2


@pytest.mark.slow
@pytest.mark.row("X04")
def test_a_run_with_nothing_left_to_do_returns_cleanly():
    recorder = Recorder()
    done = trainer(recorder)
    done.fit(batches(), epochs=2)
    recorder.points.clear()
    before = weights(done.engine.model)
    assert len(done.fit(batches(), epochs=2)) == 2
    assert recorder.points == ["before_run", "after_run"]
    assert same_bits(before, done.engine.model)


@pytest.mark.slow
def test_a_second_fit_with_more_epochs_continues():
    mine, theirs = net(), net()
    run = trainer(model=mine)
    run.fit(batches(), epochs=1)
    run.fit(batches(), epochs=3)
    plain_loop(theirs, sgd(theirs), batches(), epochs=3)
    assert run.run.epoch == 3
    assert same_bits(mine, theirs)


@pytest.mark.row("O08")
def test_the_current_step_exists_only_within_a_step():
    seen = []

    def before(run):
        seen.append((len(run.batches), list(run.outputs)))
        with pytest.raises(AttributeError, match=r"run\.loss belongs to the current step"):
            run.loss

    def outside(run):
        for name in ("batches", "outputs", "sizes", "loss"):
            with pytest.raises(AttributeError, match=f"run.{name} belongs to the current step"):
                getattr(run, name)

    watch = Callback(
        before_step=before,
        before_val_step=before,
        before_predict_step=before,
        before_epoch=outside,
        after_train_epoch=outside,
        after_val=outside,
        after_predict=outside,
    )
    run = trainer(watch)
    run.fit(batches(8), batches(4), epochs=1)
    run.predict(batches(4))
    outside(run.run)
    assert seen == [(1, [])] * 4


@pytest.mark.row("O08")
def test_a_failed_run_lets_go_of_its_step():
    broken = trainer(Callback(after_step=lambda run: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        broken.fit(batches(), epochs=1)
    with pytest.raises(AttributeError):
        broken.run.outputs


def test_a_misspelt_attribute_of_the_run_is_answered_with_the_right_one():
    with pytest.raises(AttributeError, match="did you mean 'samples'"):
        trainer().run.sample


@pytest.mark.row("O09")
def test_each_stage_has_its_own_points_and_a_base_class_can_give_them_one_name():
    class Generic(Hook):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def before_any(self, run):
            self.seen.append(run.task)

        def before_step(self, run):
            self.before_any(run)

        before_val_step = before_predict_step = before_step

    class Silent(Generic):
        def before_step(self, run):
            pass

    everywhere, silent = Generic(), Silent()
    run = trainer(everywhere, silent)
    run.fit(batches(4), batches(4), epochs=1)
    run.predict(batches(4))
    assert everywhere.seen == ["fit", "fit", "predict"]
    assert silent.seen == ["fit", "predict"]


@pytest.mark.slow
@pytest.mark.row("O10")
def test_stop_ends_the_run_after_the_step_and_a_later_fit_starts_clean():
    fetched = []

    class Counting:
        def __iter__(self):
            for number, batch in enumerate(batches()):
                fetched.append(number)
                yield batch

    recorder = Recorder()
    stop = Callback(after_step=lambda run: run.stop("enough") if run.step == 2 else None)
    run = trainer(recorder, stop)
    history = run.fit(Counting(), epochs=5)
    assert fetched == [0, 1]
    assert history.stop_reason == "enough"
    closing = ["after_train_epoch", "after_epoch", "after_train", "after_run"]
    assert recorder.points[-4:] == closing
    run.fit(batches(), epochs=5)
    assert run.run.epoch == 5
    assert run.history.stop_reason is None


def test_a_stopped_run_is_not_validated_once_more():
    recorder = Recorder()
    stop = Callback(after_step=lambda run: run.stop("enough") if run.step == 7 else None)
    trainer(recorder, stop).fit(batches(), batches(4), epochs=5)
    assert recorder.points.count("before_val") == 1


def test_stop_may_be_called_from_another_thread():
    run = trainer(Callback(after_step=lambda run: time.sleep(0.005)))
    threading.Timer(0.1, run.stop, ["from outside"]).start()
    assert run.fit(batches(), epochs=10_000).stop_reason == "from outside"


@pytest.mark.slow
@pytest.mark.row("O14")
def test_validation_results_are_visible_in_after_epoch_and_not_in_after_train_epoch():
    seen = []
    look = Callback(
        priority=80,
        after_train_epoch=lambda run: seen.append(sorted(run.metrics)),
        after_epoch=lambda run: seen.append(sorted(run.metrics)),
    )
    trainer(hooks.Loss(), look).fit(batches(), batches(4), epochs=2)
    assert seen == [["train/loss"], ["train/loss", "val/loss"]] * 2


@pytest.mark.row("O16")
def test_evaluate_and_predict_need_neither_optimizer_nor_criterion():
    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, y=None):
            return self.layer(x)

    bare = Trainer(Engine(Judge()), [hooks.Metrics("accuracy"), hooks.Loss()])
    assert set(bare.evaluate(batches())) == {"val/accuracy"}
    assert bare.predict(batches()).shape == (20, 3)


@pytest.mark.row("O16")
def test_fit_without_an_optimizer_fails_before_touching_data():
    class Untouchable:
        def __iter__(self):
            raise AssertionError("data was touched")

    with pytest.raises(ValueError, match="fit\\(\\) needs an optimizer"):
        Trainer(Engine(net(), criterion=nn.CrossEntropyLoss()), []).fit(Untouchable(), epochs=1)


@pytest.mark.row("T16")
def test_a_hook_can_stop_an_epoch_and_the_next_one_begins():
    run = trainer(Callback(after_step=lambda r: r.request("end_epoch") if r.step == 2 else None))
    run.fit(batches(20), epochs=2)
    assert (run.run.step, run.run.epoch) == (2 + 5, 2)


@pytest.mark.row("T16")
def test_a_hook_can_ask_for_evaluation_log_and_save_now(tmp_path):
    from stoker.events import JsonLines, read_json_lines

    validated = []

    def ask(run):
        if run.step == 3:
            for request in ("evaluate", "log", "save"):
                run.request(request)

    run = Trainer(
        engine(),
        [
            hooks.Loss(),
            hooks.Write(JsonLines(), every=100),
            hooks.SaveWeights(),
            Callback(
                after_step=ask,
                before_val=lambda r: validated.append(r.step),
                before_epoch=lambda r: None,
            ),
            Callback(
                name="look",
                priority=95,
                after_step=lambda r: (
                    saved.append((tmp_path / "model.safetensors").exists()) if r.step == 3 else None
                ),
            ),
        ],
        run_dir=tmp_path,
    )
    saved: list[bool] = []
    run.fit(batches(20), batches(4), epochs=1, validate_every=None)
    assert validated == [3]
    assert saved == [True]
    rows = read_json_lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if "val/loss" in row] == [3]
    assert [row["step"] for row in rows if "train/loss" in row] == [3, 5]


@pytest.mark.slow
@pytest.mark.row("T16")
def test_an_evaluation_can_be_requested_at_the_end_of_an_epoch():
    order = []
    run = trainer(
        Callback(
            after_epoch=lambda r: (order.append("epoch"), r.epoch == 1 and r.request("evaluate")),
            after_val=lambda r: order.append("val"),
        )
    )
    run.fit(batches(8), batches(4), epochs=2, validate_every=None)
    assert order == ["epoch", "val", "epoch"]


def test_asking_for_something_unknown_is_refused():
    with pytest.raises(ValueError, match="did you mean 'evaluate'"):
        trainer().run.request("evaluat")


@pytest.mark.row("T16")
def test_stop_training_from_a_hook():
    run = trainer(Callback(after_epoch=lambda run: run.stop("done")))
    run.fit(batches(), epochs=9)
    assert run.run.epoch == 1


class Endless(IterableDataset):
    def __iter__(self):
        x, y = samples(16)
        for i in range(0, 16, 4):
            yield x[i : i + 4], y[i : i + 4]


@pytest.mark.row("T22")
def test_loaders_without_a_length_work():
    run = trainer(hooks.Progress(), hooks.Loss())
    run.fit(DataLoader(Endless(), batch_size=None), max_steps=6)
    assert (run.run.step, run.run.epoch) == (6, 1)
    assert run.run.steps_per_epoch is None
    run.fit((b for b in batches(4)), epochs=2)
    assert run.run.epoch == 2


def test_an_iterator_that_is_used_up_is_an_error_not_an_endless_loop():
    with pytest.raises(ValueError, match="an iterator can be read only once"):
        trainer().fit(iter(batches()), epochs=2)


@pytest.mark.row("T23")
def test_evaluation_covers_every_sample():
    seen = []
    look = Callback(after_val_step=lambda run: seen.append(run.sizes[0]))
    trainer(look).evaluate(loader(10, 4))
    assert seen == [4, 4, 2]


@pytest.mark.row("T23")
def test_a_training_set_smaller_than_one_batch_is_an_error_or_one_small_batch():
    small = TensorDataset(*samples(3))
    with pytest.raises(
        ValueError, match="3 samples do not fill one batch of 8 and drop_last is on"
    ):
        trainer().fit(DataLoader(small, batch_size=8, drop_last=True), epochs=1)
    run = trainer()
    run.fit(DataLoader(small, batch_size=8), epochs=1)
    assert (run.run.step, run.run.samples) == (1, 3)


def test_several_validation_loaders_by_name():
    run = trainer(hooks.Loss(), hooks.Metrics("accuracy"))
    history = run.fit(batches(), {"clean": batches(8), "noisy": batches(12)}, epochs=1)
    results = {"val/clean/loss", "val/clean/accuracy", "val/noisy/loss", "val/noisy/accuracy"}
    assert results <= set(history[-1])
    assert set(run.evaluate({"other": batches(4)})) == {"val/other/loss", "val/other/accuracy"}


def test_fast_dev_run_makes_one_step_of_everything_and_writes_nothing(tmp_path):
    recorder = Recorder()
    run = Trainer(engine(), [*hooks.default(), recorder], run_dir=tmp_path / "run")
    history = run.fit(batches(), batches(), epochs=100, fast_dev_run=True)
    assert [row["step"] for row in history] == [1]
    run.evaluate(batches())
    run.predict(batches())
    assert recorder.points.count("before_step") == 1
    assert not (tmp_path / "run").exists()


def test_fast_dev_run_with_a_number():
    run = trainer()
    assert run.fit(batches(), batches(), fast_dev_run=3)["step"] == [3]


def test_a_trial_does_not_count():
    run = trainer()
    run.fit(batches(), fast_dev_run=True)
    assert (run.run.step, run.run.epoch, run.run.samples, run.history) == (0, 0, 0, [])
    run.fit(batches(), epochs=1)
    assert run.run.step == 5


@pytest.mark.slow
def test_overfit_batches_uses_the_same_few_batches_for_both():
    seen: dict[str, set] = {"train": set(), "val": set()}
    look = Callback(
        before_step=lambda run: seen["train"].add(run.batches[0][0].sum().item()),
        before_val_step=lambda run: seen["val"].add(run.batches[0][0].sum().item()),
    )
    run = trainer(look)
    run.fit(loader(40, shuffle=True), batches(8), epochs=5, overfit_batches=2)
    assert run.run.step == 10
    assert len(seen["train"]) == 2
    assert seen["train"] == seen["val"]


@pytest.mark.parametrize(("limit", "steps"), [(3, 3), (0.5, 3), (1.0, 5), (100, 5)])
def test_limits_count_batches_or_are_a_share(limit, steps):
    val_steps = []
    run = trainer(Callback(after_val_step=lambda run: val_steps.append(1)))
    run.fit(batches(), batches(), epochs=1, limit_train_batches=limit, limit_val_batches=limit)
    assert run.run.step == len(val_steps) == steps


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_makes_no_sense_is_refused(limit):
    with pytest.raises((ValueError, TypeError), match="limit on train_loader|limit_train_batches"):
        trainer().fit(batches(), epochs=1, limit_train_batches=limit)


def test_ctrl_c_stops_cleanly_after_the_step():
    before = signal.getsignal(signal.SIGINT)
    interrupt = Callback(
        after_step=lambda run: os.kill(os.getpid(), signal.SIGINT) if run.step == 3 else None
    )
    recorder = Recorder()
    run = trainer(interrupt, recorder)
    assert run.fit(batches(), epochs=50).stop_reason == "interrupted by Ctrl-C"
    assert run.run.step == 3
    assert recorder.points[-1] == "after_run"
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_twice_stops_at_once_and_restores_the_handler():
    before = signal.getsignal(signal.SIGINT)

    def twice(run):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("was not interrupted")

    recorder = Recorder()
    model = net().eval()
    with pytest.raises(KeyboardInterrupt):
        trainer(Callback(before_step=twice), recorder, model=model).fit(batches(), epochs=50)
    assert recorder.points[-3:] == ["on_exception", "after_train", "after_run"]
    assert signal.getsignal(signal.SIGINT) is before
    assert not model.training


def test_an_alarm_that_someone_else_has_set_rings_for_them_and_stops_nothing():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        slow = Callback(after_step=lambda run: time.sleep(0.02))
        result = trainer(slow).fit(batches(), epochs=1)
        assert (rung, result.stop_reason) == ([1], None)
        signal.setitimer(signal.ITIMER_REAL, 100)
        asked = Callback(after_step=lambda run: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            trainer(asked).fit(batches(), epochs=1)
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_a_fit_in_a_thread_leaves_signals_alone():
    errors = []

    def fit():
        try:
            trainer().fit(batches(), epochs=1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert errors == []


def test_an_evaluation_inside_a_step_leaves_the_step_as_it_was():
    seen = []

    class Looks(Hook):
        def after_step(self, run):
            before = (run.batches, run.outputs, run.sizes, run.feeder)
            run_trainer._validate(
                run_trainer.hooks, {"val": __import__("stoker").data.BatchFeeder(batches(4))}
            )
            after = (run.batches, run.outputs, run.sizes, run.feeder)
            seen.append(all(a is b for a, b in zip(before, after, strict=True)))

    run_trainer = trainer(Looks())
    run_trainer.fit(batches(8), epochs=1)
    assert seen == [True, True]


def test_fit_returns_a_history_that_prints_as_a_table():
    history = trainer(hooks.Loss(), hooks.Metrics("accuracy")).fit(batches(), batches(), epochs=2)
    lines = str(history).splitlines()
    assert lines[0].split() == ["epoch", "step", "train/loss", "val/loss", "val/accuracy"]
    assert len(lines) == 3
    assert history["step"] == [5, 10]


def test_explain_shows_every_hook_in_firing_order():
    text = trainer(hooks.Loss(), hooks.EarlyStopping(), hooks.Metrics("accuracy")).explain()
    line = next(line for line in text.splitlines() if line.strip().startswith("after_val "))
    assert " ".join(line.split()) == "after_val Loss (10), Metrics (10), EarlyStopping (60)"
    assert [line.split()[0] for line in text.splitlines()[1:]] == list(hooks.POINTS)


def test_a_task_within_a_task_is_refused_with_the_way_out():
    run = trainer(Callback(after_step=lambda _: run.evaluate(batches(4))))
    with pytest.raises(RuntimeError, match=r"evaluate\(\) was called within a fit in progress"):
        run.fit(batches(), epochs=1)
    assert not run._busy


def test_an_update_that_was_skipped_at_the_end_of_a_run_does_not_skip_one_of_the_next():
    run = trainer(hooks.NaNGuard())
    x, y = samples(4)
    run.fit([(x, y), (x * float("nan"), y)], epochs=1)
    assert run.run.step == 1
    run.fit(batches(8), epochs=2)
    assert run.run.step == 3


def test_hooks_that_write_are_attached_though_a_fast_dev_run_came_first(tmp_path):
    class Writes(Hook):
        writes = True
        attached = 0

        def attach(self, run):
            self.attached += 1

    writes = Writes()
    run = trainer(writes)
    run.fit(batches(), fast_dev_run=True)
    run.fit(batches(), epochs=3)
    assert writes.attached == 1


# What is refused before anything runs


def test_a_fit_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"would never end: pass epochs= or max_steps="):
        trainer().fit(batches())


@pytest.mark.parametrize("wrong", ["3", 2.5, -1, True])
def test_a_number_of_epochs_that_is_none_is_refused(wrong):
    with pytest.raises((ValueError, TypeError), match="epochs must be an integer .*got"):
        trainer().fit(batches(), epochs=wrong)


def test_an_empty_loader_is_refused():
    recorder = Recorder()
    with pytest.raises(ValueError, match="train_loader is empty"):
        trainer(recorder).fit([], epochs=1)
    assert recorder.points == []


def test_an_empty_validation_loader_is_refused_before_training():
    run = trainer()
    with pytest.raises(ValueError, match="val loader is empty"):
        run.fit(batches(), [], epochs=1)
    assert run.run.step == 0


def test_a_model_with_nothing_to_train_is_refused():
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="Sequential has no trainable parameters"):
        trainer(model=model).fit(batches(), epochs=1)


def test_something_that_is_no_loader_is_refused():
    with pytest.raises(TypeError, match="train_loader is 3, expected a DataLoader"):
        trainer().fit(3, epochs=1)


def test_something_that_is_no_engine_is_refused():
    with pytest.raises(TypeError, match="engine is a Sequential, expected Engine"):
        Trainer(net())


def test_a_wrong_period_is_refused():
    with pytest.raises(
        ValueError, match=r"'500st' \(steps\), '3ep' \(epochs\) or '10min', got '3 days'"
    ):
        trainer().fit(batches(), batches(), epochs=1, validate_every="3 days")


def test_nan_in_the_first_loss_is_refused_before_the_first_update_and_nothing_is_written(tmp_path):
    model = net()
    before = weights(model)
    x, y = samples(8)
    x[3] = float("nan")
    run = Trainer(engine(model), run_dir=tmp_path / "run")
    with pytest.raises(ArithmeticError, match="the first loss is nan, before any update"):
        run.fit([(x, y)], epochs=1)
    assert same_bits(before, model)
    assert not (tmp_path / "run").exists()


def test_a_target_of_the_wrong_dtype_is_rejected_with_a_clear_error_and_nothing_is_written(
    tmp_path,
):
    x, y = samples(8)
    run = Trainer(engine(), run_dir=tmp_path / "run")
    for wrong in (y.float(), y.int()):
        with pytest.raises(
            ValueError, match="CrossEntropyLoss got targets of dtype .*use targets.long"
        ):
            run.fit([(x, wrong)], epochs=1)
    assert not (tmp_path / "run").exists()


def test_targets_that_would_be_broadcast_are_refused():
    x, _ = samples(8)
    model = nn.Linear(4, 1)
    run = Trainer(Engine(model, sgd(model), nn.MSELoss()), [])
    with (
        pytest.warns(UserWarning, match="broadcasting"),
        pytest.raises(ValueError, match=r"targets of shape \[8\] for outputs of shape \[8, 1\]"),
    ):
        run.fit([(x, x.sum(1))], epochs=1)


def test_a_loss_that_cannot_be_trained_on_is_refused():
    detached = Trainer(engine(), [], step=lambda e, b: e.criterion(e(b[0]), b[1]).detach())
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"):
        detached.fit(batches(), epochs=1)
    many = Trainer(engine(), [], step=lambda e, b: Output(loss=e(b[0]).sum(1)))
    with pytest.raises(ValueError, match=r"the loss is float32\[4\], expected one number"):
        many.fit(batches(), epochs=1)


def test_a_second_schedule_beside_a_complete_step_is_refused():
    class Mine(Step):
        def train(self, run):
            return None

    with pytest.raises(ValueError, match=r"Mine\.train and PlainSchedule both order"):
        Trainer(engine(), [], step=Mine(), schedule=PlainSchedule())


@pytest.mark.slow
def test_a_run_folder_that_holds_a_run_is_left_alone(tmp_path):
    folders = []
    for _ in range(3):
        run = Trainer(engine(), run_dir=tmp_path / "my run")
        run.fit(batches(), epochs=1, resume="never")
        folders.append(run.run.dir.name)
    assert folders == ["my run", "my run-2", "my run-3"]


@pytest.mark.slow
def test_a_run_folder_without_checkpoints_is_left_alone(tmp_path):
    folders = []
    for _ in range(2):
        run = Trainer(engine(), [hooks.Loss(), hooks.SaveWeights()], run_dir=tmp_path / "run")
        run.fit(batches(), epochs=1)
        folders.append(run.run.dir.name)
    assert folders == ["run", "run-2"]


def test_a_file_in_place_of_a_run_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file, expected a folder"):
        Trainer(engine(), run_dir=tmp_path / "file")


def test_evaluate_returns_the_results_of_its_own_loaders_alone():
    run = trainer(hooks.Loss())
    run.fit(batches(), {"a": batches(4), "b": batches(4)}, epochs=1)
    assert set(run.evaluate(batches(4))) == {"val/loss"}


def test_predict_hands_a_step_the_same_batch_alone_or_in_a_list():
    class Looks(Step):
        def predict(self, engine, batch):
            return engine(batch)

    x, _ = samples(4)
    run = Trainer(engine(), [], step=Looks())
    assert torch.equal(run.predict(x), run.predict([x]))


def test_a_partial_epoch_has_its_own_number_everywhere(capsys):
    stop = Callback(after_step=lambda run: run.stop("enough") if run.step == 2 else None)
    history = trainer(stop, hooks.Progress()).fit(batches(), epochs=3)
    assert history[-1]["epoch"] == 1
    assert capsys.readouterr().err.startswith("epoch 1/3  step 2")


def test_a_method_that_looks_like_a_point_and_is_none_is_reported(caplog):
    class Misspelt(Hook):
        def after_steps(self, run):
            raise AssertionError

    trainer(Misspelt()).fit(batches(4), epochs=1)
    assert (
        "has 'after_steps', which is not a hook point and is never called; did you" in caplog.text
    )


def test_a_used_folder_is_known_by_whatever_a_run_leaves(tmp_path):
    from stoker.events import Csv

    for _ in range(2):
        Trainer(engine(), [hooks.Loss(), hooks.Write(Csv())], run_dir=tmp_path / "r").fit(
            batches(), epochs=1
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r-2"]


@pytest.mark.slow
def test_the_folder_in_use_may_be_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        Trainer(engine(), run_dir=".").fit(batches(), epochs=1, resume="never")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "here-2"]


def test_a_refusal_before_training_leaves_the_trainer_usable():
    run = trainer(hooks.Loss(), hooks.EarlyStopping())
    with pytest.raises(ValueError, match="no validation loader"):
        run.fit(batches(), epochs=1)
    run.fit(batches(), batches(4), epochs=1)
    assert run.run.step == 5


@pytest.mark.slow
def test_a_trial_leaves_everything_as_it_was(tmp_path):
    model = net(dropout=True, norm=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
    run = Trainer(
        Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler),
        [*hooks.default(log_every=1), hooks.EMA()],
        run_dir=tmp_path,
    )
    before, random_before = weights(model), torch.get_rng_state()
    run.fit(batches(), batches(4), fast_dev_run=2)
    assert same_bits(before, model)
    assert torch.equal(torch.get_rng_state(), random_before)
    assert (scheduler.last_epoch, optimizer.state, run.run.metrics) == (0, {}, {})
    run.fit(batches(), batches(4), epochs=1, validate_every=1)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val/loss" in row] == [1, 2, 3, 4, 5]


def test_a_trial_that_fails_leaves_no_trace_either():
    fail = [True]
    run = trainer(Callback(after_step=lambda run: 1 / 0 if fail else None))
    before = weights(run.engine.model)
    with pytest.raises(ZeroDivisionError):
        run.fit(batches(), fast_dev_run=True)
    assert same_bits(before, run.engine.model)
    fail.clear()
    run.fit(batches(), epochs=1)
    assert run.run.step == 5


def test_looking_afterwards_does_not_forget_why_a_run_stopped():
    run = trainer(Callback(after_step=lambda run: run.stop("enough")))
    history = run.fit(batches(), epochs=1)
    run.evaluate(batches())
    assert history.stop_reason == "enough"


@pytest.mark.slow
def test_requests_made_after_an_epoch_are_served_there_and_end_there():
    served = []
    ask = Callback(
        after_train_epoch=lambda run: run.request("evaluate"),
        before_val=lambda run: served.append(run.step),
        after_epoch=lambda run: run.request("save"),
    )
    saves = []
    look = Callback(name="look", after_step=lambda run: saves.append(run.requested("save")))
    trainer(ask, look).fit(batches(), batches(4), epochs=2, validate_every=None)
    assert served == [5, 10]
    assert not any(saves)


@pytest.mark.slow
def test_a_generator_that_training_and_validation_share_is_left_alone():
    models = [net(), net()]
    for model, val in zip(models, (True, False), strict=True):
        generator = torch.Generator().manual_seed(0)
        data = loader(shuffle=True, generator=generator)
        val_data = loader(8, shuffle=True, generator=generator) if val else None
        trainer(model=model).fit(data, val_data, epochs=3)
    assert same_bits(*models)


def test_a_loader_without_length_under_a_limit_does_not_pretend_to_have_one():
    run = trainer()
    run.fit((b for b in batches()), epochs=1, limit_train_batches=100)
    assert run.run.steps_per_epoch is None
    assert (run.run.step, run.run.epoch) == (5, 1)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda r, x: r.fit(x, epochs=1), TypeError, r"train_loader is an array of shape \[4, 4\]"),
        (lambda r, x: r.fit(batches(), 3), TypeError, "passed by name: epochs=3"),
        (lambda r, x: r.predict(x.numpy()), TypeError, "data is an array of shape"),
        (lambda r, x: r.fit(batches(), epochs=1, validate_every="banana"), ValueError, "banana"),
    ],
)
def test_typical_slips_are_answered(call, error, text):
    with pytest.raises(error, match=text):
        call(trainer(), samples(4)[0])


def test_a_model_call_that_fails_says_what_it_got():
    model = nn.Linear(5, 3)
    with pytest.raises(RuntimeError) as caught:
        Trainer(Engine(model, sgd(model), nn.CrossEntropyLoss()), []).fit(batches(), epochs=1)
    assert caught.value.__notes__ == ["Linear was called with float32[4, 4]"]
    with pytest.raises(TypeError) as caught:
        Trainer(Engine(model, sgd(model)), []).fit(batches(), epochs=1)
    assert "pass a criterion to Engine" in caught.value.__notes__[1]


def test_parameters_in_no_optimizer_are_reported(caplog):
    model = net()
    Trainer(Engine(model, sgd(model[2]), nn.CrossEntropyLoss()), []).fit(batches(4), epochs=1)
    assert (
        "2 trainable parameters are in no optimizer and will not change (first: 0.w" in caplog.text
    )


@pytest.mark.slow
def test_numbers_of_numpy_count(tmp_path):
    import numpy as np

    run = trainer()
    run.fit(batches(), epochs=np.int64(2))
    assert run.run.epoch == 2


def test_a_run_folder_that_cannot_be_made_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    run = Trainer(engine(), run_dir=tmp_path / "file" / "run")
    with pytest.raises(ValueError, match="cannot be created"):
        run.fit(batches(), epochs=1)
    assert run.run.step == 0


def test_two_trainers_in_two_threads_do_not_disturb_each_other():
    errors = []

    def fit():
        try:
            trainer(hooks.Loss()).fit(batches(), epochs=20)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.slow
def test_a_run_in_which_every_update_is_skipped_ends_and_says_why():
    class Never(Step):
        def update(self, engine):
            return False

    run = Trainer(engine(), [], step=Never())
    history = run.fit(batches(4), max_steps=3)
    assert history.stop_reason == "100 epochs in a row passed without an update"
    assert run.run.step == 0
