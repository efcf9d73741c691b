"""What the processes of `test_tensor.py` do; each returns plain values."""

from collections import Counter
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.checkpoint import Checkpoints
from stoker.nn import Transformer
from stoker.parallel.grad_norm import clip_grad_norm
from stoker.parallel.optimizers import avoid_mixed_meshes, replace_parameters
from stoker.parallel.tensor.split import split_layers

VOCABULARY = 21  # not even, as that of GPT-2


def own(**options):
    return Transformer(VOCABULARY, 8, width=16, layers=2, heads=4, **options)


def own_tied():
    return own(tied=True)


def own_with_dropout():
    return own(dropout=0.2)


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **{**sizes, **heads, **options}))


def llama_tied_and_padded():
    return llama(tie_word_embeddings=True, pad_token_id=3, attention_bias=True)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8}
    no_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **no_dropout, **tokens))


def qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **sizes, **heads))


def three_heads():
    return Transformer(VOCABULARY, 8, width=12, layers=1, heads=3)


def odd_pair():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))


def few_rows():
    return nn.Sequential(nn.Linear(4, 1))


class PackedAttention(nn.Module):
    """q, k and v in one matrix, and a fixed number of heads, as many models have it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48, bias=False)
        self.o = nn.Linear(16, 16)
        self.heads = 4

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.attn = PackedAttention()
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.attn(x))


def packed():
    return Packed()


def made(build, seed=0):
    torch.manual_seed(seed)
    return build().double()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(step):
    torch.manual_seed(100 + step)
    return torch.randint(VOCABULARY, (4, 8))


def loss_of(model, tokens):
    scores = model(tokens)
    scores = scores if isinstance(scores, Tensor) else scores.logits
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, steps=range(3), mine=slice(None), after_backward=lambda: None):
    """Losses and norms of a few clipped steps."""
    found = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, batch(step)[mine])
        loss.backward()
        after_backward()
        norm = clip_grad_norm(model.parameters(), 0.5)
        optimizer.step()
        found.append((loss.item(), norm.item()))
    return found


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(model):
    return {name: full(parameter) for name, parameter in model.named_parameters()}


def split(build, plan="auto", seed=0):
    model = made(build, seed)
    split_layers(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    return model


def split_training(build, plan="auto"):
    """Each process begins with weights of its own; those of the first are taken."""
    model = split(build, plan, seed=dist.get_rank())
    optimizer = adamw(model)
    avoid_mixed_meshes(optimizer)
    found = train(model, optimizer)
    plain = {n: p.grad for n, p in model.named_parameters() if not isinstance(p, DTensor)}
    spread = [n for n, p in model.named_parameters() if isinstance(p, DTensor)]
    return found, weights(model), plain, spread


def shard_and_split(build):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    model = made(build)
    split_layers(model, mesh["tensor"])
    for block in model.transformer.h if build is gpt2 else model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    optimizer = adamw(model)
    avoid_mixed_meshes(optimizer)
    half = slice(mesh["shard"].get_local_rank(), None, 2)
    return train(model, optimizer, mine=half), weights(model)


def copies_and_split(build):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "tensor"))
    model = made(build)
    split_layers(model, mesh["tensor"])
    optimizer = adamw(model)
    avoid_mixed_meshes(optimizer)
    group = mesh["replicate"].get_group()

    def average():
        for parameter in model.parameters():
            local = parameter.grad
            local = local.to_local() if isinstance(local, DTensor) else local
            dist.all_reduce(local, dist.ReduceOp.AVG, group)

    half = slice(mesh["replicate"].get_local_rank(), None, 2)
    return train(model, optimizer, mine=half, after_backward=average), weights(model)


def state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def saved_by_two(build, folder: Path):
    """Two steps, saved; the third is made here too, for whoever loads it to compare."""
    model = split(build)
    optimizer = adamw(model)
    avoid_mixed_meshes(optimizer)
    train(model, optimizer, range(2))
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(2, state(model, optimizer), wait=True)
    return train(model, optimizer, [2]), weights(model)


def loaded_by_two(build, folder: Path):
    model = split(build, seed=7)
    optimizer = adamw(model)
    avoid_mixed_meshes(optimizer)
    train(model, optimizer, [0])
    with Checkpoints(folder) as checkpoints:
        found = checkpoints.load(checkpoints.newest(), into=state(model, optimizer))
    model.load_state_dict(found.shared["model"])
    optimizer.load_state_dict(found.shared["optimizer"])
    return train(model, optimizer, [2]), weights(model)


def repointed(build, sharded):
    """An optimizer made, and stepped, for the unsplit model continues with the split one."""
    model = made(build)
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    optimizer.zero_grad()
    before = dict(model.named_parameters())
    if sharded:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        split_layers(model, mesh["tensor"])
        fully_shard(model, mesh=mesh["shard"])
    else:
        split_layers(model, init_device_mesh("cpu", (2,)))
    after = dict(model.named_parameters())
    replace_parameters(optimizer, {id(before[name]): after[name] for name in before})
    return train(model, optimizer, [2]), weights(model)


class Exchanges(TorchDispatchMode):
    """Counts, by name, the operations in which processes exchange tensors."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it comes again with the parts held here
        if function.namespace == "_c10d_functional" and function.__name__.startswith("all_"):
            self.counts[function.__name__.partition(".")[0]] += 1
        return function(*args, **kwargs or {})


def exchanges(build):
    """How often the processes exchange tensors in one pass forward and one back."""
    model = split(build)
    with Exchanges() as forward:
        loss = loss_of(model, batch(0))
    with Exchanges() as backward:
        loss.backward()
    return dict(forward.counts), dict(backward.counts)


class Odds(nn.Module):
    """What else a model may hold: buffers, a layer under two names, another order in memory."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(rank)
        self.turned = nn.Parameter(torch.randn(3, 2).t())
        self.register_buffer("mask", torch.tensor([rank == 0, True]))
        self.register_buffer("numbers", torch.full((2,), float(rank)))
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean += rank
        self.pair = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.again = self.norm


def unsplit_state():
    model = Odds(dist.get_rank())
    split_layers(model, init_device_mesh("cpu", (2,)), {"pair.0": "col", "pair.2": "row"})
    assert model.again is model.norm
    return {name: full(tensor) for name, tensor in model.state_dict().items()}


def in_bfloat16(build):
    found = []
    for model in (split(build).float(), made(build).float()):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch(0))
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        found.append((loss.item(), clip_grad_norm(model.parameters(), 1.0).item()))
    return found


def copied():
    model = split(gpt2)
    copy = deepcopy(model)
    before = loss_of(copy, batch(0)).item()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return loss_of(copy, batch(0)).item() == before, loss_of(model, batch(0)).item() != before


def compiled():
    model = split(gpt2)
    before = loss_of(model, batch(0)).item()
    model.compile(backend="eager")
    loss = loss_of(model, batch(0))
    loss.backward()
    torch._dynamo.reset()
    return before, loss.item()


def refusal(build, plan):
    """The words of a refusal, and whether the model was left as it was."""
    model = made(build)
    before = weights(model)
    try:
        split_layers(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    except ValueError as error:
        same = all(torch.equal(before[n], p) for n, p in model.named_parameters())
        return str(error), same
    return "", False
