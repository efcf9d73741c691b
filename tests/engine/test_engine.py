import copy

import pytest
import torch
from torch import nn

from stoker import Engine, Layout, Trainer, hooks
from stoker.hooks import Callback
from support.toys import batches, engine, net, samples, sgd

LOSS = nn.CrossEntropyLoss()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def norm(tensors, kind: float = 2.0) -> float:
    return float(torch.linalg.vector_norm(torch.cat([t.flatten() for t in tensors]), kind))


def one_backward(engine_: Engine) -> None:
    x, y = samples(8)
    engine_.zero_grad()
    engine_.backward(engine_.criterion(engine_(x), y))


@pytest.mark.row("C03")
def test_calling_an_engine_returns_what_the_model_returns():
    class Odd(nn.Module):
        def forward(self, a, *, b):
            return {"a": a, "b": (b, None)}

    result = Engine(Odd())(1, b="x")
    assert result == {"a": 1, "b": ("x", None)}


@pytest.mark.row("C03")
def test_the_mode_of_engine_and_model_is_one():
    engine_ = engine()
    engine_.eval()
    assert (engine_.training, engine_.model.training) == (False, False)
    engine_.train()
    assert (engine_.training, engine_.model.training) == (True, True)


@pytest.mark.row("C29")
@pytest.mark.parametrize("off", [None, 0, 0.0])
def test_no_limit_leaves_gradients_untouched(off):
    engine_ = engine(clip_norm=off, clip_value=off)
    one_backward(engine_)
    before = gradients(engine_.model)
    engine_.step()
    after = gradients(engine_.model)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.row("C29")
@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_a_limit_bounds_the_norm_of_its_kind(kind):
    engine_ = engine(clip_norm=0.01, norm_type=kind)
    one_backward(engine_)
    before = norm(gradients(engine_.model), kind)
    engine_.step()
    assert before > 0.01
    assert norm(gradients(engine_.model), kind) == pytest.approx(0.01, rel=1e-3)
    assert float(engine_.grad_norm) == pytest.approx(before, rel=1e-5)


@pytest.mark.row("C29")
def test_a_parameter_group_may_have_a_limit_of_its_own():
    model = net()
    groups = [
        {"params": model[0].parameters(), "clip_norm": 0.001, "norm_type": float("inf")},
        {"params": model[2].parameters()},
    ]
    engine_ = Engine(model, torch.optim.SGD(groups, lr=0.1), LOSS, clip_norm=0.02)
    one_backward(engine_)
    engine_.step()
    assert norm([p.grad for p in model[0].parameters()], float("inf")) == pytest.approx(0.001, 1e-3)
    assert norm([p.grad for p in model[2].parameters()]) == pytest.approx(0.02, rel=1e-3)


def test_clipping_by_value_bounds_each_element():
    engine_ = engine(clip_value=0.001)
    one_backward(engine_)
    engine_.step()
    assert norm(gradients(engine_.model), float("inf")) == pytest.approx(0.001)


@pytest.mark.row("C29")
def test_accumulated_gradients_are_clipped_once_per_update():
    norms = []
    model = net()
    trainer = Trainer(
        Engine(model, sgd(model), LOSS, clip_norm=0.01),
        [Callback(after_step=lambda run: norms.append(norm(gradients(model))))],
        accumulate=5,
    )
    trainer.fit(batches(), epochs=1)
    assert norms == [pytest.approx(0.01, rel=1e-3)]


class Overflows(nn.Module):
    """A loss that is infinite on request."""

    def __init__(self) -> None:
        super().__init__()
        self.at: set[int] = set()
        self.calls = 0

    def forward(self, outputs, targets):
        self.calls += 1
        loss = nn.functional.cross_entropy(outputs.float(), targets)
        return loss * float("inf") if self.calls in self.at else loss


@pytest.mark.row("C30")
def test_an_overflow_skips_the_update_and_lowers_the_scale():
    model, criterion = net(), Overflows()
    criterion.at = {3}
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    engine_ = Engine(model, optimizer, criterion, lr_scheduler=scheduler, precision="fp16")
    seen = []

    def look(run):
        weight = float(model[0].weight.detach().sum())
        seen.append(
            (run.step, run.updated, scheduler.last_epoch, engine_.scaler.get_scale(), weight)
        )

    Trainer(engine_, [Callback(after_step=look)]).fit(batches(20), epochs=1)
    steps, updated, lr_steps, scales, sums = zip(*seen, strict=True)
    assert steps == (1, 2, 2, 3, 4)
    assert updated == (True, True, False, True, True)
    assert lr_steps == (1, 2, 2, 3, 4)
    assert scales[2] == scales[1] / 2
    assert sums[2] == sums[1] != sums[3]
    assert engine_.state_dict()["scaler"]["scale"] == scales[-1]


