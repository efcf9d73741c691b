import pytest
import torch

from stoker.nn import ViT


def small(**changes) -> ViT:
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 16}
    return ViT(**{**sizes, "layers": 2, "heads": 2, **changes})


def test_images_become_scores_or_features():
    images = torch.randn(5, 1, 8, 8)
    assert small()(images).shape == (5, 3)
    assert small(classes=0)(images).shape == (5, 16)


def test_every_parameter_learns_and_a_patch_is_seen_at_its_place():
    model, images = small(), torch.randn(2, 1, 8, 8)
    model(images).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not model(images).equal(model(images.flip(-1)))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match="image_size must be a multiple of patch_size, got 8 and 3"
    ):
        small(patch_size=3)
    with pytest.raises(ValueError, match="got width=16 and heads=3"):
        small(heads=3)
    with pytest.raises(ValueError, match="expected 8×8"):
        small()(torch.randn(1, 1, 6, 8))
