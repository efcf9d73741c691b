"""What the processes of `pool` do in `dialects/test_colossalai_ranks.py`."""

import contextlib
import io
from pathlib import Path

import torch
from torch import nn

import stoker.dialects.colossalai as colossalai
from stoker.core import dist
from stoker.dialects.colossalai import communication
from stoker.dialects.colossalai.context import ParallelMode
from stoker.dialects.colossalai.core import global_context as gpc
from stoker.dialects.colossalai.engine import Engine, PipelineSchedule
from stoker.dialects.colossalai.logging import DistributedLogger
from stoker.dialects.colossalai.pipeline.pipelinable import PipelinableContext
from stoker.dialects.colossalai.trainer import Trainer, hooks
from stoker.dialects.colossalai.utils import get_dataloader, save_checkpoint
from support.toys import loader, sgd


def parts(config, **options):
    gpc.load_config(config)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    data = get_dataloader(loader(64).dataset, batch_size=options.pop("batch_size", 4))
    return colossalai.initialize(model, sgd(model), nn.CrossEntropyLoss(), data, data)


def weights(engine):
    return {name: tensor.clone() for name, tensor in engine.core.weights().items()}


def accumulates(through_trainer):
    """The weights of two copies after updates of four batches each, and the exchanges."""
    engine, train, _, _ = parts({"gradient_accumulation": 4})
    exchanges = []
    if dist.world_size() > 1:
        ddp = engine.core.parallel_model._syncs[0]._ddp

        def count(_, bucket):
            exchanges.append(bucket.is_last())
            total = bucket.buffer().div_(dist.world_size())
            return torch.distributed.all_reduce(total, async_op=True).get_future().then(
                lambda future: future.value()[0]
            )  # fmt: skip

        ddp.register_comm_hook(None, count)
    updates = 0
    if through_trainer:
        trainer = Trainer(engine)
        trainer.fit(train, 1)
        updates = trainer.cur_step
    else:
        for x, y in train:
            engine.zero_grad()
            engine.backward(engine.criterion(engine(x), y))
            updates += engine.step()
    return [p.detach().clone() for p in engine.model.parameters()], sum(exchanges), updates


def tells(folder):
    """A run whose hooks write, in every process."""
    engine, train, test, _ = parts({})
    logger = DistributedLogger("ranks")
    logger.log_to_file(folder / "logs")
    logger.info(f"all say this: {dist.rank()}")
    trainer = Trainer(engine, logger=logger)
    trainer.fit(
        train,
        2,
        test_dataloader=test,
        hooks=[
            hooks.LossHook(),
            hooks.AccuracyHook(),
            hooks.TensorboardHook(folder / "tb", ranks=[0]),
            hooks.LogMetricByEpochHook(logger),
            hooks.SaveCheckpointHook(1, folder / "ckpt"),
        ],
        display_progress=True,
    )
    metrics = trainer.states["metrics"]["test"]
    return {name: metric.get_accumulated_value() for name, metric in metrics.items()}


def tells_a_terminal(folder):
    """The same, with what it says."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        return tells(folder), said.getvalue()


def pipeline(folder, config):
    """One batch through a schedule, then a run; the weights are those of all stages."""
    engine, train, test, _ = parts(config, batch_size=8)
    seen = engine.execute_schedule(iter(loader(64, 8)), return_output_label=True)
    looked = engine.execute_schedule(iter(loader(64, 8)), forward_only=True)
    engine.core.zero_grad()
    engine._backwards = 0
    trainer, found = Trainer(engine), []
    hook = hooks.BaseHook(5)
    hook.after_train_iter = lambda trainer, output, label, loss: found.append(
        (None if output is None else tuple(output.shape), loss is not None)
    )
    trainer.fit(
        train, 1, test_dataloader=test,
        hooks=[hook, hooks.LossHook(), hooks.SaveCheckpointHook(1, Path(folder))],
    )  # fmt: skip
    loss = trainer.states["metrics"]["test"]["Loss"].get_accumulated_value()
    return (
        [None if part is None else part.detach() for part in seen],
        [None if part is None else part.detach() for part in looked],
        found[0],
        loss,
        weights(engine),
        engine.uses_pipeline,
    )


def refuses(config, batch_size):
    """What is said of a config or batch that does not fit."""
    try:
        engine, *_ = parts(config, batch_size=batch_size)
        engine.execute_schedule(iter(loader(64, batch_size)))
    except ValueError as error:
        return str(error)
    return None


def cut_by_the_script(folder, config, alike):
    """A run whose processes pass their own stages; the weights of all of them, and their ranks."""
    gpc.load_config(config)
    torch.manual_seed(0)
    width = 4 if alike else 3
    layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, width)]
    stage, stages = gpc.get_local_rank(ParallelMode.PIPELINE), gpc.pipeline_parallel_size
    chunks = config.get("model", {}).get("num_chunks", 1)
    size = len(layers) // (stages * chunks)
    own = [
        nn.Sequential(*layers[(chunk * stages + stage) * size :][:size]) for chunk in range(chunks)
    ]
    model = nn.ModuleList(own) if chunks > 1 else own[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = get_dataloader(loader(64).dataset, batch_size=8)
    engine, train, _, _ = colossalai.initialize(model, optimizer, nn.CrossEntropyLoss(), data)
    trainer = Trainer(engine)
    saves = hooks.SaveCheckpointHook(1, Path(folder), model=model)
    trainer.fit(train, epochs=2, max_steps=10, hooks=[saves])
    save_checkpoint(Path(folder) / "all.pt", 2, engine.model, optimizer)
    held = [list(state["momentum_buffer"].shape) for state in optimizer.state.values()]
    found = torch.cat([w.flatten() for _, w in sorted(weights(engine).items())])
    ranks = {
        mode.name: gpc.get_ranks_in_group(mode)
        for mode in (ParallelMode.PIPELINE, ParallelMode.DATA)
    }
    return found, held, ranks


class ByName(nn.Module):
    """A model whose forward is a sequence of layers, with a function between two of them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.body = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 8)])
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        x = self.body[0](self.first(x).relu())
        return self.head(self.body[1](x).tanh())


