"""Plots of image folders, transforms, learning rates and what a classifier sees in an image.

The functions need matplotlib and Pillow, `interpret_image_classification` also captum.
"""

import random
from collections.abc import Callable, Sequence
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.errors import did_you_mean
from stoker.dialects.towhee.components import build_scheduler
from stoker.dialects.towhee.training_config import TrainingConfig
from stoker.dialects.towhee.utils import trainer_log

_OPTIONS: dict[str, dict[str, Any]] = {
    "Occlusion": {
        "strides": (3, 8, 8), "sliding_window_shapes": (3, 15, 15), "baselines": 0,
    },
    "IntegratedGradients": {"nt_samples": 10, "nt_type": "smoothgrad_sq"},
    "GradientShap": {"n_samples": 50, "stdevs": 0.0001},
    "Saliency": {},
}  # fmt: skip


def _plt() -> Any:
    import matplotlib.pyplot as plt

    return plt


def _show_images(rows: Sequence[Sequence[Any]], size: int, first: str = "") -> None:
    columns = max(map(len, rows))
    _, axes = _plt().subplots(len(rows), columns, squeeze=False, figsize=(size, size))
    for row, images in zip(axes, rows, strict=True):
        for axis, image in zip(row, images, strict=False):
            axis.imshow(np.asarray(image))
            axis.set_axis_off()
    axes[0, 0].set_title(first, fontsize=8)
    _plt().show()


def _classes_in(root: Path, classes: Sequence[str] | None) -> list[Path]:
    found = sorted(path for path in root.iterdir() if path.is_dir())
    names = [path.name for path in found]
    for name in classes or ():
        if name not in names:
            raise ValueError(f"'{root}' has no class {name!r}{did_you_mean(name, names)}")
    return [root / name for name in classes] if classes else found


def image_folder_sample_show(
    root: str | Path,
    rows: int = 4,
    cols: int = 4,
    img_size: int = 224,
    classes: Sequence[str] | None = None,
) -> None:
    """Show random images of a folder with a folder for each class, one class per row.

    Without ``classes``, as many as there are ``rows`` are chosen at random.
    """
    from PIL import Image, ImageOps

    found = _classes_in(Path(root), classes)
    chosen = found if classes else random.sample(found, min(rows, len(found)))
    shown = []
    for folder in chosen:
        files = sorted(folder.iterdir())
        images = [Image.open(one) for one in random.sample(files, min(cols, len(files)))]
        shown.append([ImageOps.fit(image, (img_size, img_size)) for image in images])
    _show_images(shown, 13)


def image_folder_statistic(
    root: str | Path, classes: Sequence[str] | None = None, show_bar: bool | None = False
) -> dict[str, int]:
    """Return the number of images of each class, and show it as bars if ``show_bar``."""
    counts = {one.name: len(list(one.iterdir())) for one in _classes_in(Path(root), classes)}
    if show_bar:
        _, axis = _plt().subplots(figsize=(30, 10))
        axis.bar(list(counts), list(counts.values()))
        axis.tick_params(axis="x", rotation=90)
        axis.set_title(Path(root).name)
        _plt().show()
    return counts


def show_transform(
    image_path: str | Path, transform: Callable[[Any], Any], sample_num: int = 6
) -> None:
    """Show an image, and what a transform makes of it in several calls."""
    from PIL import Image

    image = Image.open(image_path)
    samples = [transform(image) for _ in range(sample_num)]
    _show_images([[image, *samples]], 12, "Original image")


def plot_lrs_for_scheduler(optimizer: Optimizer, scheduler: Any, total_steps: int) -> None:
    """Plot the rates of a schedule; it and the optimizer are stepped ``total_steps`` times."""
    rates = []
    for _ in range(total_steps):
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    _plt().plot(range(total_steps), rates)
    _plt().show()


def plot_lrs_for_config(
    configs: TrainingConfig, num_training_steps: int, start_lr: float = 100
) -> None:
    """Plot the rates that a config has in a training of so many updates."""
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=start_lr)
    scheduler = build_scheduler(configs, optimizer, num_training_steps, (0, None))
    plot_lrs_for_scheduler(optimizer, scheduler, num_training_steps)


def predict_image_classification(model: nn.Module, input_: Tensor) -> tuple[float, int]:
    """Return the probability and the number of the most likely class of one image."""
    with torch.no_grad():
        score, label = model(input_).softmax(dim=1).max(dim=1)
    return float(score.squeeze()), int(label.squeeze())


def interpret_image_classification(
    model: nn.Module,
    image: Any,
    eval_transform: Any,
    method: str,
    fig_size: tuple[int, int] = (10, 10),
    cmap: Any = "OrRd",
    pred_label_idx: int | None = None,
    titles: list[str] | None = None,
    **kwargs: Any,
) -> tuple[float | None, int] | None:
    """Show which pixels of an image speak for a class, by a method of captum.

    Args:
        model: A classifier.
        image: The image before the transform.
        eval_transform: A ``Compose`` of transforms; ``Normalize`` is left out of what is shown.
        method: Occlusion, IntegratedGradients, GradientShap or Saliency.
        fig_size: The size of the figure.
        cmap: Its colour map.
        pred_label_idx: The class; None for the most likely one.
        titles: The titles of the two images.
        kwargs: Passed to captum's ``visualize_image_attr_multiple``.

    Returns:
        The probability of the class, if it was predicted, and its number; None without captum.
    """
    if method not in _OPTIONS:
        near = did_you_mean(method, _OPTIONS)
        raise ValueError(f"there is no method {method!r}{near} (there is {', '.join(_OPTIONS)})")
    if find_spec("captum") is None:
        trainer_log.warning("nothing is shown: captum is not installed (pip install captum)")
        return None
    from captum.attr import visualization  # type: ignore[import-not-found, unused-ignore]

    model.eval()
    plain = copy(eval_transform)
    plain.transforms = [
        one for one in eval_transform.transforms if type(one).__name__ != "Normalize"
    ]
    made = (transform(image) for transform in (eval_transform, plain))
    inputs, shown = (one.unsqueeze(0) if one.ndim == 3 else one for one in made)
    score = None
    if pred_label_idx is None:
        score, pred_label_idx = predict_image_classification(model, inputs)
    attribution = _attribute(model, inputs, method, pred_label_idx)
    visualization.visualize_image_attr_multiple(
        *(one.detach().cpu().squeeze(0).permute(1, 2, 0).numpy() for one in (attribution, shown)),
        ["original_image", "blended_heat_map"],
        ["all", "positive"],
        show_colorbar=True,
        outlier_perc=2,
        fig_size=fig_size,
        cmap=cmap,
        titles=titles or ["Origin Image", f"Method:{method}"],
        **kwargs,
    )
    return score, pred_label_idx


def _attribute(model: nn.Module, inputs: Tensor, method: str, label: int) -> Tensor:
    from captum import attr  # type: ignore[import-not-found, unused-ignore]

    options = dict(_OPTIONS[method])
    if method == "GradientShap":
        options["baselines"] = torch.cat([inputs * 0, inputs])
    chosen = getattr(attr, method)(model)
    if method == "IntegratedGradients":
        chosen = attr.NoiseTunnel(chosen)
    found: Tensor = chosen.attribute(inputs, target=label, **options)
    return found
