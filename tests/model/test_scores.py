"""Score functions and weights against loops over plain numbers, and rows that have nothing to look at.

Shapes: B batch, H heads, T queries, S keys, K head width.
"""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import Attention, AttentionMask, Trace, attend
from transduce.model.scores import Additive, Bilinear, Cosine, Dot, Relu, ScaledDot, Score, Softmax, Weights

B, H, T, S, K = 2, 3, 4, 5, 6


def draw(length: int, seed: int) -> Tensor:
    return torch.randn(B, H, length, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(config: Any) -> nn.Module:
    torch.manual_seed(5)
    module: nn.Module = config.build(H, K).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return module


def one(config: Any, module: Any, query: list[float], key: list[float], head: int) -> float:
    """The score of one query and one key as the papers print it."""
    dot = sum(a * b for a, b in zip(query, key, strict=True))
    if isinstance(config, Dot):
        return dot
    if isinstance(config, ScaledDot):
        return dot / math.sqrt(K)
    if isinstance(config, Additive):
        vector = module.vector[head, 0].tolist()
        return float(sum(v * math.tanh(a + b) for v, a, b in zip(vector, query, key, strict=True)))
    if isinstance(config, Bilinear):
        matrix = module.matrix[head].tolist()
        return float(sum(query[i] * matrix[i][j] * key[j] for i in range(K) for j in range(K)) / math.sqrt(K))
    assert isinstance(config, Cosine)
    norms = math.sqrt(sum(a * a for a in query)) * math.sqrt(sum(b * b for b in key))
    return float(math.exp(module.log_scale[head].item()) * dot / norms)


@pytest.mark.parametrize("kind", get_args(Score))
def test_each_score_is_its_formula(kind: Any) -> None:
    config = kind()
    module, query, key = build(config), draw(T, 1), draw(S, 2)
    found = module(query, key)
    assert found.shape == (B, H, T, S)
    for b, h, t, s in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, T, S))).tolist():
        expected = one(config, module, query[b, h, t].tolist(), key[b, h, s].tolist(), h)
        assert found[b, h, t, s].item() == pytest.approx(expected, abs=1e-9)


def test_softmax_and_relu_of_scores() -> None:
    scores = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    mask = torch.tensor([[True, True, True, False]])
    exps = [math.exp(1.0), math.exp(-2.0), math.exp(0.5), 0.0]
    expected = torch.tensor([[value / sum(exps) for value in exps]])
    torch.testing.assert_close(Softmax().build()(scores, mask), expected)
    # the normaliser is the number of places in sight: 3 with the mask, 4 without
    torch.testing.assert_close(Relu().build()(scores, mask), torch.tensor([[1 / 3, 0.0, 0.5 / 3, 0.0]]))
    torch.testing.assert_close(Relu().build()(scores, None), torch.tensor([[0.25, 0.0, 0.125, 0.75]]))


@pytest.mark.parametrize("weights", get_args(Weights))
@pytest.mark.parametrize("kind", get_args(Score))
def test_fused_traced_and_learning_paths_agree(kind: Any, weights: Any) -> None:
    module, to_weights = build(kind()), weights().build()
    query, key, value = draw(T, 1), draw(S, 2), draw(S, 3)
    mask = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[..., 0] = True
    bias = torch.randn(1, H, T, S, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    for looking, causal in ((mask, False), (None, True), (None, False)):
        for added in (None, bias):
            settings: dict[str, Any] = {"mask": looking, "causal": causal, "bias": added, "score": module}
            with torch.no_grad():
                plain = attend(query, key, value, to_weights=to_weights, **settings)
                traced = attend(query, key, value, to_weights=to_weights, **settings, trace=Trace(), name="any")
            learning = attend(query.clone().requires_grad_(), key, value, to_weights=to_weights, **settings)
            torch.testing.assert_close(plain, traced)
            torch.testing.assert_close(plain, learning.detach())


@pytest.mark.parametrize("weights", get_args(Weights))
@pytest.mark.parametrize("kind", get_args(Score))
def test_a_row_with_nothing_to_look_at_is_finite_and_so_is_its_gradient(kind: Any, weights: Any) -> None:
    module, to_weights = build(kind()), weights().build()
    query, key, value = (draw(n, n).requires_grad_() for n in (T, S, S))
    mask = torch.ones(B, 1, T, S, dtype=torch.bool)
    mask[0, :, 2] = False
    out = attend(query, key, value, mask, score=module, to_weights=to_weights)
    assert out.isfinite().all()
    out.square().sum().backward()  # type: ignore[no-untyped-call]
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (query, key, value))
    with torch.no_grad():
        assert attend(query, key, value, mask, score=module, to_weights=to_weights).isfinite().all()


def test_grouped_heads_are_heads_whose_keys_and_values_are_copies() -> None:
    torch.manual_seed(1)
    grouped, full = Attention(4, key_heads=2).build(16), Attention(4).build(16)
    for name in ("query", "output"):
        getattr(full, name).load_state_dict(getattr(grouped, name).state_dict())
    for name in ("key", "value"):
        for part in ("weight", "bias"):
            shared = getattr(getattr(grouped, name), part).data.unflatten(0, (2, 4))  # (G, K, ...)
            getattr(getattr(full, name), part).data.copy_(shared.repeat_interleave(2, dim=0).flatten(0, 1))
    x = torch.randn(2, 5, 16)
    assert grouped.project_kv(x)[0].shape == (2, 2, 5, 4)  # half the memory
    torch.testing.assert_close(grouped(x, *grouped.project_kv(x)), full(x, *full.project_kv(x)))


def test_query_key_norm_makes_scores_deaf_to_the_size_of_what_is_compared() -> None:
    torch.manual_seed(2)
    attention = Attention(2, query_key_norm=True).build(8)
    for linear in (attention.query, attention.key):
        nn.init.zeros_(linear.bias)
    x = torch.randn(1, 4, 8)
    trace, louder = Trace(), Trace()
    attention(x, *attention.project_kv(x), AttentionMask(trace=trace, name="self"))
    attention(7 * x, *attention.project_kv(3 * x), AttentionMask(trace=louder, name="self"))
    torch.testing.assert_close(trace["self"], louder["self"])
