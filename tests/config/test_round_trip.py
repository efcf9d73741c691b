import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.config import Config, ConfigError, L, Lazy, load
from stoker.config.yaml_text import read, write

ODD_LINE_ENDS = ("\x85", "\u2028", "\u2029")


def _usual(text):
    return "${" not in text and not any(end in text for end in ODD_LINE_ENDS)


words = st.text("abcdefghij_", min_size=1, max_size=6).map("k".__add__)
texts = st.text(max_size=12).filter(_usual) | st.sampled_from(
    ["yes", "no", "on", "null", "~", "5e-05", "1e3", "0x10", "1_000", "12:30", "<<", "=", "", " ",
     "- a", "a: b", "#", "a #b", "true", "2001-01-01", ".inf", "'", '"', "\n", "a\nb\n", "!x", "&a",
     "*a", "%", "@", "`", "\t", "\ufeff", "1.", "010", "-", "?", "[", "{"]
)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
targets = st.sampled_from(["parts.Wide", "torch.nn.ReLU", "builtins.dict"])


def containers(inner):
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(words, inner, max_size=3)
        | st.builds(
            Lazy, targets, st.lists(inner, max_size=2), st.dictionaries(words, inner, max_size=2)
        )
    )


values = st.recursive(scalars, containers, max_leaves=6)
trees = st.dictionaries(words, values, max_size=4)
usual = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def saved_and_loaded(config, folder):
    config.save(folder / "saved.yaml")
    return load(folder / "saved.yaml")


@pytest.mark.slow
@pytest.mark.row("L17", "T06")
@usual
@given(trees)
def test_any_saved_config_loads_to_an_equal_tree(tmp_path, tree):
    config = Config({"model": Lazy("parts.Wide", kwargs=tree)})
    again = saved_and_loaded(config, tmp_path)
    assert again.tree == config.resolved()
    assert repr(again.tree) == repr(config.resolved())


