"""`stoker.nn.Transformer`: what its scores depend on, and how its parts fit together."""

import pytest
import torch
from torch import nn

from stoker.nn import Transformer
from stoker.nn.transformer import Attention

TOKENS = torch.arange(12).reshape(2, 6) % 7


def small(**options):
    torch.manual_seed(0)
    return Transformer(7, 6, width=8, layers=2, heads=2, **options)


def test_scores_have_a_place_for_every_token_of_the_vocabulary():
    assert small()(TOKENS).shape == (2, 6, 7)


@pytest.mark.parametrize("causal", [True, False])
def test_only_a_causal_one_is_blind_to_what_comes_later(causal):
    model = small(causal=causal)
    changed = TOKENS.clone()
    changed[:, 4] += 1
    same = torch.isclose(model(TOKENS), model(changed % 7), atol=1e-6).all(-1).all(0)
    assert same.tolist() == [causal] * 4 + [False] * 2


def test_its_parts_in_sequence_are_the_model():
    model = small()
    x = TOKENS
    for part in (model.embed, *model.blocks, model.norm, model.head):
        x = part(x)
    assert torch.equal(x, model(TOKENS))
    assert model.pipeline_parts == ("embed", "blocks.*", "norm", "head")


def test_attention_is_that_of_torch():
    torch.manual_seed(0)
    ours, theirs = Attention(8, 4, causal=True), nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in (ours.q, ours.k, ours.v)]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in (ours.q, ours.k, ours.v)]))
    theirs.out_proj = ours.o
    x = torch.randn(2, 6, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    expected, _ = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    assert torch.allclose(ours(x), expected, atol=1e-6)


def test_tied_scores_use_the_matrix_of_the_embedding():
    model = small(tied=True)
    assert model.head.weight is model.embed.tokens.weight
    assert len(list(model.parameters())) == len(list(small().parameters())) - 2


def test_dropout_is_for_training():
    model = small(dropout=0.5)
    assert not torch.equal(model(TOKENS), model(TOKENS))
    model.eval()
    assert torch.equal(model(TOKENS), model(TOKENS))


def test_what_does_not_fit_is_rejected():
    with pytest.raises(ValueError, match="got width=8 and heads=3"):
        Transformer(7, 6, width=8, heads=3)
    with pytest.raises(ValueError, match="a window of 7 tokens is longer than the context of 6"):
        small()(torch.zeros(1, 7, dtype=torch.long))