@pytest.mark.row("C30")
def test_the_scaler_comes_back_with_the_state():
    first, second = engine(precision="fp16"), engine(precision="fp16")
    one_backward(first)
    first.scaler.update(128.0)
    second.load_state_dict(first.state_dict())
    assert second.scaler.get_scale() == 128.0


def test_fp16_clips_gradients_of_true_size():
    model = net()
    seen = []
    engine_ = Engine(model, sgd(model), LOSS, precision="fp16", clip_norm=0.01)
    look = [
        Callback(
            before_update=lambda run: seen.append(norm(gradients(model))),
            after_step=lambda run: seen.append(norm(gradients(model))),
        )
    ]
    Trainer(engine_, look).fit(batches(4), epochs=1)
    assert 0.05 < seen[0] < 5  # not 65,536 times that
    assert seen[1] == pytest.approx(0.01, rel=1e-2)


def test_bf16_runs_model_and_criterion_in_lower_precision_and_keeps_full_weights():
    engine_ = engine(precision="bf16")
    x, y = samples(8)
    assert engine_(x).dtype == torch.bfloat16
    assert engine_.criterion(engine_(x), y).dtype == torch.float32
    before = copy.deepcopy(engine_.model)
    Trainer(engine_, []).fit(batches(), epochs=1)
    assert all(p.dtype == torch.float32 for p in engine_.model.parameters())
    assert not torch.equal(engine_.model[0].weight, before[0].weight)


def test_named_optimizers_step_one_by_one():
    model = net()
    optimizers = {
        "body": torch.optim.SGD(model[0].parameters(), lr=0.1),
        "head": torch.optim.SGD(model[2].parameters(), lr=0.1),
    }
    engine_ = Engine(model, optimizers, LOSS)
    one_backward(engine_)
    body, head = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    engine_.step("head")
    assert torch.equal(model[0].weight, body)
    assert not torch.equal(model[2].weight, head)
    engine_.zero_grad("body")
    assert model[0].weight.grad is None
    assert model[2].weight.grad is not None
    with pytest.raises(ValueError, match=r"no optimizer 'haed'; did you mean 'head'\?"):
        engine_.step("haed")


def test_named_schedulers_move_with_their_optimizer():
    model = net()
    optimizers = {
        "a": torch.optim.SGD(model[0].parameters(), lr=1.0),
        "b": torch.optim.SGD(model[2].parameters(), lr=1.0),
    }
    schedulers = {"b": torch.optim.lr_scheduler.ExponentialLR(optimizers["b"], 0.5)}
    engine_ = Engine(model, optimizers, LOSS, lr_scheduler=schedulers)
    one_backward(engine_)
    engine_.step("a")
    engine_.step("b")
    assert optimizers["a"].param_groups[0]["lr"] == 1.0
    assert optimizers["b"].param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(("lr_step", "moves"), [("step", 10), ("epoch", 2)])
def test_the_rate_moves_by_step_or_by_epoch(lr_step, moves):
    model = net()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    engine_ = Engine(model, optimizer, LOSS, lr_scheduler=scheduler, lr_step=lr_step)
    Trainer(engine_, []).fit(batches(), epochs=2)
    assert scheduler.last_epoch == moves


@pytest.mark.row("C15")
@pytest.mark.parametrize(("lr_step", "moves"), [("step", 2), ("epoch", 1)])
def test_with_accumulation_the_rate_moves_once_per_update_or_epoch(lr_step, moves):
    model = net()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    engine_ = Engine(model, optimizer, LOSS, lr_scheduler=scheduler, lr_step=lr_step)
    Trainer(engine_, [], accumulate=4).fit(batches(32), epochs=1)
    assert scheduler.last_epoch == moves


@pytest.mark.slow
@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_compile_runs_model_and_loss_and_keeps_the_names_of_the_weights(criterion):
    from torch._dynamo.utils import counters

    def fit(compile_with):
        model = net()
        engine_ = Engine(model, sgd(model), criterion, compile=compile_with)
        Trainer(engine_, []).fit(batches(8), epochs=1)
        return engine_.state_dict()["model"]

    torch._dynamo.reset()
    counters.clear()
    compiled = fit("eager")
    assert counters["stats"]["unique_graphs"] == 2  # the model and the loss
    plain = fit(False)
    assert compiled.keys() == plain.keys()
    torch.testing.assert_close(compiled, plain)


