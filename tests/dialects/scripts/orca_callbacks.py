"""A script as Orca's page has it: callbacks, and owners of the step.

Usage 1 is a model that computes its own losses, usage 2 a learning rate that is set by hand.
"""

import torch
from bigdl.orca.learn.metrics import Accuracy
from bigdl.orca.learn.pytorch import Estimator
from bigdl.orca.learn.pytorch.callbacks import Callback, MainCallBack, MainCallback
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
initial_lr, gamma, step_index, epoch_size = 0.1, 0.5, 1, 30


def model_creator(config):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def optimizer_creator(model, config):
    return torch.optim.SGD(model.parameters(), lr=config["lr"])


def scheduler_creator(optimizer, config):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)


def loss_creator(config):
    return nn.CrossEntropyLoss()


def train_dataloader_creator(config, batch_size):
    return DataLoader(torch.utils.data.Subset(digits, range(1500)), batch_size, shuffle=True)


def val_dataloader_creator(config, batch_size):
    return DataLoader(torch.utils.data.Subset(digits, range(1500, 1797)), batch_size)


class Detector(nn.Module):
    """Computes its own losses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(64, 10)

    def forward(self, images, targets):
        scores = self.net(images)
        return {"class": nn.functional.cross_entropy(scores, targets), "box": scores.norm() / 1e3}


GLOBAL = ("num_epochs", "epochs", "train_loader", "val_loader", "rank", "model", "optimizer",
          "scheduler", "criterion")  # fmt: skip
IN_HAND = ("batch", "batch_idx", "output", "loss")


class Points(Callback):
    """Notes every point, and what can be read there."""

    def __init__(self):
        self.seen = []

    def note(self, point, runner):
        self.seen.append(point)
        assert all(hasattr(runner, name) for name in GLOBAL)
        inside = [name for name in IN_HAND if hasattr(runner, name)]
        if point.endswith("_iter"):
            wanted = ["batch", "batch_idx", *(["output"] if point.startswith("after") else [])]
            assert all(name in inside for name in wanted), (point, inside)
        else:
            assert inside == [], (point, inside)


def noted(point):
    def method(self, runner):
        self.note(point, runner)

    return method


STAGES = ("train", "val", "pred")
for name in ("before_run", "after_run",
             *(f"{when}_{stage}_{what}" for stage in STAGES for what in ("epoch", "iter")
               for when in ("before", "after"))):  # fmt: skip
    setattr(Points, name, noted(name))


class General(Callback):
    """The points that all stages reach, under their older names."""

    def __init__(self):
        self.counts = dict.fromkeys(("run", "epoch", "iter", "general"), 0)

    def on_run_begin(self, runner):
        self.counts["run"] += 1

    def on_run_end(self, runner):
        self.counts["run"] += 1

    def on_epoch_begin(self, runner):
        self.counts["epoch"] += 1

    def on_epoch_end(self, runner):
        self.counts["epoch"] += 1

    def on_iter_begin(self, runner):
        self.counts["iter"] += 1

    def on_iter_end(self, runner):
        self.counts["iter"] += 1


class Generic(Callback):
    """The same under their present names."""

    count = 0

    def before_epoch(self, runner):
        self.count += 1

    def after_epoch(self, runner):
        self.count += 1

    def before_iter(self, runner):
        self.count += 1

    def after_iter(self, runner):
        self.count += 1


class WrittenOut(MainCallback):
    """What the owner of the page does, all of it."""

    def on_iter_forward(self, runner):
        inputs, targets = runner.batch
        runner.outputs = runner.model(inputs)
        runner.loss = runner.criterion(runner.outputs, targets)

    def on_iter_backward(self, runner):
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()

    def on_lr_adjust(self, runner):
        if runner.lr_scheduler is not None:
            runner.lr_scheduler.step()

    def on_train_forward(self, runner):
        self.on_iter_forward(runner)

    def on_val_forward(self, runner):
        self.on_iter_forward(runner)


class LossesOfTheModel(MainCallBack):
    """Usage 1."""

    def on_iter_forward(self, runner):
        image, target = runner.batch
        runner.output = runner.model(image, target)
        runner.loss = sum(loss for loss in runner.output.values())


class RateByHand(MainCallBack):
    """Usage 2."""

    rates = ()

    def on_lr_adjust(self, runner):
        warmup_epoch = 1
        if runner.epochs <= warmup_epoch:
            lr = 1e-6 + (initial_lr - 1e-6) * runner.batch_idx / (epoch_size * warmup_epoch)
        else:
            lr = initial_lr * (gamma**step_index)
        for param_group in runner.optimizer.param_groups:
            param_group["lr"] = lr
        RateByHand.rates += (lr,)
        return lr


def estimator(**parts):
    usual = dict(model=model_creator, optimizer=optimizer_creator, loss=loss_creator)
    return Estimator.from_torch(**{**usual, **parts}, backend="local", config={"lr": initial_lr})


points, general, generic = Points(), General(), Generic()
data = {"validation_data": val_dataloader_creator, "batch_size": 50}
stock = estimator(metrics=[Accuracy()], scheduler_creator=scheduler_creator)
stats = stock.fit(train_dataloader_creator, epochs=2, callbacks=[points, general, generic], **data)
scores = stock.evaluate(val_dataloader_creator, batch_size=50)
stock.predict(digits.tensors[0][:4], batch_size=2, callbacks=[points])
validated = ["before_val_epoch", *["before_val_iter", "after_val_iter"] * 6, "after_val_epoch"]
trained = ["before_train_iter", "after_train_iter"] * 30
epoch = ["before_train_epoch", *trained, *validated, "after_train_epoch"]
predicted = ["before_pred_epoch", *["before_pred_iter", "after_pred_iter"] * 2, "after_pred_epoch"]
assert points.seen == ["before_run", *epoch * 2, "after_run", *predicted]
assert general.counts == {"run": 2, "epoch": 8, "iter": 144, "general": 0}
assert generic.count == 152
assert stats[-1]["val_Accuracy"] == scores["val_Accuracy"] > 0.5, (stats, scores)

written = estimator(metrics=[Accuracy()], scheduler_creator=scheduler_creator)
written.fit(train_dataloader_creator, epochs=2, callbacks=[WrittenOut()], **data)

detector = estimator(model=lambda config: Detector(), loss=None)
rows = detector.fit(train_dataloader_creator, epochs=1, callbacks=[LossesOfTheModel()], **data)
assert rows[0]["batch_count"] == 30
assert rows[0]["val_loss"] < rows[0]["train_loss"]

by_hand = estimator()
by_hand.fit(train_dataloader_creator, epochs=3, callbacks=[RateByHand()], **data)
assert [round(rate, 3) for rate in RateByHand.rates] == [0.097, 0.097, 0.05], RateByHand.rates
same = zip(stock.get_model().parameters(), written.get_model().parameters(), strict=True)
print("epochs", len(stats), "same", all(a.equal(b) for a, b in same))
