import pytest
import torch
from torch import nn

from stoker.build import build_job
from stoker.config import Config, ConfigError, L, load


def faults(config):
    with pytest.raises(ConfigError) as caught:
        config.check()
    return caught.value.faults


def test_all_faults_are_reported_at_once_with_their_lines_and_nothing_is_built(folder):
    (folder / "bad.yaml").write_text(
        "model:\n"  # 1
        "  _target_: parts.Net\n"
        "  width: wide\n"  # 3
        "  depth: 3\n"  # 4
        "optimizer: {type: SGDD, lr: 0.1}\n"  # 5
        "criterion: {type: CrossEntropyLoss, label_smoothing: lots}\n"  # 6
        "train_loader: {_target_: torch.utils.data.DataLoader, batch_size: 4}\n"  # 7
        "hook: []\n"  # 8
        "run:\n"  # 9
        "  epochs: 2.5\n"  # 10
        "  max_epochs: 3\n"  # 11
        "  parallel: {shrad: 2}\n"  # 12
    )
    found = "\n".join(faults(load(folder / "bad.yaml")))
    for expected in (
        "bad.yaml:3: 'model.width' is 'wide', expected int",
        "bad.yaml:4: parts.Net has no argument 'depth'",
        "bad.yaml:5: there is no optimizer 'SGDD' in the registry; did you mean 'SGD'",
        "bad.yaml:6: 'criterion.label_smoothing' is 'lots', expected float",
        "bad.yaml:7: torch.utils.data.DataLoader needs 'dataset', which 'train_loader' does not",
        "bad.yaml:8: 'hook' is not a config key; did you mean 'hooks'",
        "bad.yaml:10: 'run.epochs' is 2.5, expected int or None",
        "bad.yaml:11: 'run' has no field 'max_epochs'; use 'run.epochs'",
        "bad.yaml:12: 'run.parallel' has no field 'shrad'; did you mean 'shard' or 'reshard'?",
    ):
        assert expected in found
    assert len(found.splitlines()) == 9
    import parts

    assert parts.MADE == []
    with pytest.raises(ConfigError):
        build_job(load(folder / "bad.yaml"))
    assert parts.MADE == []


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (L(nn.Linear)(4), "needs 'out_features'"),
        (L(nn.Linear)(), "needs 'in_features', 'out_features'"),
        (L(nn.Linear)(4, 8, in_features=3), "given twice"),
        (L(nn.ReLU)(True, 3), "takes 1 positional arguments, 'model' gives 2"),
        (L(nn.Linear)(4, "8"), "is '8', expected int"),
        (L(nn.Linear)(4, 8, bais=True), "no argument 'bais'; did you mean 'bias'?"),
        (L(nn.Linear)(4, 8, bias="yes"), "expected bool"),
        (L(nn.Linear)(4, 8, bias=None), "expected bool"),
        (L(nn.Linear)(4, [8]), "is [8], expected int"),
        (L(nn.Sequential)(L(nn.Linear)(4)), "which 'model.0' does not set"),
        (L("torch.nn.Linaer")(4, 8), "did you mean 'Linear'"),
        (L("no_such_module.Net")(), "there is no module 'no_such_module'"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused(node, words):
    (found,) = faults(Config({"model": node}))
    assert words in found
    assert found.startswith("test_check.py:")


@pytest.mark.parametrize(
    "node",
    [
        L(nn.Linear)(4, 8, dtype=torch.float64),
        L(nn.Conv2d)(1, 2, 3),
        L(nn.Conv2d)(1, 2, (3, 3), padding="same"),
        L(nn.Conv2d)(1, 2, [3, 3]),
        L(nn.Sequential)(),
        L(nn.Sequential)(L(nn.ReLU)(), L(nn.ReLU)()),
        L(nn.Dropout)(1),
        L(nn.Linear)(L(int)(4), 8),
        L(torch.zeros)(3, 4),
        L(nn.TransformerEncoderLayer)(8, 2, activation=nn.functional.gelu),
        L("torch.nn.Linear")(4, out_features=8),
    ],
)
def test_a_call_that_can_be_made_is_not_refused(node):
    Config({"model": node}).check()


@pytest.mark.parametrize(
    "optimizer",
    [
        L(torch.optim.SGD)(lr=1),
        L(torch.optim.AdamW)(betas=[0.9, 0.99]),
        L(torch.optim.Adam)(lr=1e-3, betas=(0.9, 0.99), foreach=None),
        {"a": L(torch.optim.SGD)(lr=0.1), "b": {"type": "Adam"}},
    ],
)
def test_an_optimizer_needs_no_params_because_the_run_gives_them(optimizer):
    Config({"optimizer": optimizer}).check()


def test_a_scheduler_needs_neither_optimizer_nor_horizon():
    Config({"lr_scheduler": {"type": "cosine"}}).check()
    Config({"lr_scheduler": {"type": "CosineAnnealingLR"}}).check()
    (found,) = faults(Config({"lr_scheduler": {"type": "StepLR"}}))
    assert "needs 'step_size'" in found


def test_a_loader_whose_batch_size_the_run_gives_need_not_give_it(folder):
    text = (folder / "cfg.yaml").read_text()
    start, end = text.index("train_loader"), text.index("val_loader")
    (folder / "own.yaml").write_text(
        text[:start] + "train_loader: {_target_: parts.loader_of}\n" + text[end:]
    )
    job = build_job(load(folder / "own.yaml", ["run.micro_batch=4", "run.dir=null"]))
    assert job.train_loader.batch_size == 4


def test_a_node_that_nothing_uses_is_refused_and_a_plain_variable_of_a_python_file_is_not(tmp_path):
    path = tmp_path / "with_own_names.py"
    path.write_text(
        "from stoker.config import L\nwidth = 64\n"
        "model = L('torch.nn.Linear')(4, width)\nspare = L('torch.nn.ReLU')()\n"
    )
    (found,) = faults(load(path))
    assert found.startswith("with_own_names.py:4: 'spare' is not a config key")


def test_a_key_that_is_referred_to_is_no_fault(folder):
    (folder / "vars.yaml").write_text(
        "width: 4\nsizes: {in: 4}\nmodel: {_target_: torch.nn.Linear, in_features: '${sizes.in}', "
        "out_features: '${width}'}\n"
    )
    assert load(folder / "vars.yaml").check()["model"]["out_features"] == 4


def test_a_key_that_nothing_refers_to_is_refused_in_a_yaml(folder):
    (folder / "vars.yaml").write_text("width: 4\n")
    (found,) = faults(load(folder / "vars.yaml"))
    assert "vars.yaml:1: 'width' is not a config key" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: 3\n", "'run' is 3, expected a mapping"),
        ("run: [1]\n", "'run' is [1], expected a mapping"),
        ("run: {parallel: 2}\n", "'run.parallel' is 2, expected a mapping"),
        ("model: Nett\n", "there is no model 'Nett' in the registry"),
    ],
)
def test_a_section_of_the_wrong_kind_is_refused(folder, text, words):
    (folder / "kind.yaml").write_text(text)
    assert words in "\n".join(faults(load(folder / "kind.yaml")))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("~model", "the config has no 'model'"),
        ("~optimizer", "the config has no 'optimizer'"),
        ("~train_loader", "the config has no 'train_loader'"),
        ("run.epochs=null", "the run has no end: set run.epochs or run.max_steps"),
        ("hooks=Loss", "'hooks' is a"),
    ],
)
def test_a_run_without_what_it_needs_is_refused_before_anything_is_built(folder, override, words):
    with pytest.raises(ConfigError) as caught:
        build_job(load(folder / "cfg.yaml", [override]))
    assert words in str(caught.value)
    import parts

    assert parts.MADE == []


