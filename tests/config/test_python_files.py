import builtins
import copy
import pickle
import re
import sys

import pytest
import torch
from torch import nn

from stoker.config import Config, ConfigError, L, Lazy, build, load


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Called:
    made = 0

    def __init__(self, *args, **kwargs):
        type(self).made += 1
        self.args, self.kwargs = args, kwargs


@pytest.mark.row("L17")
def test_a_node_is_editable_before_it_is_built():
    node = L(nn.Linear)(4, out_features=8)
    node.out_features = 2
    node.bias = False
    node["dtype"] = torch.float64
    del node.dtype
    assert isinstance(node, Lazy)
    made = build(node)
    assert made.weight.shape == (2, 4)
    assert made.bias is None


@pytest.mark.row("L17")
def test_nested_nodes_are_built_inside_out():
    made = build(L(nn.Sequential)(L(nn.Linear)(4, 8), L(nn.ReLU)(), L(nn.Linear)(8, 3)))
    assert [type(layer) for layer in made] == [nn.Linear, nn.ReLU, nn.Linear]


def test_nodes_within_lists_tuples_and_dicts_are_built():
    made = build(L(Called)([L(nn.ReLU)()], (L(nn.ReLU)(), 1), key={"a": L(nn.ReLU)()}))
    assert isinstance(made.args[0][0], nn.ReLU)
    assert isinstance(made.args[1], tuple)
    assert isinstance(made.args[1][0], nn.ReLU)
    assert isinstance(made.kwargs["key"]["a"], nn.ReLU)


def test_a_node_in_two_places_is_built_once():
    shared = L(nn.Linear)(2, 2)
    made = build([shared, {"again": shared}, L(Called)(shared)])
    assert made[0] is made[1]["again"] is made[2].args[0]


def test_equal_nodes_that_are_not_the_same_are_built_apart():
    first, second = build([L(nn.Linear)(2, 2), L(nn.Linear)(2, 2)])
    assert first is not second


def test_a_node_knows_its_file_and_line():
    line = sys._getframe().f_lineno + 1
    node = L(nn.Linear)(4, 8)
    assert node.where == f"test_python_files.py:{line}"


def test_a_change_knows_its_own_line():
    node = L(nn.Linear)(4, 8)
    line = sys._getframe().f_lineno + 1
    node.bias = False
    assert node.origin("bias") == f"test_python_files.py:{line}"


def test_a_node_can_be_copied_and_pickled():
    node = L(nn.Linear)(4, out_features=8)
    for other in (copy.copy(node), copy.deepcopy(node), pickle.loads(pickle.dumps(node))):
        assert other == node
        assert other is not node
        other.out_features = 3
        assert node.out_features == 8
        assert build(other).weight.shape == (3, 4)


def test_what_cannot_be_called_is_no_target():
    with pytest.raises(TypeError, match="target must be a string or a function, got 3"):
        L(3)()


def test_an_argument_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no argument 'width'"):
        L(nn.Linear)(4, 8).width
    with pytest.raises(AttributeError, match="no argument 'width'"):
        del L(nn.Linear)(4, 8).width


@pytest.mark.row("L17")
def test_an_argument_error_of_a_call_names_target_and_place():
    node = L(nn.Linear)(4, 8, wide=True)
    with pytest.raises(TypeError) as caught:
        build(node)
    assert "torch.nn.Linear" in "".join(caught.value.__notes__)
    assert node.where in "".join(caught.value.__notes__)


def test_a_python_file_is_a_config(folder):
    path = write(
        folder,
        "py_plain.py",
        "from stoker.config import L\nfrom parts import Net\n\nmodel = L(Net)(width=64)\n"
        "run = dict(epochs=3)\n_private = 1\n",
    )
    config = load(path)
    assert config.tree["model"].width == 64
    assert config.tree["run"] == {"epochs": 3}
    assert config.tree["model"].where == "py_plain.py:4"
    assert "_private" not in config.tree
    assert "L" not in config.tree
    assert config.name == "py_plain"


def test_relative_imports_reach_beside_and_above(tmp_path):
    write(tmp_path, "common.py", "data = [1, 2]\n")
    write(tmp_path, "cfgs/base.py", "from stoker.config import L\nmodel = L('torch.nn.ReLU')()\n")
    path = write(
        tmp_path,
        "cfgs/big.py",
        "from .base import model\nfrom ..common import data\nmodel.inplace = True\n",
    )
    tree = load(path).tree
    assert tree["model"].inplace is True
    assert tree["model"].where == "base.py:2"
    assert tree["data"] == [1, 2]


