import pytest
from torch import nn

from stoker.config import Config, ConfigError, L, Lazy, load


@pytest.fixture
def config(folder):
    def config(*overrides):
        return load(folder / "cfg.yaml", overrides)

    return config


def refusal(config, *overrides):
    with pytest.raises(ConfigError) as caught:
        config(*overrides)
    return str(caught.value)


@pytest.mark.row("L18")
@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("model.width=3", ["model", "width"], 3),
        ("model.dropout=1e-4", ["model", "dropout"], 1e-4),
        ("model.dropout=1", ["model", "dropout"], 1.0),
        ("model.name=5", ["model", "name"], "5"),
        ("model.name=true", ["model", "name"], "true"),
        ("model.name=1e-4", ["model", "name"], "1e-4"),
        ("model.name=", ["model", "name"], ""),
        ("model.name='a b'", ["model", "name"], "a b"),
        ('model.name="7"', ["model", "name"], "7"),
        ("model.name=a=b", ["model", "name"], "a=b"),
        ("model.name=C:\\x: y", ["model", "name"], "C:\\x: y"),
        ("optimizer.lr=5e-05", ["optimizer", "lr"], 5e-5),
        ("optimizer.momentum=0.9", ["optimizer", "momentum"], 0.9),
        ("optimizer.nesterov=true", ["optimizer", "nesterov"], True),
        ("optimizer.type=Adam", ["optimizer", "type"], "Adam"),
        ("optimizer=Adam", ["optimizer"], "Adam"),
        ("optimizer={type: Adam, betas: [0.8, 0.9]}", ["optimizer"], None),
        ("train_loader.batch_size=5", ["train_loader", "batch_size"], 5),
        ("train_loader.dataset.count=8", ["train_loader", "dataset", "count"], 8),
        ("run.seed=7", ["run", "seed"], 7),
        ("run.seed=null", ["run", "seed"], None),
        ("run.name=12", ["run", "name"], "12"),
        ("run.clip_norm=0.5", ["run", "clip_norm"], 0.5),
        ("run.validate_every=5", ["run", "validate_every"], 5),
        ("run.validate_every=2ep", ["run", "validate_every"], "2ep"),
        ("run.compile=eager", ["run", "compile"], "eager"),
        ("run.compile=true", ["run", "compile"], True),
        ("run.parallel.shard=2", ["run", "parallel", "shard"], 2),
        ("run.epochs=${run.seed}", ["run", "epochs"], "${run.seed}"),
        ("lr_scheduler=cosine", ["lr_scheduler"], "cosine"),
        ("val_loader=null", ["val_loader"], None),
        ("hooks=[]", ["hooks"], []),
        ("hooks=[Loss, {type: LR}]", ["hooks"], ["Loss", {"type": "LR"}]),
        ("hooks.0=Loss", ["hooks", 0], "Loss"),
        ("hooks[0]=Loss", ["hooks", 0], "Loss"),
    ],
)
def test_an_override_sets_the_value_that_was_typed(config, override, path, value):
    found = config(override).tree
    for key in path:
        found = found[key]
    if value is None and "{" in override:
        value = {"type": "Adam", "betas": [0.8, 0.9]}
    assert found == value
    assert type(found) is type(value) or isinstance(found, dict)


@pytest.mark.row("L18")
def test_a_list_is_replaced_entirely():
    config = Config({"model": L(nn.Conv2d)(1, 2, [3, 3])})
    assert config.override("model.2=[1,2]").tree["model"].args == [1, 2, [1, 2]]


def test_a_positional_argument_is_set_by_its_number():
    config = Config({"model": L(nn.Sequential)(L(nn.Linear)(4, 8), L(nn.ReLU)())})
    config.override("model.0.1=16", "~model.1")
    assert config.tree["model"] == Lazy("torch.nn.Sequential", [Lazy("torch.nn.Linear", [4, 16])])


