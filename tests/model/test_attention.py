"""Attention alone: equation 1 by hand, its two ways of computing, masks, and torch's own multi-head attention.

Shapes: B batch, H heads, T queries, S keys, K head width.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import Attention, AttentionMask, Trace, attend

B, H, K = 2, 3, 8


def draw(length: int, seed: int) -> Tensor:
    return torch.randn(B, H, length, K, generator=torch.Generator().manual_seed(seed))


def by_hand(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Equation 1 with loops over everything, in float64."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in query.shape[:3])).tolist():
        places = [s for s in range(key.size(2)) if mask[b, h, t, s]]
        scores = [float(query[b, h, t].double() @ key[b, h, s].double()) / math.sqrt(K) for s in places]
        weights = [math.exp(score - max(scores)) for score in scores]
        for s, weight in zip(places, weights, strict=True):
            out[b, h, t] += weight / sum(weights) * value[b, h, s].double()
    return out.float()


def paths(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False) -> list[Tensor]:
    """The fused kernel, the plain sum with a trace, and the plain sum that gradients take on a CPU."""
    fused = attend(query, key, value, mask, causal)
    traced = attend(query, key, value, mask, causal, trace=Trace(), name="any")
    learning = attend(query.clone().requires_grad_(), key, value, mask, causal).detach()
    return [fused, traced, learning]


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (1, 5), (3, 7), (6, 2)])
def test_equation_1(queries: int, keys: int) -> None:
    query, key, value = draw(queries, 1), draw(keys, 2), draw(keys, 3)
    mask = torch.rand(B, H, queries, keys, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[..., 0] = True  # each query sees something
    for chosen in (mask, torch.ones_like(mask)):
        expected = by_hand(query, key, value, chosen)
        for found in paths(query, key, value, chosen):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 1), (1, 6), (2, 6), (5, 6)])
def test_causal_queries_are_the_last_places(queries: int, keys: int) -> None:
    query, key, value = draw(queries, 1), draw(keys, 2), draw(keys, 3)
    seen = torch.arange(keys) <= torch.arange(keys - queries, keys)[:, None]  # (T, S)
    expected = by_hand(query, key, value, seen.expand(B, H, -1, -1))
    for found in paths(query, key, value, causal=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_row_that_may_look_nowhere_is_no_nan() -> None:
    query, key, value = draw(4, 1), draw(5, 2), draw(5, 3)
    sentence = torch.ones(B, 1, 1, 5, dtype=torch.bool)
    sentence[1] = False
    row = torch.ones(B, 1, 4, 5, dtype=torch.bool)
    row[0, 0, 2] = False
    for mask in (sentence, row):
        seen = mask.expand(B, H, 4, 5).any(-1)
        expected = by_hand(query, key, value, mask.expand(B, H, 4, 5) | ~seen[..., None])
        for found in paths(query, key, value, mask):
            assert found.isfinite().all()
            torch.testing.assert_close(found[seen], expected[seen], atol=1e-6, rtol=1e-5)
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        attend(leaves[0], leaves[1], leaves[2], mask).square().sum().backward()  # type: ignore[no-untyped-call]
        assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


def test_the_trace_holds_the_weights() -> None:
    query, key, value, trace = draw(4, 1), draw(4, 2), draw(4, 3), Trace()
    out = attend(query, key, value, causal=True, trace=trace, name="decoder.0.self")
    assert list(trace) == ["decoder.0.self"]
    weights = trace["decoder.0.self"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, 4))
    assert torch.equal(weights, weights.tril())
    torch.testing.assert_close(weights @ value, out)


def test_dropout_on_weights_keeps_their_mean() -> None:
    query, key, value = draw(4, 1).requires_grad_(), draw(6, 2), draw(6, 3)
    torch.manual_seed(1)
    mean = torch.stack([attend(query, key, value, dropout=0.3).detach() for _ in range(3000)]).mean(0)
    torch.testing.assert_close(mean, attend(query, key, value).detach(), atol=0.08, rtol=0)


@pytest.mark.parametrize("heads", [1, 4])
def test_multi_head_attention_is_that_of_torch(heads: int) -> None:
    torch.manual_seed(2)
    ours, theirs = Attention(heads).build(16), nn.MultiheadAttention(16, heads, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
        weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
        for part, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    mask = torch.arange(7) < torch.tensor([7, 2, 4])[:, None]  # (B, S)
    expected, weights_expected = theirs(x, memory, memory, key_padding_mask=~mask, average_attn_weights=False)
    trace = Trace()
    found = ours(x, *ours.project_kv(memory), AttentionMask(mask[:, None, None], trace=trace, name="any"))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(trace["any"], weights_expected, atol=1e-6, rtol=1e-5)


def test_joined_weights_are_the_same_weights() -> None:
    """One product for queries, keys and values, which follows what changes them; elsewhere they are apart again."""
    torch.manual_seed(3)
    attention = Attention(4, key_heads=2, key_width=3).build(16).eval()
    x = torch.randn(2, 5, 16)
    apart = attention.project_qkv(x)
    names = dict(attention.named_parameters())
    attention.join()
    assert dict(attention.named_parameters()).keys() == names.keys()
    assert all(one is names[name] for name, one in attention.named_parameters())
    for one, other in zip(attention.project_qkv(x), apart, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        attention.value.weight.mul_(2)
        attention.query.bias.add_(1)
        attention.key.weight.copy_(torch.randn_like(attention.key.weight))
    joined = attention.project_qkv(x)
    for one, other in zip(joined, apart, strict=True):
        assert not torch.allclose(one, other)
    attention.joined = None
    for one, other in zip(joined, attention.project_qkv(x), strict=True):
        torch.testing.assert_close(one, other)
    attention.join()
    attention.double()
    assert attention.joined is None
    assert attention.project_qkv(x.double())[0].dtype == torch.float64
