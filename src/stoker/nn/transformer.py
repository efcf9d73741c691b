"""`Transformer`: a small language model that every layout can run."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Transformer(nn.Module):
    """For each position of a window of tokens the scores of every token.

        tokens → embed → blocks.0 → … → blocks.N → norm → head → scores

    Its parts run one after another, each on what the one before gave, so that it can be cut
    between any two. Dropout acts on whole activations alone, not on single heads, so that a
    model split by layers draws the same masks as a whole one.

    Args:
        vocabulary: how many tokens there are.
        context: the longest window it can look at.
        width: features of a token inside.
        layers: how many blocks.
        heads: attention heads of a block; they share the width.
        dropout: the share of activations left out, after the embedding and at each block's ends.
        causal: a position sees only itself and those before it.
        tied: the scores use the same matrix as the embedding.
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
        if width % heads:
            raise ValueError(f"heads share the width evenly: {heads} heads do not divide {width}")
        self.embed = Embed(vocabulary, context, width, dropout)
        self.blocks = nn.Sequential(
            *(Block(width, width // heads, dropout, causal) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            nn.init.normal_(self.embed.tokens.weight, std=width**-0.5)
            self.head.weight = self.embed.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of shape (batch, length, vocabulary) for tokens of shape (batch, length)."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(tokens))))
        return scores


class Embed(nn.Module):
    """Tokens as vectors that know their position."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors of shape (batch, length, width)."""
        length, context = tokens.shape[-1], self.positions.num_embeddings
        if length > context:
            raise ValueError(f"a window of {length} tokens, but the context is {context}")
        places = torch.arange(length, device=tokens.device)
        vectors: Tensor = self.tokens(tokens) + self.positions(places)
        dropped: Tensor = self.dropout(vectors)
        return dropped


class Block(nn.Module):
    """Attention, then an MLP, each on what it normalises and added to what came in."""

    def __init__(self, width: int, head_dim: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(width)
        self.attn = Attention(width, head_dim, causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        x = x + self.dropout(self.attn(self.attn_norm(x)))
        changed: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return changed


class Attention(nn.Module):
    """Self-attention with as many heads as the output of ``q`` has room for."""

    def __init__(self, width: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.head_dim = head_dim
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Four times as wide in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out