def test_a_changed_base_file_is_read_again(tmp_path):
    base = write(tmp_path, "base.py", "width = 1\n")
    path = write(tmp_path, "top_one.py", "from .base import width\n")
    assert load(path).tree["width"] == 1
    base.write_text("width = 20000\n")
    assert load(path).tree["width"] == 20000


def test_what_one_config_changes_another_does_not_see(tmp_path):
    write(tmp_path, "base.py", "from stoker.config import L\nmodel = L('torch.nn.ReLU')()\n")
    first = write(tmp_path, "first_of_two.py", "from .base import model\nmodel.inplace = True\n")
    second = write(tmp_path, "second_of_two.py", "from .base import model\n")
    assert load(first).tree["model"].inplace is True
    assert "inplace" not in load(second).tree["model"]


@pytest.mark.row("L18")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = 1\n\nb = a / 0\n", 3, "ZeroDivisionError"),
        ("a = 1\nb = = 2\n", 2, "SyntaxError"),
        ("import json\nfrom .nowhere_at_all import x\n", 2, "ModuleNotFoundError"),
        ("from .failing_base import x\n", 1, "ValueError: in the base"),
        ("raise KeyError('k')\n", 1, "KeyError"),
    ],
)
def test_a_failing_config_file_leaves_import_untouched_and_says_its_line(
    tmp_path, text, line, words
):
    write(tmp_path, "failing_base.py", "x = 1\nraise ValueError('in the base')\n")
    path = write(tmp_path, "failing_top.py", text)
    before = list(sys.path), list(sys.meta_path), list(sys.path_hooks), builtins.__import__
    with pytest.raises(ConfigError, match=words) as caught:
        load(path)
    assert str(caught.value).startswith(f"failing_top.py:{line}: ")
    assert (list(sys.path), list(sys.meta_path), list(sys.path_hooks), builtins.__import__) == (
        before
    )
    assert "failing_top" not in sys.modules
    left = [
        name for name in sys.modules if name.startswith("_stoker_config_") and "failing" in name
    ]
    assert left == []


@pytest.mark.row("L18")
def test_a_failing_config_file_leaves_none_of_our_packages(tmp_path):
    path = write(tmp_path, "fails_at_once.py", "1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(ConfigError):
        load(path)
    assert {name for name in set(sys.modules) - before if name.startswith("_stoker")} == set()


def test_a_value_that_a_config_cannot_hold_is_named(tmp_path):
    path = write(tmp_path, "holds_bytes.py", "model = dict(key=b'bytes')\n")
    with pytest.raises(ConfigError, match=r"model\.key is a bytes, which a config cannot hold"):
        load(path)


def test_classes_functions_and_dtypes_are_held_by_their_names(tmp_path):
    path = write(
        tmp_path,
        "named_things.py",
        "import torch\nfrom stoker.config import L\n"
        "model = L(dict)(act=torch.nn.ReLU, f=torch.relu, kind=torch.bfloat16)\n",
    )
    config = load(path)
    assert build(config.tree["model"]) == {
        "act": nn.ReLU,
        "f": torch.relu,
        "kind": torch.bfloat16,
    }
    assert "_object_: torch.bfloat16" in config.text()


def test_windows_line_ends_and_a_bom_are_read_in_python_files(tmp_path):
    path = tmp_path / "from_windows.py"
    path.write_bytes("\ufeffa = 1\r\nrun = dict(epochs=2)\r\n".encode())
    assert load(path).tree["run"] == {"epochs": 2}


def test_a_config_is_made_from_a_dict_too():
    config = Config({"model": L(nn.Linear)(4, 3), "run": {"epochs": 2}})
    assert config.override("model.1=5").tree["model"].args == [4, 5]


def test_another_suffix_is_refused(tmp_path):
    path = write(tmp_path, "cfg.toml", "a = 1\n")
    with pytest.raises(ConfigError, match=r"ends in '\.toml', expected \.py, \.yaml or \.yml"):
        load(path)


def test_a_missing_file_is_answered_with_the_nearest_path(tmp_path):
    near = write(tmp_path, "train.yaml", "run: {}\n")
    with pytest.raises(ConfigError, match=re.escape(f"; did you mean '{near}'?")):
        load(tmp_path / "trian.yaml")


def test_the_items_of_a_section_are_attributes_too():
    tree = Config({"run": {"checkpoint": {"keep": 2}}, "args": 3}).tree
    tree.run.checkpoint.keep = 5
    assert tree["run"]["checkpoint"]["keep"] == 5
    assert tree.args == 3
    del tree.run.checkpoint.keep
    assert tree.run.checkpoint == {}
    with pytest.raises(AttributeError, match="did you mean 'checkpoint'"):
        tree.run.chekpoint
