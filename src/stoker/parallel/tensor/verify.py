"""Check by values that a plan is right: split modules against unsplit ones, in float64."""

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from stoker.core.tree import map_tensors, tensors

Loss: TypeAlias = Callable[[Tensor], Tensor]

Operations: TypeAlias = Mapping[str, tuple[str, int]]
"""For each layer name, the operation and the number of parts side by side in the layer."""

_PLAIN = (nn.Linear, nn.Embedding)

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""The error of the outputs of a model that is still due to rounding, relative to the largest."""


@dataclass
class Example:
    """A forward pass of the unsplit model: the inputs of its modules, and its output.

    Args:
        inputs: keyword arguments of the model.
        calls: by module name, the arguments of its first call.
        output: the first tensor that the model returned.
    """

    inputs: dict[str, Any]
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    output: Tensor | None = None


def run_example(model: nn.Module, least: int = 1, *, partly: bool = False) -> Example | None:
    """Run a small batch through the model, in evaluation mode; None if that is not possible.

    A model of transformers offers `dummy_inputs`, or takes images of the size in its config.

    Args:
        model: the unsplit model.
        least: the least number of tokens in a sample.
        partly: return what has run before an error.
    """
    inputs = _example_inputs(model, least)
    if inputs is None:
        return None
    found = Example(inputs)

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, options: Any) -> None:
            found.calls.setdefault(name, _detached((args, options)))

        return hook

    handles = [
        module.register_forward_pre_hook(note(name), with_kwargs=True)
        for name, module in model.named_modules()
        if name
    ]
    try:
        with _evaluating(model):
            found.output = next(tensors(_values(model(**inputs)))).detach()
    except Exception:  # the model takes other inputs
        return found if partly else None
    finally:
        for handle in handles:
            handle.remove()
    return found


def check_output(model: nn.Module, example: Example) -> None:
    """Check that the split model returns what the unsplit one did, in a pass that could train it.

    Raises:
        ValueError: it does not.
    """
    expected = example.output
    if expected is None or expected.dtype not in _TOLERANCE:
        return
    try:
        with _evaluating(model), torch.enable_grad():
            found = next(tensors(_values(model(**example.inputs)))).detach()
    except ValueError:
        raise
    except Exception as failure:  # a model may raise anything for shapes that it does not expect
        raise ValueError(
            f"{type(model).__name__} fails once it is split ({_first_line(failure)}): pass a plan "
            "of your own, or use another layout"
        ) from failure
    error = _difference(found, expected)
    if error > _TOLERANCE[expected.dtype]:
        raise ValueError(
            f"{type(model).__name__} returns other values after it was split: they differ by "
            f"{error:.1e} of the largest one, so pass a plan of your own"
        )


def find_fault(
    model: nn.Module,
    operations: Operations,
    apply: Callable[[nn.Module, Operations], None],
    example: Example,
    group: dist.ProcessGroup,
    roots: Iterable[str] | None = None,
    *,
    loss: Loss | None = None,
) -> str | None:
    """Return what is wrong with a plan; None if split modules compute what unsplit ones do.

    A copy of one module of each kind is split, in float64. Its output, and the gradients of its
    input and of its parameters, must be those of the unsplit one.

    Args:
        model: the unsplit model, with the same weights on all processes.
        operations: the operations of the plan.
        apply: splits a module by operations.
        example: a forward pass of the model.
        group: the processes that share layers; all of them must call it.
        roots: the modules to try; by default those that contain a split completely.
        loss: try the modules in training, with this loss of their output.
    """
    for root in _one_of_each(model, operations, roots or _roots(model, operations)):
        local = {
            name.removeprefix(f"{root}."): operation
            for name, operation in operations.items()
            if name.startswith(f"{root}.")
        }
        if root in operations:
            local[""] = operations[root]
        module, call = model.get_submodule(root), example.calls.get(root)
        fault = _compare(module, local, apply, call, loss)
        faults: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(faults, fault, group=group)
        if found := next((fault for fault in faults if fault), None):
            return f"{root} {found}"
    return None


def _compare(
    module: nn.Module,
    operations: Operations,
    apply: Callable[[nn.Module, Operations], None],
    call: tuple[Any, Any] | None,
    loss: Loss | None,
) -> str | None:
    if call is None:
        return "does not run in a forward pass of the model"
    try:
        original = _exact_copy(module)
        split = copy.deepcopy(original)
        args, options = _exact_inputs(call, next(original.parameters()).device)
        expected = _results(original, args, options, loss)
    except Exception as error:  # an argument, such as a cache, may have changed since its call
        return f"cannot be tried by itself ({_first_line(error)})"
    try:
        apply(split, operations)
        found = _results(split, args, options, loss)
    except Exception as error:  # a model may raise anything for widths that it does not expect
        return f"fails once it is split ({_first_line(error)})"
    gradients = [value for name, value in expected.items() if name != "output" and value.numel()]
    largest = max((float(gradient.abs().max()) for gradient in gradients), default=0.0)
    for name, value in expected.items():
        other, scale = found.get(name), None if name == "output" else largest
        if other is None or value.shape != other.shape:
            return f"has another {name} once it is split"
        if not _difference(other, value, scale) < 1e-8:
            return f"has another {name} once it is split"
    return None


def cross_entropy(scores: Tensor) -> Tensor:
    """Return a loss of scores, some of which do not count."""
    rows = scores.flatten(0, -2)
    labels = torch.arange(len(rows), device=rows.device) * 7 % rows.shape[-1]
    return functional.cross_entropy(rows, labels.masked_fill(labels % 3 == 1, -100))


def _results(module: nn.Module, args: Any, options: Any, loss: Loss | None) -> dict[str, Tensor]:
    """Return the output of a module, or its loss, and gradients of inputs and parameters."""
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        leaves.extend([made] if made.requires_grad else [])
        return made

    args, options = map_tensors(leaf, (args, options))
    module.train(loss is not None)
    output = next(tensors(_values(module(*args, **options))))
    output = output if loss is None else loss(output)
    results = {"output": output.detach()}
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    wanted = {f"input {number}": tensor for number, tensor in enumerate(leaves)} | trained
    if output.requires_grad:
        weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype, device=output.device)
        total = (output * weights.view_as(output)).sum()
        found = torch.autograd.grad(total, [*wanted.values()], allow_unused=True)
        for name, grad in zip(wanted, found, strict=True):
            if grad is not None:
                full = grad.full_tensor() if isinstance(grad, DTensor) else grad
                results[f"gradient of {name}"] = full
    return results


def find_different_gradient(
    model: nn.Module,
    example: Example,
    parameters: Mapping[str, nn.Parameter],
    group: dist.ProcessGroup,
) -> str | None:
    """Return the name of a parameter whose gradient is not the same on all processes.

    Args:
        model: the split model.
        example: a forward pass of it.
        parameters: those that every process has and uses in the same way.
        group: the processes; all of them must call it.
    """
    if not parameters:
        return None
    with _evaluating(model), torch.enable_grad():
        output = next(tensors(_values(model(**example.inputs))))
        weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device)
        total = (output * weights.view_as(output)).sum()
        found: Any = torch.autograd.grad(total, [*parameters.values()], allow_unused=True)
    for name, gradient in zip(parameters, found, strict=True):
        if gradient is None:
            continue
        first = gradient.clone()
        dist.broadcast(first, group=group, group_src=0)
        largest = torch.tensor(_difference(gradient.double(), first.double()), device=first.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        if float(largest) > _TOLERANCE.get(gradient.dtype, 0.05):
            return name
    return None


def enclosing(name: str, others: Iterable[str]) -> str:
    """Return the smallest module around a layer that has some of the others in it too."""
    others = list(others)
    while name and not any(other.startswith(f"{name}.") for other in others):
        name = name.rpartition(".")[0]
    return name


def _roots(model: nn.Module, operations: Operations) -> list[str]:
    """Return the modules that contain the layers of a split completely.

    They are the smallest modules around each "row" that have its "col" layers too, and layers that
    do more than those of torch.
    """
    split = [name for name, (operation, _) in operations.items() if operation in ("col", "repeat")]
    alone = ("experts", "embed", "gather")
    roots = [name for name, (operation, _) in operations.items() if operation in alone]
    roots = [name for name in roots if type(model.get_submodule(name)) not in _PLAIN]
    rows = (name for name, (operation, _) in operations.items() if operation == "row")
    return [*roots, *(enclosing(name, split) for name in rows)]


def _one_of_each(model: nn.Module, operations: Operations, roots: Iterable[str]) -> list[str]:
    """Return one module of each kind; modules are of another kind if other layers are split."""
    kinds: dict[Any, list[set[Any]]] = {}
    found = []
    for root in filter(None, roots):
        inside = {
            (name.removeprefix(root), operation)
            for name, operation in operations.items()
            if f"{name}.".startswith(f"{root}.")
        }
        pattern = tuple("*" if part.isdigit() else part for part in root.split("."))
        known = kinds.setdefault((type(model.get_submodule(root)), pattern), [])
        if not any(inside <= other for other in known):
            found.append(root)
            known.append(inside)
    return found


def _example_inputs(model: nn.Module, least: int) -> dict[str, Any] | None:
    parameter = next(model.parameters())
    device, config = parameter.device, getattr(model, "config", None)
    if getattr(model, "main_input_name", None) == "pixel_values":
        shape = _image_shape(getattr(config, "vision_config", config))
        return None if shape is None else {"pixel_values": _waves(2, *shape).to(parameter)}
    given = getattr(model, "dummy_inputs", None)
    if not isinstance(given, Mapping):
        return None
    given = _with_sound(model, dict(given))
    if device.type == "meta":  # models look at the values of masks
        given = {name: value for name, value in given.items() if "mask" not in name}
    vocabulary = getattr(config, "vocab_size", None)

    def fit(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(parameter)
        tensor = tensor if vocabulary is None else tensor % vocabulary
        times = -(-least // tensor.shape[1]) if tensor.dim() > 1 else 1
        return torch.cat([tensor] * times, 1).to(device) if times > 1 else tensor.to(device)

    no_cache = {"use_cache": False} if hasattr(config, "use_cache") else {}
    return {**map_tensors(fit, given), **no_cache}


def _image_shape(config: Any) -> tuple[int, int, int] | None:
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if not isinstance(channels, int) or not isinstance(size, int | tuple | list):
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return channels, height, width


def _with_sound(model: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Return inputs with what some models need beyond the tokens that transformers offers to all.

    These are tokens of a decoder, and sound in place of tokens.
    """
    config, tokens = getattr(model, "config", None), given.get("input_ids")
    if isinstance(tokens, Tensor) and getattr(config, "is_encoder_decoder", False):
        given.setdefault("decoder_input_ids", tokens)
    main = getattr(model, "main_input_name", None)
    bins, positions = (getattr(config, n, 0) for n in ("num_mel_bins", "max_source_positions"))
    strides = getattr(config, "conv_stride", None)
    sound: Tensor | None = None
    if main == "input_features" and bins and positions and isinstance(tokens, Tensor):
        sound = _waves(len(tokens), bins, 2 * positions)
    elif main == "input_values" and isinstance(strides, tuple | list):
        sound = _waves(2, 16 * math.prod(strides))
    if sound is None:
        return given
    return {**{n: v for n, v in given.items() if n != "input_ids"}, str(main): sound}


