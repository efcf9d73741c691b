import math

import pytest
import torch
from torch import nn

from stoker.config import Builder, ConfigError, Lazy, load


@pytest.fixture
def read(folder):
    def read(text, *overrides, **options):
        path = folder / "under_test.yaml"
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text, encoding="utf-8")
        return load(path, overrides, **options)

    return read


def built(config, key="model"):
    with config.importable():
        return Builder(config).build(config.resolved()[key], key)


# Nodes


def test_a_target_with_arguments_is_a_node(read):
    config = read("model:\n  _target_: torch.nn.Linear\n  _args_: [4, 8]\n  bias: false\n")
    node = config.tree["model"]
    assert isinstance(node, Lazy)
    assert (node.target, node.args, dict(node)) == ("torch.nn.Linear", [4, 8], {"bias": False})
    assert node.origin("bias") == "under_test.yaml:4"
    assert built(config).weight.shape == (8, 4)


def test_an_object_is_passed_as_it_is(read):
    config = read(
        "model: {_target_: parts.Wide, act: {_object_: torch.nn.ReLU}, k: {_tuple_: [1, 2]}}\n"
    )
    assert built(config).kwargs == {"act": nn.ReLU, "k": (1, 2)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {_target_: 3}\n", "_target_ must be a dotted name, got 3"),
        ("model: {_target_: torch.nn.ReLU, _args_: 3}\n", "_args_ must be a list, got 3"),
        ("model: {_args_: [3]}\n", "_args_ needs a _target_"),
        (
            "model: {a: {_object_: x.y, b: 1}}\n",
            "_object_ must be the only key and must be a dotted name",
        ),
        ("model: {a: {_tuple_: 1}}\n", "_tuple_ must be the only key and must be a list"),
        ("model: {a: 1\n", "invalid YAML"),
        ("- a\n- b\n", "a config must be a mapping"),
        ("a: 1\n---\nb: 1\n", "invalid YAML"),
        ("model: 1\nrun: {}\nmodel: 2\n", "under_test.yaml:3: 'model' is defined twice"),
        ("model:\n  a: 1\n  b: 2\n  a: 3\n", "under_test.yaml:4: 'a' is defined twice"),
        ("[1, 2]: 3\n", "a key must be a scalar"),
    ],
)
def test_a_wrong_form_is_rejected_with_a_clear_error(read, text, words):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert words in str(caught.value)
    assert "under_test.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['echo']",
        "!!python/name:os.system ''",
        "!!python/tuple [1]",
        "!!python/object/new:dict {}",
        "!mine 3",
        "!!set {a}",
        "!!binary aGk=",
    ],
)
def test_tags_are_refused(read, value):
    with pytest.raises(ConfigError, match=r"under_test\.yaml:1: the tag .* is not supported"):
        read(f"model: {value}\n")


def test_a_mapping_within_itself_is_refused(read):
    with pytest.raises(ConfigError):
        read("model: &m\n  again: *m\n").check()


def test_keys_that_are_no_words_are_rejected_with_a_clear_error(read):
    with pytest.raises(ConfigError, match="'1' is not a config key"):
        read("1: 2\n").check()


def test_merge_keys_are_merged(read):
    text = "base: &b {width: 3, name: y}\nmodel: {_target_: parts.Wide, a: {<<: *b, name: x}}\n"
    assert built(read(text)).kwargs["a"] == {"width": 3, "name": "x"}


