"""`summary`: the layers and parameters of a model, as text."""

from torch import nn

from stoker.core.errors import check_number


def summary(model: nn.Module, depth: int = 1) -> str:
    """Return a table of the layers of a model with their parameters, before anything trains.

    >>> print(summary(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
    layer  type    parameters  trainable
    0      Linear           9          9
    1      ReLU             0          0
    total                   9          9

    Args:
        model: the model; nothing is run.
        depth: how many levels of nested layers to show.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, expected an nn.Module")
    check_number("depth", depth, integer=True)
    named = [(name, module) for name, module in model.named_modules() if name]
    shown = [(name, module) for name, module in named if name.count(".") < depth]
    rows = [("layer", "type", "parameters", "trainable")]
    rows += [(name, type(module).__name__, *_counts(module)) for name, module in shown]
    rows.append(("total", "", *_counts(model)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
        for a, b, c, d in rows
    )
    return "\n".join(lines)


def _counts(module: nn.Module) -> tuple[str, str]:
    """Return the numbers of parameters and of trainable ones; a shared one counts once."""
    parameters = list(module.parameters())
    trainable = sum(one.numel() for one in parameters if one.requires_grad)
    return f"{sum(one.numel() for one in parameters):,}", f"{trainable:,}"
