"""A lazy config on top of those that come along."""

from libai.config import LazyCall, get_config
from libai_parts import Digits, Net
from torch.utils.data import DataLoader

train = get_config("common/train.py").train
optim = get_config("common/optim.py").optim
graph = get_config("common/models/graph.py").graph

graph.enabled = False
optim.lr = 0.01
train.update(train_micro_batch_size=32, train_iter=120, log_period=20)
train.checkpointer.period = 50
train.evaluation.evaluator.topk = (1,)
train.evaluation.eval_period = 60
train.input_placement_device = "cpu"

model = LazyCall(Net)(hidden=32)
dataloader = dict(
    train=LazyCall(DataLoader)(dataset=LazyCall(Digits)(first=0, last=1500), shuffle=True),
    test=[LazyCall(DataLoader)(dataset=LazyCall(Digits)(first=1500, last=1797))],
)