def test_a_positional_argument_of_the_wrong_type_is_refused():
    config = Config({"model": L(nn.Linear)(4, 8)})
    with pytest.raises(ConfigError):
        config.override("model.1=wide").check()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.width=wide", "expected int, got wide"),
        ("model.width=1.5", "expected int, got 1.5"),
        ("model.width=true", "expected int, got true"),
        ("model.width=[1]", "expected int, got [1]"),
        ("model.width=null", "expected int, got null"),
        ("model.dropout=much", "expected float, got much"),
        ("optimizer.lr=fast", "got fast"),
        ("optimizer.nesterov=maybe", "expected bool, got maybe"),
        ("run.epochs=many", "expected int or None, got many"),
        ("run.epochs=1.5", "expected int or None, got 1.5"),
        ("run.epochs=true", "expected int or None, got true"),
        ("run.progress=5", "expected bool, got 5"),
        ("run.precision=fp8", "expected 'fp32' or 'bf16' or 'fp16', got fp8"),
        ("run.parallel.shard=two", "expected int, got two"),
    ],
)
def test_an_override_of_the_wrong_type_is_refused_with_the_expected_one(config, override, words):
    said = refusal(config, override)
    assert said == f"override '{override}': {words}" or (
        said.startswith(f"override '{override}': expected") and words in said
    )


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.widht=3", "'model' has no 'widht'; did you mean 'width'?"),
        ("optimzer.lr=3", "use 'optimizer.lr=3'"),
        ("optimzer.foo=3", "did you mean 'optimizer'?"),
        ("optimizer.momentm=3", "did you mean 'momentum'?"),
        ("run.epoch=3", "did you mean 'epochs'?"),
        ("run.parallel.shards=3", "did you mean 'shard' or 'reshard'?"),
        ("hooks.7=Loss", "'7'"),
        ("hooks.7.window=3", "'hooks' has no '7'"),
        ("~hooks.7", "'hooks' has no '7'"),
        ("~nothing", "has no 'nothing'"),
        ("mdoel=3", "did you mean 'model'?"),
        ("model.width", "is not an override: expected key=value"),
        ("~model=3", "is not an override"),
        ("=3", "is not an override"),
        ("+hooks", "is not an override"),
        ("model.width=[1", "is a bracket or quote open?"),
        ("model.name='a", "is a bracket or quote open?"),
        ("+model.width=3", "remove the +"),
    ],
)
def test_an_unknown_place_is_answered_with_the_nearest_one(config, override, words):
    assert words in refusal(config, override)


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("max_epochs=3", "run.epochs"),
        ("num_train_epochs=3", "run.epochs"),
        ("trainer.max_epochs=3", "run.epochs"),
        ("run.max_epochs=3", "run.epochs"),
        ("learning_rate=3", "optimizer.lr"),
        ("lr=3", "optimizer.lr"),
        ("optimizer.learning_rate=3", "optimizer.lr"),
        ("per_device_train_batch_size=3", "train_loader.batch_size"),
        ("gradient_accumulation_steps=3", "run.accumulate"),
        ("accumulate_grad_batches=3", "run.accumulate"),
        ("run.gradient_clip_val=3", "run.clip_norm"),
        ("max_grad_norm=3", "run.clip_norm"),
        ("callbacks=3", "hooks"),
        ("output_dir=x", "run.dir"),
        ("fp16=true", "run.precision"),
        ("run.bf16=true", "run.precision"),
        ("logging_steps=3", "run.log_every"),
        ("val_check_interval=3", "run.validate_every"),
        ("loss=MSELoss", "criterion"),
        ("train_dataloader=x", "train_loader"),
        ("warmup_steps=10", "lr_scheduler.warmup_steps"),
    ],
)
def test_the_words_of_lightning_and_hugging_face_are_answered_with_ours(config, override, ours):
    said = refusal(config, override)
    assert "; use '" in said
    assert f"'{ours}" in said


@pytest.mark.row("L18")
@pytest.mark.parametrize(
    "override", ["model.width.deep=3", "run.epochs.x=1", "~model.width.x", "+model.width.x=1"]
)
def test_a_path_through_a_value_that_is_no_config_raises(config, override):
    assert "which has no" in refusal(config, override)