@pytest.mark.slow
def test_a_model_that_comes_compiled_keeps_clean_names_too():
    model = net()
    engine_ = Engine(torch.compile(model, backend="eager"), sgd(model), LOSS)
    assert set(engine_.state_dict()["model"]) == set(model.state_dict())


@pytest.mark.slow
def test_the_state_of_an_engine_comes_back():
    def make():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return Engine(model, optimizer, LOSS, lr_scheduler=scheduler)

    first, second = make(), make()
    Trainer(first, []).fit(batches(), epochs=1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    Trainer(first, []).fit(batches(), epochs=1)
    Trainer(second, []).fit(batches(), epochs=1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )


@pytest.mark.row("T18")
def test_custom_classes_stay_and_the_custom_step_is_called():
    class MyOptimizer(torch.optim.SGD):
        calls = 0

        def step(self, closure=None):
            MyOptimizer.calls += 1
            return super().step(closure)

    class MyLoss(nn.CrossEntropyLoss):
        pass

    engine_ = engine()
    engine_.set_optimizer(MyOptimizer(engine_.model.parameters(), lr=0.1))
    engine_.set_criterion(MyLoss())
    trainer = Trainer(engine_, [hooks.LR()])
    trainer.fit(batches(), epochs=1)
    assert (type(engine_.optimizer), type(engine_.criterion)) == (MyOptimizer, MyLoss)
    assert MyOptimizer.calls == 5


def test_a_custom_zero_grad_is_called():
    class Noting(torch.optim.SGD):
        zeroed = 0

        def zero_grad(self, set_to_none=True):
            Noting.zeroed += 1
            super().zero_grad(set_to_none)

    model = net()
    Trainer(Engine(model, Noting(model.parameters(), lr=0.1), LOSS), []).fit(batches(), epochs=1)
    assert Noting.zeroed == 5


@pytest.mark.row("T18")
def test_an_optimizer_without_a_rate_is_rejected():
    class Rateless(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            return None

    model = net()
    trainer = Trainer(Engine(model, Rateless(model.parameters()), LOSS))
    with pytest.raises(ValueError, match="Rateless has no 'lr' in its parameter groups"):
        trainer.fit(batches(), epochs=1)


# What is refused


@pytest.mark.slow
@pytest.mark.row("T07")
def test_devices_are_chosen_and_refused_early():
    assert engine(device="auto").device == torch.device("cpu")
    assert engine(device="cpu").device == torch.device("cpu")
    with pytest.raises(ValueError, match="device 'cuda:2' was requested, but this machine has cpu"):
        engine(device="cuda:2")
    with pytest.raises(
        ValueError, match="device 'gpu' is unknown: expected one of auto, cpu, cuda"
    ):
        engine(device="gpu")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"precision": "fp61"}, ValueError, "precision 'fp61' is unknown.*did you mean 'fp16'"),
        ({"lr_step": "batch"}, ValueError, "lr_step must be 'step' or 'epoch', got 'batch'"),
        ({"clip_norm": -1}, ValueError, "clip_norm must be positive.*got -1"),
        ({"clip_value": -0.5}, ValueError, "clip_value must be positive.*got -0.5"),
        ({"lr_scheduler": 3}, TypeError, "lr_scheduler is a int"),
    ],
)
def test_wrong_options_are_rejected(options, error, text):
    with pytest.raises(error, match=text):
        engine(**options)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match="holds 4 of 4 parameters that are not the model's"):
        Engine(net(), sgd(net()), LOSS)


def test_an_optimizer_may_hold_parameters_of_the_criterion():
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(outputs, targets) * self.weight

    model, criterion = net(), Weighted()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    Trainer(Engine(model, optimizer, criterion), []).fit(batches(), epochs=1)
    assert criterion.weight != 1


def test_classes_in_place_of_objects_are_refused():
    with pytest.raises(TypeError, match="optimizer is the class SGD itself"):
        Engine(net(), torch.optim.SGD, LOSS)
    with pytest.raises(TypeError, match="criterion is the class CrossEntropyLoss itself"):
        Engine(net(), None, nn.CrossEntropyLoss)
    with pytest.raises(TypeError, match=r"model is a function, expected a torch\.nn\.Module"):
        Engine(net, None)


