"""What the dialects share."""

import importlib.util
import inspect
import pickle

import pytest
import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.dialects.adapter import Adapter, explain, overridden, with_names
from stoker.dialects.rates import schedule
from stoker.storage.local import replace_link
from support.server import run


class Base:
    def begin(self):
        pass

    def end(self):
        pass


class Own(Base):
    def end(self):
        pass


def engine():
    model = nn.Linear(2, 1)
    return Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), nn.MSELoss())


def test_only_what_a_hook_overrides_is_called():
    own = Own()
    assert overridden(own, Base, ["begin", "end"]) == ["end"]
    own.begin = lambda: None
    assert overridden(own, Base, ["begin", "end"]) == ["begin", "end"]
    assert overridden(Base(), Base, ["begin", "end"]) == []


def test_hooks_of_one_class_have_names_of_their_own():
    assert [name for _, name in with_names([Own(), Base(), Own()])] == ["Own", "Base", "Own 2"]


def test_the_state_of_a_foreign_hook_is_saved_once():
    class Counting(Own):
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counting = Counting()
    counting.count = 3
    state = Adapter(counting, "one").state_dict()
    again = Counting()
    Adapter(again, "one").load_state_dict(state)
    assert again.count == 3
    assert Adapter(None, "aside").state_dict() == Adapter(Own(), "other").state_dict() == {}


def test_an_old_name_leads_to_the_checkpoint_and_spares_what_is_none(tmp_path):
    for name in ("step-1", "step-2", "kept"):
        (tmp_path / name).mkdir()
    replace_link(tmp_path / "last", tmp_path / "step-1")
    replace_link(tmp_path / "last", tmp_path / "step-2")
    replace_link(tmp_path / "last", tmp_path / "step-2")
    assert (tmp_path / "last").readlink().as_posix() == "step-2"
    replace_link(tmp_path / "kept", tmp_path / "step-1")
    assert not (tmp_path / "kept").is_symlink()


def test_every_hook_of_a_script_is_reported_with_its_translation():
    one, other = Adapter(Own(), "Own"), Adapter(None, "Own.end")
    one.place("begin", "before_step", lambda run: None)
    other.place("end", "after_step", lambda run: None)
    other.place("end", "after_val_step", lambda run: None)
    saving = hooks.Write(hooks_writer(), every=1)
    saving.name = "Board.Write"
    trainer = Trainer(engine(), [one, other, saving, Silent()])
    trainer.step.stands_for = "Own"
    told = explain(trainer).partition("Hooks of the script\n")[2]
    how = "begin at before_step; end at after_step, after_val_step; the step"
    assert told == f"  {'Own':<28} {how}\n  {'Board':<28} stoker.hooks.Write"


class Silent(Hook):
    """Part of a dialect, and nothing a script knows."""


def hooks_writer():
    from stoker.events import Console

    return Console()


def test_a_schedule_has_the_signature_and_the_name_of_old():
    def falls(step, base, total, floor=0.0):
        """Falls to a rate."""
        return floor / base + (1 - floor / base) * (1 - step / total)

    made = schedule("Falls", falls, total=..., floor=0.0, last_epoch=-1)
    assert str(inspect.signature(made)) == "(optimizer, total, floor=0.0, last_epoch=-1)"
    assert (made.__name__, made.__doc__) == ("Falls", "Falls to a rate.")
    model = nn.Linear(1, 1)
    groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 2.0}]
    optimizer = torch.optim.SGD(groups)
    rates = made(optimizer, 2, 0.5)
    optimizer.step()
    rates.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.75, 1.25]
    with pytest.raises(TypeError, match="total"):
        made(optimizer)


PATHS = {
    "colossalai": ["amp", "core", "nn.lr_scheduler", "trainer.hooks._log_hook", "legacy.engine"],
    "libai": ["config.lazy", "engine.default", "engine.hooks", "utils.distributed"],
    "orca": ["learn.metrics", "learn.pytorch.callbacks.tqdm", "learn.pytorch.estimator"],
    "towhee": ["models.vit", "operator.base", "ops.image_embedding", "trainer.callback"],
}


@pytest.mark.parametrize("dialect", PATHS)
def test_the_module_tree_of_the_original_is_there(dialect):
    for path in PATHS[dialect]:
        module = importlib.import_module(f"stoker.dialects.{dialect}.{path}")
        parent, _, last = f"stoker.dialects.{dialect}.{path}".rpartition(".")
        assert getattr(importlib.import_module(parent), last) is module
        assert importlib.util.find_spec(f"stoker.dialects.{dialect}.{path}") is not None
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        importlib.import_module(f"stoker.dialects.{dialect}.{PATHS[dialect][0]}.no_such")


@pytest.mark.process
def test_a_module_that_only_forwards_is_imported_first():
    code = "from stoker.dialects.colossalai.legacy.trainer.hooks import LossHook; print(LossHook)"
    assert "LossHook" in run("-c", code, check=True).stdout


def test_classes_are_pickled_and_their_source_is_found():
    from stoker.dialects.colossalai.engine import BaseGradientHandler, PipelineSchedule
    from stoker.dialects.colossalai.trainer.hooks import LossHook
    from stoker.dialects.orca.learn.pytorch.callbacks.tqdm import TqdmCallback

    for kind in (BaseGradientHandler, PipelineSchedule, LossHook, TqdmCallback):
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert inspect.getsource(kind).startswith(f"class {kind.__name__}")