def test_every_fault_of_the_overrides_is_reported(config):
    with pytest.raises(ConfigError) as caught:
        config("model.widht=3", "model.width=4", "run.epochs=x", "foo=1")
    assert len(caught.value.faults) == 3


def test_a_refused_override_changes_nothing(config):
    fine = config()
    changed = config()
    with pytest.raises(ConfigError):
        changed.override("model.width=wide")
    with pytest.raises(ConfigError):
        changed.override("optimizer.foo.bar=1")
    assert changed == fine


def test_a_value_is_removed_and_added(config):
    tree = config("+hooks=EarlyStopping", "+hooks={type: LR}", "~hooks.0", "~val_loader").tree
    assert tree["hooks"] == ["EarlyStopping", {"type": "LR"}]
    assert "val_loader" not in tree


def test_hooks_are_added_where_there_are_none(config):
    assert config("~hooks", "+hooks=LR").tree["hooks"] == ["LR"]


def test_the_run_section_is_made_when_it_is_not_there(config):
    assert config("~run", "run.epochs=3", "run.parallel.shard=2").tree["run"] == {
        "epochs": 3,
        "parallel": {"shard": 2},
    }


def test_a_short_name_alone_takes_arguments(config):
    config = config("criterion.label_smoothing=0.1", "+hooks=EarlyStopping", "hooks.1.patience=7")
    assert config.tree["criterion"] == {"type": "CrossEntropyLoss", "label_smoothing": 0.1}
    assert config.tree["hooks"][1] == {"type": "EarlyStopping", "patience": 7}
    config.check()


def test_arguments_of_short_names_are_typed_by_what_they_stand_for(config):
    assert "expected int, got long" in refusal(
        config, "+hooks=EarlyStopping", "hooks.1.patience=long"
    )
    assert "did you mean 'patience'?" in refusal(
        config, "+hooks=EarlyStopping", "hooks.1.patiense=3"
    )


def test_a_reference_on_the_way_is_followed(folder):
    text = (folder / "cfg.yaml").read_text()
    (folder / "refs.yaml").write_text(
        "data: {_target_: parts.data, count: 20}\n"
        + text.replace("{_target_: parts.data, count: 20}", "${data}")
    )
    config = load(folder / "refs.yaml", ["train_loader.dataset.count=12"])
    assert config.tree["data"]["count"] == 12
    assert "expected int" in refusal(
        lambda *o: load(folder / "refs.yaml", o), "train_loader.dataset.count=x"
    )


def test_an_override_does_not_reach_into_another_config(folder):
    first = load(folder / "cfg.yaml")
    load(folder / "cfg.yaml", ["model.width=99"])
    assert first.tree["model"].width == 8


def test_the_later_override_wins(config):
    assert config("model.width=3", "model.width=4").tree["model"].width == 4


def test_a_new_argument_of_a_call_that_takes_any_is_taken(folder):
    (folder / "any.yaml").write_text("model: {_target_: parts.Wide}\n")
    config = load(folder / "any.yaml", ["model.whatever=[1, {a: b}]"])
    assert config.tree["model"]["whatever"] == [1, {"a": "b"}]


def test_a_node_is_set_completely_by_its_target(config):
    config = config("model={_target_: torch.nn.Linear, in_features: 4, out_features: 3}")
    assert config.check()["model"] == Lazy(
        "torch.nn.Linear", kwargs={"in_features": 4, "out_features": 3}
    )


def test_a_target_on_the_command_line_is_as_restricted_as_in_the_file(config):
    with pytest.raises(ConfigError, match="may not be named by a YAML"):
        config("model={_target_: os.system, command: echo}").check()


@pytest.mark.parametrize("url", ["s3://key:hidden@b/x", "az://c/x?sig=hidden", "s3://b/x#hidden"])
def test_credentials_in_an_override_are_not_repeated(config, url):
    for override in (f"run.dir={url}", f"run.dir {url}"):
        message = refusal(config, override)
        assert "run.dir" in message
        assert "hidden" not in message