def _waves(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).sin().view(shape)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Within this context, the model is in evaluation mode, and random numbers are not used up.

    Compiled parts run without compiling: shapes of an example would make them dynamic.
    """
    modes = [(module, module.training) for module in model.modules()]
    caching = _caching_configs(model)
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    model.eval()
    for config in caching:
        config.use_cache = False
    try:
        with torch.random.fork_rng(devices), _without_compiler():
            yield
    finally:
        for config in caching:
            config.use_cache = True
        for module, mode in modes:
            module.training = mode


def _without_compiler() -> AbstractContextManager[Any]:
    """Return a context without the compiler; nothing is compiled unless it has been imported."""
    compiles = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def _caching_configs(model: nn.Module) -> list[Any]:
    """Return the configs, of the model or parts of it, that ask for a cache of keys and values."""
    found = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [config for config in found.values() if getattr(config, "use_cache", None) is True]


def _exact_copy(module: nn.Module) -> nn.Module:
    """Return a copy in float64; parameters and buffers without values get some."""
    made = copy.deepcopy(module)
    if any(parameter.is_meta for parameter in module.parameters()):
        made.to_empty(device="cpu")
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.data.copy_(torch.linspace(-1, 1, tensor.numel()).sin().view_as(tensor))
    for parameter in made.parameters():
        parameter.grad = None
    for config in {id(c): c for m in made.modules() if (c := getattr(m, "config", None))}.values():
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"  # others do not compute in float64
    return made.double().eval()


def _exact_inputs(call: tuple[Any, Any], device: torch.device) -> Any:
    """Return the arguments of a call in float64; those without values get some."""

    def exact(tensor: Tensor) -> Tensor:
        wanted = tensor.requires_grad
        if tensor.is_meta:
            tensor = torch.linspace(0, 1, tensor.numel()).view(tensor.shape).to(tensor.dtype)
        tensor = tensor.double() if tensor.is_floating_point() else tensor
        return tensor.to(device).detach().requires_grad_(wanted)

    return map_tensors(exact, call)


def _detached(tree: Any) -> Any:
    return map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), tree)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")


def changes_in_place(error: BaseException | None) -> bool:
    """Return whether a model failed because it changes the output of a layer, a view, in place."""
    return "is a view and is being modified inplace" in str(error)


def _values(output: Any) -> Any:
    """Return what a module returned as a tree of tensors."""
    return tuple(output.values()) if isinstance(output, Mapping) else output


def _difference(found: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """Return the largest difference, relative to a scale or to the largest value expected."""
    if found.is_meta or not expected.numel():
        return 0.0
    relative_to = float(expected.abs().max()) if scale is None else scale
    return float((found - expected).abs().max()) / max(relative_to, 1e-12)
