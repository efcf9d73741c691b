"""`Transformer` and `ViT`: small models that run in every layout."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Transformer(nn.Module):
    """Returns scores over the vocabulary for each position of a window of tokens.

        tokens → embed → blocks.0 → … → blocks.N → norm → head → scores

    Each part takes the output of the part before it, so that a pipeline can cut the model between
    any two. Dropout is applied to complete activations, never to single heads, so that a tensor-
    parallel model draws the same masks as an unsplit one.

    Args:
        vocabulary: the number of tokens.
        context: the maximum length of a window.
        width: the number of features per token.
        layers: the number of blocks.
        heads: the number of attention heads per block; they share the width.
        dropout: the dropout probability, after the embedding and at the ends of each block.
        causal: whether a position attends only to itself and the positions before it.
        tied: whether the head shares its weight with the embedding.
    """

    pipeline_parts = ("embed", "blocks.*", "norm", "head")

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        *,
        dropout: float = 0.0,
        causal: bool = True,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embed = Embed(vocabulary, context, width, dropout)
        self.blocks = _blocks(layers, width, heads, dropout, causal)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.embed.tokens.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize a tied embedding, after the modules have initialized themselves."""
        if self.head.weight is self.embed.tokens.weight:
            nn.init.normal_(self.head.weight, std=self.head.in_features**-0.5)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A batch with which layouts try the model before they split it."""
        length, vocabulary = min(self.embed.positions.num_embeddings, 16), self.head.out_features
        tokens = torch.arange(2 * length).view(2, length) * 5 % vocabulary
        return {"tokens": tokens.to(self.head.weight.device)}

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (batch, length, vocabulary) for tokens of shape (batch, length)."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(tokens))))
        return scores


class Embed(nn.Module):
    """Embeds tokens and their positions."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the positions, after the modules have initialized themselves."""
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors of shape (batch, length, width)."""
        length, context = tokens.shape[-1], self.positions.num_embeddings
        if length > context:
            raise ValueError(f"a window of {length} tokens is longer than the context of {context}")
        positions = torch.arange(length, device=tokens.device)
        vectors: Tensor = self.tokens(tokens) + self.positions(positions)
        dropped: Tensor = self.dropout(vectors)
        return dropped


class Block(nn.Module):
    """Attention, then an MLP, each with pre-normalization and a residual connection."""

    def __init__(self, width: int, head_dim: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.attn = Attention(width, head_dim, causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        x = x + self.dropout(self.attn(self.attn_norm(x)))
        changed: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return changed


def _blocks(layers: int, width: int, heads: int, dropout: float, causal: bool) -> nn.Sequential:
    if width % heads:
        raise ValueError(f"width must be a multiple of heads, got width={width} and heads={heads}")
    return nn.Sequential(*(Block(width, width // heads, dropout, causal) for _ in range(layers)))


class Attention(nn.Module):
    """Self-attention; the output size of ``q`` determines the number of heads."""

    def __init__(self, width: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.head_dim = head_dim
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Two linear layers with a hidden size of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


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
        self.image_size = image_size
        self.patches = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        positions = (image_size // patch_size) ** 2 + 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, positions, width))
        self.blocks = _blocks(layers, width, heads, dropout, causal=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def reset_parameters(self) -> None:
        """Initialize the summary and the positions again."""
        nn.init.zeros_(self.summary)
        nn.init.normal_(self.positions, std=0.02)

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
