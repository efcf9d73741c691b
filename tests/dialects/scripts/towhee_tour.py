"""A script as Towhee's page has it: a model, an operator, and everything that can be set."""

import re
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
import towhee
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset
from towhee.models import vit
from towhee.trainer.callback import Callback
from towhee.trainer.metrics import TMMetrics
from towhee.trainer.trainer import Trainer
from towhee.trainer.training_config import TrainingConfig
from towhee.trainer.utils.layer_freezer import LayerFreezer

warnings.filterwarnings("ignore")
images, labels = load_digits(return_X_y=True)
pictures = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)


def digits(first, size, *, colours=1):
    x = pictures[first : first + size].repeat(1, colours, 1, 1)
    return TensorDataset(x, torch.tensor(labels[first : first + size]))


def lines_of(train, *arguments, **named):
    """What a training prints."""
    with redirect_stdout(StringIO()) as said:
        train(*arguments, **named)
    return said.getvalue().splitlines()


# Train a model
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
train_data, eval_data = digits(0, 2), digits(2, 1)
training_config = TrainingConfig(
    output_dir="./train_dummy_torch",
    epoch_num=2,
    batch_size=1,
    print_steps=1,
    tensorboard={"log_dir": "mylogdir"},
)
trainer = Trainer(model, training_config, train_dataset=train_data, eval_dataset=eval_data)
lines = lines_of(trainer.train)
shown = [re.sub(r"=[\d.]+(e-\d+)?(,|$)", "", line.partition(", ")[2]) for line in lines]
trained, evaluated = (
    "global_stepepoch_lossepoch_metric",
    "eval_global_stepeval_epoch_losseval_epoch_metric",
)
assert [line.replace(" ", "") for line in shown] == [trained, trained, evaluated] * 2, shown
assert [line.partition(",")[0] for line in lines] == ["epoch=1/2"] * 3 + ["epoch=2/2"] * 3
assert list(Path("mylogdir").glob("events*"))

# Train an operator
op = towhee.ops.image_embedding.timm(model_name="resnet18", num_classes=10).get_op()
operator_config = TrainingConfig(
    batch_size=8, epoch_num=2, output_dir="./train_dummy_operator", print_steps=1
)
more = digits(0, 16, colours=3)
said = lines_of(
    op.train, operator_config, train_dataset=more, eval_dataset=digits(16, 8, colours=3)
)
assert len(said) == 6
assert "global_step=4" in said[4]

# Devices
for device in (None, "cpu"):
    assert TrainingConfig(device_str=device).device == torch.device("cpu")

# Save, load and resume
again = lines_of(trainer.train, resume_checkpoint_path="./train_dummy_torch/epoch_1")
assert again == lines[3:]
trainer.save(path="./another_save_path")
trainer.load(path="./another_save_path")
assert trainer.epoch == 2

# Freeze layers
my_model = vit.create_model()
my_freezer = LayerFreezer(my_model)
assert my_freezer.show_frozen_layers() == []
my_freezer.by_names(["head"])
assert my_freezer.show_frozen_layers() == ["head"]
LayerFreezer(vit.create_model(layers=1)).by_idx([0])

# Monitor
training_config.tensorboard = {"log_dir": "your_log_dir"}
training_config.tensorboard = None


# Callbacks: every point there is
class CustomCallback(Callback):
    def on_batch_begin(self, batch, logs) -> None:
        print("on_batch_begin")


trainer.add_callback(CustomCallback())
said = lines_of(trainer.train, resume_checkpoint_path="./train_dummy_torch/epoch_1")
assert said == [line for after in lines[3:] for line in ("on_batch_begin", after)]


class Everything(Callback):
    def __init__(self):
        self.seen = []


def noted(point):
    def method(self, *arguments):
        self.seen.append(point)

    return method


for name in ("on_epoch_begin", "on_epoch_end", "on_train_begin", "on_train_end",
             "on_train_batch_begin", "on_train_batch_end", "on_batch_end", "on_eval_batch_begin",
             "on_eval_batch_end", "on_eval_begin", "on_eval_end"):  # fmt: skip
    setattr(Everything, name, noted(name))
everything = Everything()
trainer.add_callback(everything)
lines_of(trainer.train, resume_checkpoint_path="./train_dummy_torch/epoch_1")
assert everything.seen == [
    "on_train_begin", "on_epoch_begin", *["on_train_batch_begin", "on_train_batch_end"] * 2,
    "on_eval_begin", "on_eval_batch_begin", "on_eval_batch_end", "on_eval_end", "on_epoch_end",
    "on_train_end",
]  # fmt: skip

# Metrics
training_config.metric = "Accuracy"
available = TMMetrics.get_tm_avaliable_metrics()
assert {"Accuracy", "F1", "IoU", "SNR", "WER", "MeanMetric"} <= set(available)


# An optimizer and a loss of one's own
class MyOptimizer(optim.Optimizer):
    steps = 0

    def step(self, closure=None):
        type(self).steps += 1


class MyLoss(nn.Module):
    def forward(self, outputs, labels):
        return outputs.square().mean()


my_optimizer = MyOptimizer(model.parameters(), defaults={"lr": 0.1})
trainer.set_optimizer(my_optimizer)
trainer.set_loss(MyLoss())
training_config.epoch_num = 3
lines_of(trainer.train)  # on from where it was
assert (type(trainer.optimizer), type(trainer.loss)) == (MyOptimizer, MyLoss)


# Steps of one's own
class SubTrainer1(Trainer):
    def train_step(self, model, inputs) -> dict:
        self.optimizer.zero_grad()
        x, y = inputs
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        self.optimizer.step()
        self.lr_scheduler.step()
        return {"step_loss": loss.item(), "epoch_loss": loss.item(), "epoch_metric": 0.0}


class SubTrainer2(Trainer):
    def compute_loss(self, model, inputs):
        input1, input2 = inputs
        return nn.functional.cross_entropy(model(input1), input2)


class SubTrainer3(Trainer):
    def evaluate_step(self, model, inputs):
        return {"eval_epoch_loss": 1.0, "eval_epoch_metric": 0.5}

    def compute_metric(self, model, inputs):
        return 0.25


class SubTrainer4(Trainer):
    def evaluate(self, model, logs=None):
        logs = super().evaluate(model, logs)
        print("evaluated", sorted(logs)[:2])
        return logs


def ended(kind):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    config = TrainingConfig(output_dir=kind.__name__, print_steps=1, tensorboard=None, lr=0.01)
    made = kind(net, config, train_dataset=digits(0, 32), eval_dataset=digits(32, 16))
    return made, lines_of(made.train)


weights = {
    kind: ended(kind) for kind in (Trainer, SubTrainer1, SubTrainer2, SubTrainer3, SubTrainer4)
}
plain = weights[Trainer][0].model
for kind, (made, _) in weights.items():
    same = zip(plain.parameters(), made.model.parameters(), strict=True)
    assert all(a.equal(b) for a, b in same), kind
assert any("eval_epoch_loss=1.0, eval_epoch_metric=0.5" in one for one in weights[SubTrainer3][1])
assert "evaluated" in weights[SubTrainer4][1][-1]
print("epoch", trainer.epoch, "steps", MyOptimizer.steps)