# Values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-05", 5e-5),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("3.", 3.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("7", 7),
        ("-7", -7),
        ("0x1F", 31),
        ("010", 10),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("NO", "NO"),
        ("y", "y"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("'5e-05'", "5e-05"),
        ('"7"', "7"),
        ("'null'", "null"),
        ("1e", "1e"),
        ("val/loss", "val/loss"),
    ],
)
def test_words_and_numbers_are_what_they_look_like(read, text, value):
    found = read(f"model: {{_target_: parts.Wide, a: {text} }}\n").tree["model"]["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("text", "value"), [("!!str 5", "5"), ("!!int '5'", 5)])
def test_a_tag_that_says_the_type_is_followed(read, text, value):
    assert read(f"model: {{_target_: parts.Wide, a: {text} }}\n").tree["model"]["a"] == value


def test_nan_is_a_number(read):
    assert math.isnan(read("model: {_target_: parts.Wide, a: .nan}\n").tree["model"]["a"])


@pytest.mark.parametrize("text", [b"", b"# nothing\n", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_config(read, text):
    assert dict(read(text).tree) == {}


def test_windows_line_ends_and_a_bom_are_read(read):
    config = read("\ufeffmodel:\r\n  _target_: parts.Net\r\n  width: 4\r\n".encode())
    assert config.tree["model"] == Lazy("parts.Net", kwargs={"width": 4})
    assert config.tree["model"].origin("width") == "under_test.yaml:3"


@pytest.mark.parametrize("text", [b"a: \xff\xfe\n", "a: ü\n".encode("latin-1"), b"\x00\x01"])
def test_a_file_that_is_no_utf8_text_is_refused(read, text):
    with pytest.raises(ConfigError, match=r"under_test\.yaml"):
        read(text)


def test_a_path_with_spaces_and_letters_of_all_kinds_is_read(folder):
    place = folder / "my configs é"
    place.mkdir()
    (place / "a config.yml").write_text("run: {epochs: 1}\n")
    config = load(place / "a config.yml")
    assert config.name == "a config"
    assert config.resolved()["run"]["epochs"] == 1


# References


def test_a_reference_to_a_node_is_the_very_node(read):
    config = read(
        "model: {_target_: parts.Pair, left: {_target_: torch.nn.ReLU}, right: '${model.left}'}\n"
    )
    made = built(config)
    assert made.left is made.right


def test_an_alias_is_the_very_node(read):
    config = read("model: {_target_: parts.Pair, left: &x {_target_: torch.nn.ReLU}, right: *x}\n")
    made = built(config)
    assert made.left is made.right


def test_references_are_values_texts_relative_and_from_the_environment(read, monkeypatch):
    monkeypatch.setenv("STOKER_TEST_WORD", "hello")
    config = read(
        "model:\n"
        "  _target_: parts.Wide\n"
        "  value: ${run.epochs}\n"
        "  text: run-${run.epochs}-of-${run.name}\n"
        "  near: ${.value}\n"
        "  up: ${..run.name}\n"
        "  env: ${oc.env:STOKER_TEST_WORD}\n"
        "  other: ${oc.env:STOKER_TEST_NOT_THERE,fallback}\n"
        "  item: ${model.list[1]}\n"
        "  item2: ${model.list.0}\n"
        "  list: [5, 6]\n"
        "run: {epochs: 3, name: here}\n"
    )
    assert built(config).kwargs == {
        "value": 3,
        "text": "run-3-of-here",
        "near": 3,
        "up": "here",
        "env": "hello",
        "other": "fallback",
        "item": 6,
        "item2": 5,
        "list": [5, 6],
    }


def test_a_reference_by_position_that_leads_nowhere_is_named_by_its_position(read):
    text = "model: {_target_: torch.nn.Linear, _args_: ['${wide}'], out_features: 3}\n"
    with pytest.raises(ConfigError, match=r"'model\.0' is \$\{wide\}"):
        read(text).resolved()


def test_a_chain_of_references_is_followed(read):
    config = read("a: ${b}\nb: ${c}\nc: 7\nmodel: {_target_: parts.Wide, x: '${a}'}\n")
    assert built(config).kwargs == {"x": 7}


def test_an_escaped_reference_is_text_and_stays_so_when_saved(read, folder):
    config = read("model: {_target_: parts.Wide, x: 'cost \\${y}'}\n")
    assert built(config).kwargs == {"x": "cost ${y}"}
    config.save(folder / "saved.yaml")
    assert built(load(folder / "saved.yaml")).kwargs == {"x": "cost ${y}"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ${b}\nb: ${a}\n", ["refers to itself", "b → a"]),
        ("a: ${a}\n", ["'a' refers to itself"]),
        ("model: {_target_: parts.Wide, x: '${model}'}\n", ["refers to itself"]),
        ("run: {epochs: 3, seed: '${run.epoch}'}\n", ["'run.seed' is ${run.epoch}", "epochs"]),
        ("a: ${nowhere.at.all}\n", ["'a' is ${nowhere.at.all}", "has no 'nowhere'"]),
        ("a: ${b.c}\nb: 3\n", ["'b' is 3, which has no 'c' in it"]),
        ("a: x ${nowhere} y\n", ["'a' cannot be resolved", "nowhere"]),
        ("a: ${oc.env:STOKER_TEST_NOT_THERE}\n", ["'a' cannot be resolved", "NOT_THERE"]),
        ("a: ${what:1}\n", ["'a' cannot be resolved", "what"]),
        ("a: 'x ${b'\n", ["'a' cannot be resolved"]),
    ],
)
def test_a_reference_that_leads_nowhere_is_rejected_with_a_clear_error(read, text, words):
    config = read(text)
    with pytest.raises(ConfigError) as caught:
        config.resolved()
    for word in words:
        assert word in str(caught.value)


# Files that include others


def test_defaults_are_merged_deeply_below_the_file(folder):
    (folder / "base.yaml").write_text(
        "model: {_target_: parts.Net, width: 3, dropout: 0.5}\n"
        "optimizer: {type: SGD, lr: 0.1}\nhooks: [Loss, LR]\nrun: {epochs: 5, seed: 1}\n"
    )
    (folder / "top.yaml").write_text(
        "defaults: [base.yaml]\nmodel: {_target_: parts.Net, width: 9}\n"
        "optimizer: {lr: 0.5}\nhooks: [Timing]\nrun: {seed: 2}\n"
    )
    config = load(folder / "top.yaml")
    tree = config.tree
    assert dict(tree["model"]) == {"width": 9, "dropout": 0.5}
    assert tree["optimizer"] == {"type": "SGD", "lr": 0.5}
    assert tree["hooks"] == ["Timing"]
    assert tree["run"] == {"epochs": 5, "seed": 2}
    assert "defaults" not in tree
    assert tree["run"].origin("epochs") == "base.yaml:4"
    assert tree["run"].origin("seed") == "top.yaml:5"


def test_a_node_below_is_changed_without_naming_its_target_again(folder):
    (folder / "base.yaml").write_text("model: {_target_: parts.Net, width: 3, dropout: 0.5}\n")
    (folder / "top.yaml").write_text("defaults: base.yaml\nmodel: {width: 9}\n")
    node = load(folder / "top.yaml").tree["model"]
    assert node == Lazy("parts.Net", kwargs={"width": 9, "dropout": 0.5})


def test_another_target_or_type_replaces_the_node_below(folder):
    (folder / "base.yaml").write_text(
        "model: {_target_: parts.Net, width: 3}\noptimizer: {type: SGD, momentum: 0.9}\n"
    )
    (folder / "top.yaml").write_text(
        "defaults: [base.yaml]\nmodel: {_target_: torch.nn.ReLU}\noptimizer: {type: Adam}\n"
    )
    tree = load(folder / "top.yaml").tree
    assert tree["model"] == Lazy("torch.nn.ReLU")
    assert tree["optimizer"] == {"type": "Adam"}


def test_a_later_default_wins_and_folders_are_relative_to_the_file(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "one.yaml").write_text("defaults: [two.yaml]\nrun: {epochs: 1, seed: 1}\n")
    (folder / "sub" / "two.yaml").write_text("run: {name: two, seed: 5}\n")
    (folder / "three.yaml").write_text("run: {epochs: 3}\n")
    (folder / "top.yaml").write_text("defaults: [sub/one.yaml, three.yaml]\n")
    run = load(folder / "top.yaml").tree["run"]
    assert run == {"epochs": 3, "seed": 1, "name": "two"}


def test_one_file_may_be_included_twice_without_a_circle(folder):
    (folder / "base.yaml").write_text("run: {epochs: 1}\n")
    (folder / "a.yaml").write_text("defaults: [base.yaml]\n")
    (folder / "top.yaml").write_text("defaults: [a.yaml, base.yaml]\n")
    assert load(folder / "top.yaml").tree["run"] == {"epochs": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("defaults: [under_test.yaml]\n", "under_test.yaml → under_test.yaml"),
        ("defaults: [other.yaml]\n", "under_test.yaml → other.yaml → under_test.yaml"),
        ("run: {}\ndefaults: [none.yaml]\n", "under_test.yaml:2: defaults lists 'none.yaml'"),
        ("defaults: 3\n", "defaults must be a list of files"),
        ("defaults: [{a: b}]\n", "defaults must be a list of files"),
    ],
)
def test_defaults_that_cannot_be_are_refused(read, folder, text, words):
    (folder / "other.yaml").write_text("defaults: [under_test.yaml]\n")
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert words in str(caught.value)


# What a YAML may name

REFUSED = [
    "os.system",
    "torch.os.system",
    "torch.hub.load",
    "torch.load",
    "torch.utils.model_zoo.load_url",
    "builtins.eval",
    "builtins.exec",
    "subprocess.run",
    "shutil.rmtree",
    "torch._C._cuda_init",
    "torch._C.import_ir_module",
    "torch.serialization.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.utils.cpp_extension.load_inline",
    "torch.multiprocessing.spawn",
    "torch.sys.exit",
    "torch.sys.path.append",
    "torch.sys.modules.clear",
    "torch.os.environ.update",
    "torch.importlib.import_module",
    "torch.builtins.eval",
    "torch.utils.collect_env.run",
    "torch.utils.collect_env.run_and_read_all",
    "torch.backends.xeon.run_cpu.main",
    "torch.utils.benchmark.Timer",
    "torch.utils.data.datapipes.utils.decoder.basichandlers",
    "torch.nn.Module.__init__.__globals__.get",
    "stoker.cli.main",
    "stoker.config.files",
]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_could_run_other_code_is_refused_with_the_way_to_allow_it(read, name):
    config = read(f"model: {{_target_: {name}, _args_: ['echo']}}\n")
    with pytest.raises(ConfigError, match=r"may not be named by a YAML file.*--allow \w+\."):
        config.check()
    with pytest.raises(ValueError, match="may not be named by a YAML"):
        config.callee(config.tree["model"])


@pytest.mark.parametrize("name", REFUSED[:4])
def test_an_object_is_refused_like_a_target(read, name):
    config = read(f"model: {{_target_: parts.Wide, f: {{_object_: {name}}}}}\n")
    with pytest.raises(ConfigError, match="may not be named by a YAML file"):
        config.check()


@pytest.mark.parametrize("place", ["[{_object_: os.system}]", "{a: {_object_: os.system}}"])
def test_an_object_inside_a_list_or_mapping_is_refused_before_anything_is_built(read, place):
    config = read(f"model: {{_target_: parts.Wide, f: {place}}}\n")
    with pytest.raises(ConfigError, match="'os.system' may not be named by a YAML file"):
        config.check()


def test_a_refused_module_is_not_even_imported(read, folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "sneaky_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    with pytest.raises(ConfigError, match="--allow sneaky_module\\."):
        read("model: {_target_: sneaky_module.f}\n").check()


@pytest.mark.parametrize(
    ("name", "allow"),
    [
        ("os.system", "os."),
        ("os.system", "os"),
        ("os.path.join", "os."),
        ("torch.load", "torch.load"),
        ("torch.load", "torch."),
        ("torch.hub.load", "torch.hub."),
        ("builtins.dict", "builtins."),
        ("collections.OrderedDict", "collections."),
    ],
)
def test_what_is_allowed_by_its_name_may_be_named(read, name, allow):
    config = read(f"model: {{_target_: {name}}}\n", allow=[allow])
    assert callable(config.callee(config.tree["model"]))


def test_to_allow_a_prefix_allows_no_longer_word(read):
    with pytest.raises(ConfigError, match="'osx.f' may not be named"):
        read("model: {_target_: osx.f}\n", allow=["os"]).check()


@pytest.mark.parametrize(
    "name",
    [
        "torch.nn.Linear",
        "torch.optim.AdamW",
        "torch.utils.data.DataLoader",
        "torch.nn.functional.cross_entropy",
        "torch.relu",
        "torch.optim.lr_scheduler.StepLR",
        "stoker.hooks.EarlyStopping",
        "stoker.nn.lr.cosine",
        "stoker.events.TensorBoard",
        "torchmetrics.classification.MulticlassAccuracy",
        "torch.randn",
        "torch.Generator",
        "parts.Net",
    ],
)
def test_torch_stoker_torchmetrics_and_modules_beside_the_file_may_be_named(read, name):
    config = read(f"model: {{_target_: {name}}}\n")
    with config.importable():
        assert callable(config.callee(config.tree["model"]))


def test_a_module_beside_the_file_is_found_from_another_folder(
    folder, monkeypatch, tmp_path_factory
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load(folder / "cfg.yaml").check()["model"].target == "parts.Net"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch.nn.Linaer", "'torch.nn' has no 'Linaer'; did you mean 'Linear'"),
        ("parts.Nett", "'parts' has no 'Nett'; did you mean 'Net'?"),
        ("Linear", "'Linear' may not be named"),
        ("torch.nn.", "not a dotted name"),
        ("parts.MADE", "is not a class or function"),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_with_the_nearest(read, name, words):
    with pytest.raises(ConfigError) as caught:
        read(f"model: {{_target_: {name}}}\n").check()
    assert words in str(caught.value)
    assert str(caught.value).startswith("under_test.yaml:1: ")


def test_reading_and_checking_a_yaml_builds_nothing(folder):
    load(folder / "cfg.yaml").check()
    import parts

    assert parts.MADE == []


def test_torch_itself_is_fine_afterwards():
    assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape == (1, 2)


def test_a_file_from_elsewhere_cannot_say_that_code_of_ours_is_its_own(tmp_path, monkeypatch):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "ours_alone.py").write_text("def deploy(): ...\n")
    text = f"model: {{_target_: ours_alone.deploy}}\n_path_: ['{project}']\n"
    (elsewhere / "x.yaml").write_text(text)
    (project / "x.yaml").write_text(text)
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError, match="'ours_alone.deploy' may not be named by a YAML file"):
        load(elsewhere / "x.yaml").check()
    load(project / "x.yaml").check()