def test_a_scheduler_of_another_optimizer_is_refused():
    other = torch.optim.lr_scheduler.StepLR(sgd(net()), 1)
    with pytest.raises(ValueError, match="drives an optimizer that is not the engine's"):
        engine(lr_scheduler=other)


def test_a_plateau_scheduler_is_answered_with_its_hook():
    model = net()
    optimizer = sgd(model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(TypeError, match=r"hooks\.Plateau\(scheduler, monitor='val/loss'\)"):
        Engine(model, optimizer, LOSS, lr_scheduler=plateau)


def test_a_layout_of_more_processes_than_there_are_is_refused():
    with pytest.raises(ValueError, match="layout replicate 2 × tensor 2 needs 4 processes, but"):
        Engine(net(), layout=Layout(replicate=2, tensor=2))


def named(model, **options):
    optimizers = {
        "a": torch.optim.SGD(model[0].parameters(), lr=0.1),
        "b": torch.optim.SGD(model[2].parameters(), lr=0.1),
    }
    return Engine(model, optimizers, LOSS, **options)


def test_fp16_updates_optimizers_one_by_one_with_gradients_of_true_size():
    from stoker import Step

    class OneByOne(Step):
        def update(self, engine):
            engine.update("a")
            return engine.update("b")

    together, apart = net(), net()
    Trainer(named(together, precision="fp16"), []).fit(batches(4), epochs=1)
    Trainer(named(apart, precision="fp16"), [], step=OneByOne()).fit(batches(4), epochs=1)
    torch.testing.assert_close(together.state_dict(), apart.state_dict())


def test_fp16_begins_afresh_after_a_fit_that_failed_before_its_update():
    model = net()
    before = model[0].weight.detach().clone()
    failed = []

    def fail_once(run):
        if not failed:
            failed.append(1)
            raise RuntimeError

    trainer = Trainer(
        Engine(model, sgd(model), LOSS, precision="fp16"), [Callback(before_update=fail_once)]
    )
    with pytest.raises(RuntimeError):
        trainer.fit(batches(4), epochs=1)
    trainer.fit(batches(4), epochs=1)
    assert float((model[0].weight.detach() - before).norm()) < 1


def test_an_update_by_engine_step_moves_the_rate_once():
    from stoker import Step

    class Own(Step):
        def update(self, engine):
            return engine.step()

    model = net()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    engine_ = Engine(model, optimizer, LOSS, lr_scheduler=scheduler)
    Trainer(engine_, [], step=Own()).fit(batches(8), epochs=1)
    assert scheduler.last_epoch == 2


def test_a_scheduler_without_a_name_belongs_to_the_optimizer_it_drives():
    model = net()
    optimizers = {"a": sgd(model)}
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers["a"], 1, 0.5)
    engine_ = Engine(model, optimizers, LOSS, lr_scheduler=scheduler)
    one_backward(engine_)
    engine_.step("a")
    assert optimizers["a"].param_groups[0]["lr"] == 0.05


def test_a_layer_that_is_named_module_is_no_wrapper():
    from collections import OrderedDict

    model = nn.Sequential(OrderedDict(module=nn.Linear(4, 4), head=nn.Linear(4, 3)))
    assert set(Engine(model).state_dict()["model"]) == set(model.state_dict())


def test_a_function_as_step_computes_its_loss_in_the_precision_of_the_engine():
    seen = []

    def step(engine_, batch):
        loss = nn.functional.cross_entropy(engine_(batch[0]), batch[1])
        seen.append(loss.dtype)
        return loss

    run = Trainer(engine(precision="bf16"), [], step=step)
    run.fit(batches(4), batches(4), epochs=1)
    assert seen == [torch.float32, torch.float32]


def test_a_criterion_with_parameters_is_part_of_the_state_and_of_the_mode():
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(self.norm(outputs), targets)

    model, criterion = net(), Norms()
    engine_ = Engine(model, sgd(model), criterion)
    Trainer(engine_, []).evaluate(batches())
    assert criterion.norm.num_batches_tracked == 0
    assert "norm.weight" in engine_.state_dict()["criterion"]


def test_models_that_are_wrapped_for_several_processes_are_refused():
    class DistributedDataParallel(nn.Module):
        pass

    with pytest.raises(
        TypeError, match="wrapped in DistributedDataParallel, which the engine does"
    ):
        Engine(DistributedDataParallel())


def test_an_optimizer_that_runs_the_model_itself_is_refused():
    model = net()
    with pytest.raises(TypeError, match="optimizer is LBFGS, which calls the model itself"):
        Engine(model, torch.optim.LBFGS(model.parameters()), LOSS)