@pytest.mark.slow
@settings(usual, max_examples=40)
@given(values, st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
def test_overriding_and_saving_commute(tmp_path, other, value):
    tree = {"model": Lazy("builtins.dict", kwargs={"width": 1, "other": other}), "run": {"seed": 3}}
    shown = write(value).removesuffix("...\n").strip()
    overrides = [f"model.width={shown}", "run.epochs=4"]
    first = Config(copied(tree)).override(*overrides)
    second = saved_and_loaded(Config(copied(tree)), tmp_path)
    second.allow = ("builtins.",)
    second.override(*overrides)
    assert saved_and_loaded(first, tmp_path).tree == second.resolved()


def copied(tree):
    return read(write(tree), "x")


@pytest.mark.parametrize("value", ["5e-05", "yes", "1e3", "null", "0x1F", "~", "1_0", "08", ".5"])
def test_a_text_that_looks_like_something_else_stays_a_text(value):
    assert read(write({"a": value}), "x") == {"a": value}


@pytest.mark.parametrize("end", [*ODD_LINE_ENDS, "\r", "\r\n", "\n"])
def test_texts_with_line_ends_of_all_kinds_read_back_equal(tmp_path, end):
    texts = {"alone": end, "within": f"a{end}b", "last": f"a{end}"}
    config = Config({"model": Lazy("parts.Wide", kwargs=texts)})
    assert dict(saved_and_loaded(config, tmp_path).tree["model"]) == texts


def test_a_shared_node_stays_one_when_saved(tmp_path):
    shared = L(nn.Linear)(2, 2)
    config = Config({"model": L(nn.Sequential)(shared, L(nn.ReLU)(), shared)})
    again = saved_and_loaded(config, tmp_path).resolved()["model"]
    assert again.args[0] is again.args[2]


def test_a_shared_node_under_an_odd_key_stays_one_when_saved(tmp_path):
    shared = L("torch.nn.ReLU")()
    config = Config({"val_loader": {"in domain": shared, "out": shared}})
    again = saved_and_loaded(config, tmp_path).resolved()["val_loader"]
    assert again["in domain"] is again["out"]


def test_a_resolved_text_is_a_config_again(folder):
    config = load(folder / "cfg.yaml", ["lr_scheduler=cosine", "+hooks=EarlyStopping"])
    (folder / "again.yaml").write_text(config.text())
    again = load(folder / "again.yaml")
    assert again.tree == config.resolved()
    again.check()


PYTHON = """\
import torch
from torch import nn
from stoker.config import L
from parts import Net, data

lr = 0.05
sizes = [8, 16]
_set = L(data)(20)
model = L(Net)(width=sizes[0])
optimizer = L(torch.optim.SGD)(lr=lr)
criterion = L(nn.CrossEntropyLoss)()
train_loader = L(torch.utils.data.DataLoader)(_set, batch_size=4)
val_loader = L(torch.utils.data.DataLoader)(_set, batch_size=5)
run = dict(epochs=1, progress=False)
"""


@pytest.mark.row("L17")
def test_the_config_of_a_python_file_reloads_to_an_equal_tree_and_can_be_used(folder):
    (folder / "py_saved.py").write_text(PYTHON)
    config = load(folder / "py_saved.py")
    tree = config.check()
    (folder / "runs").mkdir()
    config.save(folder / "runs" / "config.yaml")
    again = load(folder / "runs")
    assert again.resolved() == tree
    assert again.check() == tree
    node = again.resolved()
    assert node["train_loader"].args[0] is node["val_loader"].args[0]


def test_what_has_no_name_cannot_be_saved_and_says_where(tmp_path):
    class Local:
        pass

    with pytest.raises(ConfigError, match=r"test_round_trip\.py:\d+: .*Local has no name"):
        Config({"model": L(Local)()}).text()
    with pytest.raises(ConfigError, match="has no name"):
        Config({"model": L(lambda: 3)()}).save(tmp_path / "x.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_function_without_a_name_inside_cannot_be_saved():
    with pytest.raises(ConfigError, match="no name"):
        Config({"model": L(dict)(act=lambda x: x)}).text()


def test_dtypes_and_classes_read_back_equal(tmp_path):
    config = Config({"model": L(dict)(kind=torch.bfloat16, act=nn.ReLU)})
    with pytest.raises(ConfigError, match="may not be named"):
        saved_and_loaded(config, tmp_path).check()
    config.save(tmp_path / "saved.yaml")
    again = load(tmp_path / "saved.yaml", allow=["builtins."])
    assert again.check()["model"]["kind"].name == "torch.bfloat16"


# Where a value comes from


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("model.width", "model.width = 9  (override 'model.width=9')"),
        ("optimizer.lr", "optimizer.lr = 0.1  (cfg.yaml:2)"),
        ("run.epochs", "run.epochs = 2  (cfg.yaml:15)"),
        ("run.seed", "run.seed = 9  (override 'run.seed=9')"),
        ("optimizer.momentum", "optimizer.momentum = 0.5  (override 'optimizer.momentum=0.5')"),
        ("run.precision", "run.precision = fp32  (default of run.precision)"),
        ("run.parallel.shard", "run.parallel.shard = 1  (default of run.parallel.shard)"),
        ("model.dropout", "model.dropout = 0.0  (default of parts.Net)"),
        ("optimizer.nesterov", "optimizer.nesterov = false  (default of torch.optim.SGD)"),
        ("train_loader.batch_size", "train_loader.batch_size = 4  (cfg.yaml:7)"),
        ("train_loader.dataset.count", "train_loader.dataset.count = 20  (cfg.yaml:6)"),
        ("model.name", "model.name = 9  (override 'model.name=${.width}', written as ${.width})"),
        ("optimizer.params", "optimizer.params is not set; the run supplies it"),
    ],
)  # fmt: skip
def test_why_says_where_a_value_comes_from(folder, path, said):
    config = load(
        folder / "cfg.yaml",
        ["run.seed=9", "optimizer.momentum=0.5", "model.width=9", "model.name=${.width}"],
    )
    assert config.why(path) == said


def test_why_knows_lines_of_included_and_python_files(folder):
    (folder / "top.yaml").write_text("defaults: [cfg.yaml]\nrun: {seed: 4}\n")
    config = load(folder / "top.yaml")
    assert config.why("run.epochs").endswith("(cfg.yaml:15)")
    assert config.why("run.seed").endswith("(top.yaml:2)")
    (folder / "py_why.py").write_text(PYTHON)
    config = load(folder / "py_why.py")
    assert config.why("model.width") == "model.width = 8  (py_why.py:9)"
    assert config.why("run.epochs") == "run.epochs = 1  (py_why.py:14)"


@pytest.mark.parametrize("path", ["nothing", "model.widht", "run.epoch", "model.width.x", ""])
def test_why_of_a_place_that_is_not_there_is_refused(folder, path):
    with pytest.raises(ConfigError, match="has no"):
        load(folder / "cfg.yaml").why(path)