def cut_by_name(config, policy, sequence):
    """The weights after some steps of a model that is cut by a PipelinableContext."""
    gpc.load_config(config)
    torch.manual_seed(0)
    context = PipelinableContext(policy)
    with context:
        model = ByName()
    context.to_layer_list(sequence)
    chunks, rank = config.get("model", {}).get("num_chunks", 1), ParallelMode.PIPELINE
    stage = context.partition(chunks, gpc.pipeline_parallel_size, gpc.get_local_rank(rank))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9)
    data = get_dataloader(loader(64).dataset, batch_size=8)
    engine, train, _, _ = colossalai.initialize(stage, optimizer, nn.CrossEntropyLoss(), data)
    Trainer(engine).fit(train, epochs=2, max_steps=6)
    own = {id(one) for one in stage.parameters()}
    return {n: p.detach() for n, p in model.named_parameters() if id(p) in own}


def wrong_stages(config):
    """What is said of stages that make no model."""
    gpc.load_config(config)
    model = nn.Linear(4, 4) if dist.rank() else nn.ModuleList([nn.Linear(4, 4)] * 2)
    try:
        Engine(model, sgd(model), schedule=PipelineSchedule(2))
    except ValueError as error:
        return str(error)
    return None


def _talks_in_lists(sent):
    """Shapes of several tensors, and what keywords and both directions at once bring."""
    peer = {"next_rank": 1} if gpc.is_first_rank(ParallelMode.PIPELINE) else {"prev_rank": 0}
    communication.send_obj_meta([sent, sent[0], sent.sum()], True, 1)
    shapes = communication.recv_obj_meta(None, 0)
    pair = [sent, sent[0] + 5]
    if "next_rank" in peer:
        communication.send_forward(pair, **peer, scatter_gather_tensors=True)
        got = communication.recv_backward(sent.shape, **peer, dtype=torch.float)
    else:
        got = communication.recv_forward([(2, 3), (3,)], **peer)
        communication.send_backward(sent, **peer)
    both = communication.send_forward_backward_recv_forward_backward(sent, sent, (2, 3), (2, 3))
    means = [None if one is None else float(one.mean()) for one in both]
    got = got if isinstance(got, list) else [got]
    return [shapes, [float(one.mean()) for one in got], means]


def talks_to_its_neighbours():
    """What the stages of a pipeline receive from each other."""
    gpc.load_config({"parallel": {"pipeline": 2}})
    stage = gpc.get_local_rank(ParallelMode.PIPELINE)
    sent = torch.full((2, 3), float(stage))
    communication.send_obj_meta(sent)
    shape = communication.recv_obj_meta()
    communication.send_forward(sent)
    forward = communication.recv_forward((2, 3))
    communication.send_backward(sent)
    backward = communication.recv_backward((2, 3))
    both = (
        communication.send_forward_recv_backward(sent, (2, 3)),
        communication.send_backward_recv_forward(sent, (2, 3)),
    )
    found = [None if one is None else one.unique().tolist() for one in (forward, backward, *both)]
    found += _talks_in_lists(sent)
    total = torch.tensor(float(stage + 1))
    torch.distributed.all_reduce(total, group=gpc.get_group(ParallelMode.PIPELINE))
    alone = torch.tensor(float(stage))
    torch.distributed.all_reduce(alone, group=gpc.get_group(ParallelMode.DATA))
    return shape, found, float(total), float(alone)
