"""A state as tensors and JSON, and back."""

import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.checkpoint import flatten, unflatten
from stoker.checkpoint.format.tensor_file import DTYPES


def round_trip(state):
    tensors, values = flatten(state)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return unflatten(copies, json.loads(json.dumps(values)))


def same(one, other):
    """Equal to the last bit, types and order included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same_form = one.dtype == other.dtype and one.shape == other.shape
        return same_form and one.stride() == other.stride() and _bits(one) == _bits(other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(a, b) for a, b in pairs)
    if isinstance(one, list | tuple | deque):
        lengths = len(one) == len(other) and getattr(one, "maxlen", 0) == getattr(
            other, "maxlen", 0
        )
        return lengths and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def bits(array):
    return array.tobytes()


def _bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensors():
    shapes = st.lists(st.integers(0, 3), max_size=3)
    fill = lambda shape, dtype: torch.randint(0, 2, shape).to(dtype)
    return st.builds(fill, shapes, st.sampled_from([*DTYPES, torch.complex128]))


def arrays():
    dtypes = ["?", "i1", "u4", ">i8", "f2", "f8", "c16", "S3", "U2", "M8[s]"]
    fill = lambda shape, dtype: np.ones(shape, "i4").astype(dtype)
    return st.builds(fill, st.lists(st.integers(0, 3), max_size=2), st.sampled_from(dtypes))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers().map(lambda n: n << 200), st.floats(),
    st.complex_numbers(allow_nan=False), st.text(), st.binary(),
    st.floats(width=32).map(np.float32), st.just(np.int64(-3)),
    st.just(torch.bfloat16), st.just(torch.device("cpu")), st.just(torch.Size([2, 3])),
)  # fmt: skip
keys = st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none())
hashable = st.one_of(st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
states = st.recursive(
    st.one_of(scalars, tensors(), arrays(), st.sets(hashable), st.frozensets(hashable)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 2, 5])),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(), st.integers(), max_size=3).map(Counter),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(states)
def test_any_state_survives_a_round_trip(state):
    assert same(round_trip(state), state)


@pytest.mark.slow
def test_optimizers_and_random_states_come_back():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = [
        optimizer.state_dict(),
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
    ]
    assert same(round_trip(state), state)


def test_a_models_state_keeps_the_versions_of_its_modules():
    state = nn.BatchNorm1d(3).state_dict()
    assert round_trip(state)._metadata == state._metadata


def test_a_default_dict_comes_back_as_a_dict():
    assert same(round_trip(defaultdict(int, {1: 2})), {1: 2})


def test_the_payload_of_a_nan_is_kept():
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert struct.pack(">d", round_trip(odd)).hex() == "fff8000000000123"


def test_memory_formats_are_kept():
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert round_trip(image).stride() == image.stride()


def test_views_and_expanded_tensors_come_back_by_value():
    base = torch.arange(6.0)
    state = {"row": base[1:3], "same": base[1:3], "wide": base[:1].expand(3), "odd": base[::2]}
    found = round_trip(state)
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_one_tensor_in_two_places_is_loaded_as_one():
    weight = torch.randn(2)
    found = round_trip({"a": weight, "b": [weight.detach()]})
    assert found["a"] is found["b"][0]
    assert list(flatten({"a": weight, "b": weight})[0]) == ["a"]


def test_tied_weights_of_a_model_have_an_entry_each():
    weight = torch.randn(2)
    tensors, _ = flatten({"model": {"in": weight, "out": weight}})
    assert list(tensors) == ["model.in", "model.out"]


def test_colliding_names_are_kept_apart():
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "__metadata__": torch.ones(2)}
    assert same(round_trip(state), state)


def test_a_parameter_comes_back_as_a_plain_tensor():
    found = round_trip(nn.Parameter(torch.ones(1)))
    assert type(found) is torch.Tensor
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 0, "hooks → Foo → bar is a function, expected tensors, numpy arrays, numbers"),
        (object(), "hooks → Foo → bar is an object, expected"),
        (np.array([object()]), "hooks → Foo → bar is a numpy array of object"),
        (torch.empty(2, device="meta"), "hooks → Foo → bar is a meta tensor"),
        (torch.eye(2).to_sparse(), "hooks → Foo → bar is a tensor of layout torch.sparse_coo"),
        ({(1, 2): 3}, r"hooks → Foo → bar → \(1, 2\) is stored under a tuple as key"),
        (nn.LazyLinear(1).weight, "hooks → Foo → bar is an uninitialized parameter"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:Lazy modules")
def test_what_cannot_be_saved_is_named_by_its_keys(value, message):
    with pytest.raises(TypeError, match=message):
        flatten({"hooks": {"Foo": {"bar": value}}})


def test_infinities_are_exact():
    assert same(round_trip([math.inf, -math.inf, -0.0]), [math.inf, -math.inf, -0.0])