@pytest.mark.parametrize("value", ["3", "[3]", "[Loss, 3]", "true"])
def test_a_hook_that_is_none_is_refused_before_anything_is_built(folder, value):
    with pytest.raises(ConfigError, match="hooks"):
        build_job(load(folder / "cfg.yaml", [f"hooks={value}"]))
    import parts

    assert parts.MADE == []


@pytest.mark.parametrize("key", ["model", "optimizer", "criterion", "train_loader"])
def test_a_part_that_is_no_node_is_refused_before_anything_is_built(folder, key):
    with pytest.raises(ConfigError, match=key):
        build_job(load(folder / "cfg.yaml", [f"{key}=3"]))
    import parts

    assert parts.MADE == []


def test_a_module_that_fails_to_import_is_reported_with_the_place(folder):
    (folder / "broken_module.py").write_text("import not_installed_anywhere\n")
    (folder / "broken.yaml").write_text("model: {_target_: broken_module.Net}\n")
    (found,) = faults(load(folder / "broken.yaml"))
    assert found.startswith("broken.yaml:1: broken_module.Net cannot be imported: ")
    assert "not_installed_anywhere" in found


def test_a_module_that_raises_while_it_is_imported_is_reported_with_the_place(folder):
    (folder / "raising_module.py").write_text("1 / 0\n")
    (folder / "broken.yaml").write_text("model: {_target_: raising_module.Net}\n")
    (found,) = faults(load(folder / "broken.yaml"))
    assert found.startswith("broken.yaml:1: raising_module.Net cannot be imported: ")
