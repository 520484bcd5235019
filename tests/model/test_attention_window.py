"""Self-attention in a window: against a sum written out by hand, in chunks as in one piece, and its cost."""

from __future__ import annotations

import pytest
import torch
from model_variants import V, close, ragged
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transduce.core.errors import ConfigError
from transduce.model.attention import Attention, AttentionMask, within_window
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder


def by_hand(query: Tensor, key: Tensor, value: Tensor, real: Tensor, window: int, causal: bool) -> Tensor:
    """Place by place: softmax over the real places at most `window` away."""
    found = torch.zeros_like(query)
    for row, place in real.nonzero().tolist():
        first, last = max(0, place - window), place + (0 if causal else window)
        kept = [other for other in range(first, min(last, query.size(2) - 1) + 1) if real[row, other]]
        for head in range(query.size(1)):
            scores = key[row, head, kept] @ query[row, head, place] / query.size(-1) ** 0.5
            found[row, head, place] = scores.softmax(0) @ value[row, head, kept]
    return found


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "window"), [(1, 1), (2, 5), (7, 1), (8, 4), (9, 4), (13, 3), (30, 7)])
def test_a_window_is_what_it_says(length: int, window: int, causal: bool, learning: bool) -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(3, 2, length, 4, dtype=torch.float64, requires_grad=learning) for _ in range(3))
    real = torch.arange(length) < torch.tensor([[length], [(length + 1) // 2], [1]])
    attention = Attention(2).build(8).double()
    mask = None if causal else real[:, None, None, :]
    found = attention.heads(query, key, value, AttentionMask(mask, causal, window=window))
    expected = by_hand(query, key, value, real, window, causal)
    kept = real[:, None, :, None].expand_as(found)
    close(found[kept], expected[kept])
    if learning:
        slopes = [torch.autograd.grad(x[kept].square().sum(), (query, key, value)) for x in (found, expected)]
        for one, other in zip(*slopes, strict=True):
            close(one, other)


def test_places_in_the_window_of_the_newest() -> None:
    assert within_window(2, 5, 2, causal=True, device=torch.device("cpu")).int().tolist() == [
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    assert within_window(3, 3, 1, causal=False, device=torch.device("cpu")).int().tolist() == [
        [1, 1, 0],
        [1, 1, 1],
        [0, 1, 1],
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_the_cost_is_linear_in_the_length(causal: bool) -> None:
    def operations(length: int, window: int) -> int:
        attention = Attention(1).build(16)
        heads = [torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3)]
        with FlopCounterMode(display=False) as counted:
            attention.heads(*heads, AttentionMask(causal=causal, window=window))
        return int(counted.get_total_flops())

    assert operations(256, 8) == 2 * operations(128, 8) == 4 * operations(64, 8)
    assert operations(128, 0) == 4 * operations(64, 0)
    assert operations(256, 8) < operations(256, 0) / 8


def test_a_step_of_decoding_looks_at_no_more_than_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, *rest: object, **named: object) -> Tensor:
        seen.append(key.size(2))
        return plain(query, key, *rest, **named)  # type: ignore[arg-type]

    model = Model(
        16,
        0.0,
        encoder=TransformerEncoder(1, Attention(2), 16),
        decoder=TransformerDecoder(1, Attention(2), 16, window=3),
    ).build(V, V, shared=True)
    batch = ragged()
    with torch.no_grad():
        _, state = model.advance(batch.inputs, model.start(model.encode(batch.source, batch.source_mask)))
        monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", watched)
        model.advance(batch.inputs[:, :1], state)
    assert seen == [4, batch.source.size(1)]  # itself and three before it; then the source


def test_a_window_is_not_looked_at_where_tokens_lie() -> None:
    """The kernel for packed tokens sees whole rows."""
    plain = TransformerEncoder(1, Attention(2), 16)
    assert plain.build(32, 0.0).support.whole_rows
    assert not TransformerEncoder(1, Attention(2), 16, window=3).build(32, 0.0).support.whole_rows


def test_a_window_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="window: expected 1 position or more, or 0 for all, got -1"):
        TransformerEncoder(window=-1)
