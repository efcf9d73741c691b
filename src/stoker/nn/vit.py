"""`ViT`: a small vision transformer."""

import torch
from torch import Tensor, nn

from stoker.nn.transformer import Block


class ViT(nn.Module):
    """Returns class scores for images, which it reads as a sequence of square patches.

        images → patches → blocks.0 → … → blocks.N → norm → head → scores

    Args:
        image_size: height and width of the images.
        patch_size: height and width of a patch; it must divide the image size.
        channels: the number of channels, 3 for color images.
        classes: the number of classes; 0 leaves out the head, and the model returns features.
        width: the number of features per patch.
        layers: the number of blocks.
        heads: the number of attention heads per block; they share the width.
        dropout: the dropout probability at the ends of each block.
    """

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 16,
        channels: int = 3,
        classes: int = 1000,
        width: int = 192,
        layers: int = 12,
        heads: int = 3,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(
                f"image_size must be a multiple of patch_size, got {image_size} and {patch_size}"
            )
        if width % heads:
            raise ValueError(
                f"width must be a multiple of heads, got width={width} and heads={heads}"
            )
        self.image_size = image_size
        self.patches = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        positions = (image_size // patch_size) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, positions, width))
        self.blocks = nn.Sequential(
            *(Block(width, width // heads, dropout, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (batch, classes) for images of shape (batch, channels, height, width)."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            size = f"{self.image_size}×{self.image_size}"
            raise ValueError(f"images of shape {list(images.shape)}, expected {size}")
        patches = self.patches(images).flatten(2).transpose(1, 2)
        summary = self.summary.expand(len(patches), -1, -1)
        sequence = torch.cat([summary, patches], dim=1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(sequence))[:, 0])
        return scores
