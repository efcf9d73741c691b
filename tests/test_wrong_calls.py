"""Every public call answers a typo, a wrong type and a word of another trainer with what works."""

import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from enum import Enum
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import stoker
from stoker import Engine, Hook, Step, Trainer, hooks
from stoker.core.calls import _described, _is_of, _is_plain, _members
from stoker.core.errors import is_sentence
from stoker.core.foreign_names import CLASSES, METHODS
from stoker.core.foreign_words import CALL, TABLES, instead_of
from test_public_api import MODULES

PER_STEP = {  # the loop calls them once per step or more often: nothing is added to their cost
    *("Output", "StepContext", "Run", "Row", "Cursor", "RunProgress", "get_event_storage"),
    *("Engine.backward", "Engine.zero_grad", "Engine.step", "Engine.update", "Engine.place"),
    *("Engine.skip_update", "Engine.unscale", "Engine.adjust_lr", "Engine.no_sync"),
    *("Engine.train", "Engine.eval", "Engine.mode", "Lamb.step", "Lars.step"),
}
BY_THE_LOOP = (Hook, Step, stoker.PlainSchedule, stoker.PipelineSchedule, stoker.events.Writer)
BY_THE_LOOP += (stoker.events.EventStorage, stoker.data.BatchFeeder, nn.Module, stoker.Run)
BY_THE_LOOP += (stoker.metrics.Accuracy, stoker.metrics.Mean, stoker.Output, stoker.StepContext)


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public function and class by its name."""
    for module_name in MODULES:
        module = stoker
        for part in filter(None, module_name.split(".")):
            module = getattr(module, part)
        names = getattr(module, "__all__", None) or [
            n
            for n, v in vars(module).items()
            if inspect.isfunction(v) and n[0] != "_" and v.__module__ == module.__name__
        ]
        for name in names:
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("stoker")
            if ours and (inspect.isfunction(thing) or inspect.isclass(thing)):
                yield name, thing


def calls() -> dict[str, tuple[str, Callable[..., Any], bool]]:
    """Return all public calls: the name in messages, the function, whether it has a self."""
    found: dict[str, tuple[str, Callable[..., Any], bool]] = {}
    for name, thing in public():
        if inspect.isfunction(thing):
            found[name] = (name, thing, False)
            continue
        if issubclass(thing, BaseException | Enum) or getattr(thing, "_is_protocol", False):
            continue
        if inspect.isfunction(vars(thing).get("__init__")):
            found[thing.__name__] = (thing.__name__, thing.__init__, True)
        if issubclass(thing, BY_THE_LOOP):
            continue
        for method, value in vars(thing).items():
            function = getattr(value, "__func__", value)
            if inspect.isfunction(function) and not method.startswith("_"):
                is_static = isinstance(value, staticmethod)
                found[f"{thing.__name__}.{method}"] = (method, function, not is_static)
    return {name: call for name, call in found.items() if name not in PER_STEP}


CALLS = calls()
a_peer = pytest.mark.parametrize("peer", TABLES)


def own_parameters(call: str) -> dict[str, inspect.Parameter]:
    _, function, has_self = CALLS[call]
    parameters = list(inspect.signature(function).parameters.items())
    return dict(parameters[1:] if has_self else parameters)


def answer(call: str, *args: Any, **kwargs: Any) -> str:
    """Return the sentence that a call with these arguments is answered with."""
    _, function, has_self = CALLS[call]
    with pytest.raises((TypeError, ValueError)) as caught:
        function(*([object()] if has_self else []), *args, **kwargs)
    assert is_sentence(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def takes_any_keyword(call: str) -> bool:
    kinds = [one.kind for one in own_parameters(call).values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def test_the_walk_covers_the_calls_that_people_make():
    assert {"Trainer", "Trainer.fit", "Engine", "Checkpoint", "default", "Every.of"} <= set(CALLS)
    assert len(CALLS) > 90


def test_what_is_left_alone_exists():
    known = {name for name, _ in public()} | {
        f"{name}.{method}" for name, thing in public() for method in vars(thing)
    }
    assert known >= PER_STEP


def test_an_unknown_keyword_is_answered_with_the_arguments():
    for call in CALLS:
        if takes_any_keyword(call):
            continue  # `Metrics(top5=…)`: each has checks of its own, in the next test
        said = answer(call, qqqqq=1)
        kinds = {one.kind for one in own_parameters(call).values()}
        named = kinds - {inspect.Parameter.VAR_POSITIONAL}
        wanted = "its arguments are " if named else "it takes no arguments by name"
        assert said.startswith(f"{CALLS[call][0]}() has no argument 'qqqqq'; {wanted}")
        for name, one in own_parameters(call).items():
            if one.kind != inspect.Parameter.VAR_POSITIONAL:
                assert name in said


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hooks.Metrics("accuracy", qqqqq=1), "1 is not a metric"),
        (lambda: hooks.Callback(qqqqq=print), "there is no point named 'qqqqq'"),
        (lambda: stoker.data.loader([1], batchsize=4), "did you mean 'batch_size'"),
        (lambda: stoker.metrics.get("accuracy", top_k=5), "use topk=5"),
        (
            lambda: stoker.metrics.get("MulticlassF1Score", num_clases=3),
            "did you mean 'num_classes'",
        ),
    ],
)
def test_calls_with_any_keyword_check_them_themselves(call, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        call()


def test_a_typo_is_answered_with_the_right_spelling():
    for call in CALLS:
        if takes_any_keyword(call):
            continue
        keyword_only = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name, one in own_parameters(call).items():
            typo = name[:2] + name[3:]
            if one.kind in keyword_only and len(name) > 4 and instead_of(typo, 1, call, []) is None:
                assert f"'{name}'" in answer(call, **{typo: 1})


def test_a_value_of_a_wrong_type_is_named_with_what_is_expected():
    for call in CALLS:
        required = {
            name: None
            for name, one in own_parameters(call).items()
            if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD
        }
        for name, one in own_parameters(call).items():
            kinds = list(_members(one.annotation))
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                continue
            if all(map(_is_plain, kinds)):
                words = answer(call, **{**required, name: object()})
                assert any(one in words for one in (name, "expected", "needs", *required))


class Trial:
    """What a hook needs of an Optuna trial."""

    report = should_prune = print


CHOICES = [
    (name, parameter)
    for name in sorted(CALLS)
    for parameter, one in own_parameters(name).items()
    if any(get_origin(kind) is Literal for kind in _members(one.annotation))
    and name != "RunConfig"  # a config is checked as a whole, with the place of each fault
    and "." not in name
]


@pytest.mark.parametrize(("name", "parameter"), CHOICES)
def test_a_word_that_is_no_choice_is_answered_with_the_choices(name, parameter, tmp_path):
    given = {
        "Engine": {"model": nn.Linear(1, 1)},
        "Trainer": {"engine": Engine(nn.Linear(1, 1))},
        "Every": {"count": 1},
        "Metrics": {"top": "accuracy"},
        "Checkpoint": {"best": "val/loss"},
        "BatchFeeder": {"loader": [1]},
        "Prune": {"trial": Trial()},
        "total_steps": {"train_loader": [1], "epochs": 1},
        "stream": {"source": "data.jsonl"},
        "mix": {"streams": [], "weights": []},
    }.get(name, {})
    thing = dict(public())[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        thing(**given, **{parameter: "qqqqq"})
    assert is_sentence(caught.value)
    annotation = own_parameters(name)[parameter].annotation
    choices = [c for k in _members(annotation) if get_origin(k) is Literal for c in get_args(k)]
    assert str(choices[0]) in str(caught.value)
    assert list(_described(annotation))


@a_peer
def test_every_call_in_the_tables_of_foreign_words_exists(peer):
    elsewhere = ("DataLoader", "AdamW", "CrossEntropyLoss", "ReduceLROnPlateau")
    named = {**{call.rpartition(".")[2]: call for call in CALLS}, **{call: call for call in CALLS}}
    for word, text in TABLES[peer].items():
        for owner, argument in re.findall(r"(\w+)\((?:[^()=]*, )?(\w+)=", text):
            if owner not in elsewhere:
                function = CALLS[named[owner]][1] if owner in named else getattr(stoker, owner)
                taken = inspect.signature(function).parameters
                assert argument in taken or "points" in taken, f"{peer}: {word} is {text}"
        for name in re.findall(r"hooks\.(\w+)", text):
            assert hasattr(hooks, name)
        for name in re.findall(r"events\.(\w+)", text):
            assert hasattr(stoker.events, name)


@a_peer
@pytest.mark.parametrize("call", ["Trainer", "Trainer.fit", "Engine", "Checkpoint"])
def test_a_foreign_word_is_answered_with_what_works(peer, call):
    for word in set(TABLES[peer]) - set(own_parameters(call)):
        said = answer(call, **{word: 1})
        assert said.startswith(f"{CALLS[call][0]}() has no argument {word!r}; use ")


VALUES = (True, 3, 0.25, "epoch", "no", "val_loss", "00:01:00:00")
"""Values that words of other trainers are given, one of each kind."""


@a_peer
@pytest.mark.parametrize(
    "call", ["Trainer", "Trainer.fit", "Engine", "Checkpoint", "EarlyStopping"]
)
def test_the_answer_to_a_foreign_word_is_a_call_that_takes_its_value(peer, call):
    own = own_parameters(call)
    calls = {function_name: function for function_name, function, _ in CALLS.values()}
    for word in set(TABLES[peer]) - set(own):
        for value in VALUES:
            said = answer(call, **{word: value}).partition("; use ")[2]
            owners = [(call.rpartition(".")[2], *at) for at in re.findall(r"^(\w+)=(.+)", said)]
            owners += re.findall(r"(\w+)\((?:…, )?(\w+)=([^(),]+)\)", said)
            for owner, argument, text in owners:
                if owner in calls and text == repr(value):
                    annotation = inspect.signature(calls[owner]).parameters[argument].annotation
                    kinds = filter(_is_plain, _members(annotation))
                    assert any(_is_of(value, kind) for kind in kinds), f"{word}={value!r}: {said}"


def engine() -> Engine:
    model = nn.Linear(1, 1)
    return Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Trainer(engine(), callbacks=[]), "use hooks=…"),
        (lambda: Trainer(max_epochs=3), "use trainer.fit(…, epochs=3)"),
        (lambda: Trainer(precision="16-mixed"), "use Engine(precision='fp16')"),
        (lambda: Trainer(accelerator="gpu"), "use Engine(device='auto')"),
        (lambda: Trainer(accumulate_grad_batches=4), "use accumulate=4"),
        (lambda: Trainer(model=nn.Linear(1, 1)), "use Trainer(Engine(model, optimizer, criter"),
        (lambda: Trainer(engine(), training_args=object()), "and fit(epochs=…)"),
        (lambda: Trainer(engine()).fit([], max_epochs=3), "use epochs=3"),
        (lambda: Trainer(engine()).fit([], check_val_every_n_epoch=2), "validate_every='2ep'"),
        (lambda: Trainer(engine()).fit([], validation_data=[]), "use val_loader=…"),
        (lambda: Trainer(engine()).fit([], batch_size=32), "DataLoader(…, batch_size=32)"),
        (lambda: Trainer(engine()).fit(nn.Linear(1, 1), []), "belongs into Engine(model, "),
        (lambda: Trainer(engine()).fit(nn.Sequential(), []), "belongs into Engine(model, "),
        (lambda: Trainer(engine()).evaluate(dataloaders=[]), "use loader=…"),
        (lambda: hooks.Checkpoint(monitor="val/loss"), "use best='val/loss'"),
        (lambda: hooks.Checkpoint(save_top_k=3), "use best_count=3"),
        (lambda: hooks.Checkpoint(every_n_epochs=2), "use every='2ep'"),
        (lambda: hooks.EarlyStopping(patience="3"), "patience must be an integer, got '3'"),
        (lambda: hooks.EarlyStopping(early_stopping_patience=3), "use patience=3"),
        (lambda: Engine(nn.Linear(1, 1), loss=nn.MSELoss()), "use criterion=…"),
        (lambda: Engine(net=nn.Linear(1, 1)), "use model=…"),
        (lambda: Engine(nn.Linear(1, 1), None, None, None), "too many positional arguments"),
        (lambda: Trainer(engine()).fit([], [], 3), "train_loader, val_loader; by name: epochs, "),
        (lambda: Trainer(engine(), epochs=3), "use trainer.fit(…, epochs=3)"),
        (lambda: Trainer(engine()).fit([], clip_norm=1.0), "use Engine(clip_norm=1.0)"),
        (lambda: Engine(nn.Linear(1, 1), hooks=[]), "use Trainer(hooks=…)"),
        (lambda: stoker.launch.run(3, nproc=2), "fn must be a function, got 3"),
        (lambda: stoker.data.find_batch_size(3), "attempt must be a function, got 3"),
        (lambda: stoker.nn.parameter_groups([1]), "model is a list, expected an nn.Module"),
        (Trainer, "missing a required argument: 'engine'"),
        (lambda: hooks.GradNorm(every=2), "takes no arguments"),
        (lambda: Trainer(engine(), monitor=1, fp16=True), " | Trainer() has no argument 'fp16'"),
        (lambda: Trainer(engine(), cbs=[]), "use hooks=…"),
        (lambda: Trainer(engine(), max_duration="3ep"), "trainer.fit(…, epochs=…) or fit(max_s"),
        (lambda: Trainer(engine(), save_folder="runs"), "use run_dir='runs'"),
        (lambda: Engine(nn.Linear(1, 1), loss_func=nn.MSELoss()), "use criterion=…"),
        (lambda: Engine(nn.Linear(1, 1), fsdp_plugin=1), "use layout=Layout(shard=-1)"),
        (lambda: hooks.EMA(half_life="10ba"), "use decay=…"),
        (lambda: hooks.EarlyStopping(restore_best_weights=True), "use hooks.KeepBest(monitor=…)"),
        (lambda: Trainer(engine(), lr_scheduler_type="cosine"), "use Engine(lr_scheduler=…)"),
        (lambda: Trainer(engine(), eval_strategy="epoch"), "fit(…, validate_every='1ep')"),
        (lambda: Trainer(engine(), max_time="00:12:00:00"), "hooks.TimeLimit(minutes=…)"),
        (lambda: Trainer(engine()).fit([], initial_epoch=3), "use resume=…, which knows the epoch"),
        (lambda: Trainer(engine()).fit([], max_duration="3ep"), "use epochs=… or fit(max_steps=…)"),
        (lambda: hooks.Checkpoint(monitor="val_loss"), "use best='val/loss'"),
        (lambda: Trainer(engine(), verbose=0), "use hooks.default(progress=False)"),
        (lambda: Trainer(engine(), gradient_checkpointing=True), "activation_checkpointing='block"),
        (lambda: hooks.Checkpoint(dirname="models"), "use folder='models'"),
        (lambda: hooks.TimeLimit(hours=3), "use minutes=60 * hours"),
        (lambda: stoker.Layout(dp_size=2), "use replicate=2"),
        (lambda: Engine(nn.Linear(1, 1), layout=stoker.Layout), "expected a Layout such as"),
        (lambda: Trainer(engine()).fit([DataLoader([1]), DataLoader([1])], epochs=1), "ConcatDat"),
        (lambda: Trainer(engine()).fit([1], 3, epochs=1), "passed by name: epochs=3"),
        (lambda: Trainer(engine()).fit(nn.MSELoss, epochs=1), "did you mean to call it?"),
        (lambda: Trainer(engine(), [hooks.default()]), "unpack it, as in [*hooks.default(), …]"),
        (lambda: Trainer(engine(), ["Loss"]), "such as hooks.Loss()"),
        (lambda: Trainer(engine(), {"loss": hooks.Loss()}), "hooks is of type dict"),
        (lambda: Trainer(engine(), [stoker.metrics.Accuracy()]), "pass hooks.Metrics(metric)"),
        (lambda: Trainer(engine(), step=lambda batch: batch), "expected a function (engine, batch"),
        (lambda: Trainer(engine(), step=nn.Linear(1, 1)), "expected a function (engine, batch)"),
    ],
)
def test_words_of_other_trainers_are_answered_with_what_to_write(call, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        call()


@pytest.mark.parametrize(
    ("look_up", "words"),
    [
        (
            lambda: hooks.ModelCheckpoint,
            "'stoker.hooks' has no attribute 'ModelCheckpoint'; use hooks",
        ),
        (lambda: hooks.TerminateOnNan, "use hooks.NaNGuard"),
        (lambda: hooks.EarlyStoping, "did you mean 'EarlyStopping'?"),
        (lambda: stoker.events.TensorBord, "did you mean 'TensorBoard'?"),
        (lambda: stoker.Trainr, "did you mean 'Trainer'"),
        (lambda: stoker.seed_everything, "use seed_all"),
        (lambda: Trainer(engine()).train, "has no attribute 'train'; use trainer.fit(…)"),
        (lambda: engine().prepare, "use Engine(model, optimizer, criterion)"),
        (lambda: engine().qqqqq, "'Engine' object has no attribute 'qqqqq'"),
        (lambda: engine().unwrap_model, "use engine.model"),
        (lambda: engine().optimiser, "did you mean 'optimizer'"),
        (lambda: Trainer(engine()).global_step, "use trainer.run.step"),
        (lambda: stoker.launch.notebook_launcher, "use launch.run"),
        (lambda: stoker.nn.lr.get_scheduler, "use nn.lr.cosine"),
        (lambda: stoker.data.lodaer, "did you mean 'loader'?"),
        (lambda: stoker.metrics.Acuracy, "did you mean 'Accuracy'?"),
        (lambda: stoker.config.laod, "did you mean 'load'?"),
    ],
)
def test_a_name_of_another_trainer_is_answered_with_ours(look_up, words):
    with pytest.raises(AttributeError, match=re.escape(words)):
        look_up()


def test_a_property_that_fails_keeps_its_own_error():
    class Mine(Engine):
        @property
        def depth(self):
            return self.model.no_such_thing

    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'no_such_thing'"):
        _ = Mine(nn.Linear(1, 1)).depth


def test_no_method_of_another_trainer_hides_one_of_ours():
    for cls in (Trainer, Engine):
        assert not set(METHODS[cls.__name__]) & set(dir(cls))
    assert not set(CLASSES) & {*hooks.__all__, *stoker.events.__all__, *stoker.__all__}
    for text in CLASSES.values():
        module, _, name = text.partition("(")[0].rpartition(".")
        assert hasattr(attrgetter(module)(stoker) if module else stoker, name)


@pytest.mark.parametrize("name", ["16-mixed", "float16", "mixed_float16", "amp_fp16"])
def test_a_precision_of_another_trainer_is_answered_with_ours(name):
    with pytest.raises(ValueError, match=r"did you mean 'fp16'\?"):
        Engine(nn.Linear(1, 1), precision=name)


@pytest.mark.parametrize(("theirs", "ours"), [("10ba", "10st"), ("2h", "120min"), ("3it", "3st")])
def test_a_period_of_another_trainer_is_answered_with_ours(theirs, ours):
    with pytest.raises(ValueError, match=f"did you mean '{ours}'"):
        stoker.Every.of(theirs)


def test_a_short_name_of_a_metric_is_answered_with_the_long_one():
    with pytest.raises(ValueError, match="did you mean 'MeanAbsoluteError'"):
        hooks.Metrics("mae")


def test_values_that_count_as_numbers_are_accepted():
    numpy = pytest.importorskip("numpy")
    assert hooks.EarlyStopping(patience=numpy.int64(3)).patience == 3
    assert hooks.EarlyStopping(patience=torch.tensor(3)).patience == 3
    assert hooks.EMA(numpy.float32(0.5)).decay == 0.5


def test_explained_calls_keep_signature_docstring_and_pickle():
    assert "epochs: int | None = None" in str(inspect.signature(Trainer.fit))
    assert Trainer.fit.__doc__.startswith("Train until")
    assert inspect.getsource(Trainer.fit).lstrip().startswith("def fit(")
    for function in (stoker.data.loader, stoker.nn.lr.cosine, hooks.default):
        assert pickle.loads(pickle.dumps(function)) is function


def test_a_subclass_with_a_constructor_of_its_own_is_left_alone():
    class Mine(hooks.EarlyStopping):
        def __init__(self, anything):
            super().__init__(patience=anything)

    assert Mine(2).patience == 2
    with pytest.raises(TypeError, match=r"unexpected keyword|argument"):
        Mine(other=2)
    assert isinstance(stoker.data.loader(list(range(4)), 2), DataLoader)
    assert CALL.match("fit(epochs=…)").groups() == ("fit", "epochs")
