"""`ViT`: a small vision transformer."""

import torch
from torch import Tensor, nn

from stoker.nn.transformer import Block


class ViT(nn.Module):
    """Scores of each class for images, which it sees as a row of square patches.

        images → patches → blocks.0 → … → blocks.N → norm → head → scores

    Args:
        image_size: height and width of the images.
        patch_size: height and width of a patch; patches cover the image evenly.
        channels: 3 for coloured images.
        classes: how many scores; 0 leaves out the head, and features come out.
        width: features of a patch inside.
        layers: how many blocks.
        heads: attention heads of a block; they share the width.
        dropout: the share of activations left out at each block's ends.
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
            raise ValueError(f"patches of {patch_size} do not cover images of {image_size} evenly")
        if width % heads:
            raise ValueError(f"heads share the width evenly: {heads} heads do not divide {width}")
        self.image_size = image_size
        self.patches = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        places = (image_size // patch_size) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.blocks = nn.Sequential(
            *(Block(width, width // heads, dropout, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Scores of shape (batch, classes) for images of shape (batch, channels, height, width)."""
        if images.shape[-2:] != (self.image_size, self.image_size):
            size = f"{self.image_size}×{self.image_size}"
            raise ValueError(f"images of shape {list(images.shape)}, expected {size}")
        row = self.patches(images).flatten(2).transpose(1, 2)
        row = torch.cat([self.summary.expand(len(row), -1, -1), row], dim=1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(row))[:, 0])
        return scores
