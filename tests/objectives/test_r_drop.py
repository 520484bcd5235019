"""R-Drop: what it is without dropout and without alpha, its value by hand, and where its gradient goes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from term_models import SYMBOLS, Said
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.contract import DecoderState, Memory
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.cross_entropy import CrossEntropy, RDrop

V = 11


def batch() -> Batch:
    return collate([[4, 5], [6], [7, 8, 9]], [[7, 8, 9], [10], []], SYMBOLS, SYMBOLS, target_length=6)


def build(dropout: float) -> Seq2Seq:
    torch.manual_seed(5)
    return (
        Model(16, dropout, "all", TransformerEncoder(2, Attention(2), 24), TransformerDecoder(2, Attention(2), 24))
        .build(V, V, True)
        .train()
    )


class TwoMinds(Said):
    """Says `first` (B, T, V) for the first half of the rows and `second` for the second."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__(torch.cat((first, second)))

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        half = len(source) // 2
        assert torch.equal(source[:half], source[half:])
        assert torch.equal(mask[:half], mask[half:])
        return super().encode(source, mask, trace)

    def states(self, tokens: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, DecoderState]:
        half = len(tokens) // 2
        assert torch.equal(tokens[:half], tokens[half:])
        return super().states(tokens, *rest, **named)


def two_minds(seed: int = 1) -> tuple[Tensor, Tensor]:
    first, second = 2 * torch.randn(2, 3, 6, V, generator=torch.Generator().manual_seed(seed))
    return first, second


def test_without_dropout_it_is_cross_entropy() -> None:
    model = build(dropout=0.0)
    losses = [objective.build()(model, batch(), 0) for objective in (CrossEntropy(0.1), RDrop(0.1, alpha=5.0))]
    assert losses[1].total.item() == pytest.approx(losses[0].total.item(), rel=1e-6)
    assert losses[1].count == losses[0].count == 3 + 1 + 0 + 3
    assert losses[1].metrics.keys() == losses[0].metrics.keys()
    assert losses[1].metrics["nll"].item() == pytest.approx(losses[0].metrics["nll"].item(), rel=1e-6)
    gradients = [torch.autograd.grad(loss.total, list(model.parameters())) for loss in losses]
    for plain, twice in zip(*gradients, strict=True):
        torch.testing.assert_close(twice, plain, atol=1e-5, rtol=1e-5)


def test_alpha_0_is_the_mean_of_two_passes() -> None:
    first, second = two_minds()
    both = RDrop(0.1, alpha=0.0).build()(TwoMinds(first, second), batch(), 0)
    gold = batch().gold.masked_fill(~batch().target_mask, -100).flatten()
    expected = [
        F.cross_entropy(logits.flatten(0, 1), gold, reduction="sum", label_smoothing=0.1) for logits in (first, second)
    ]
    assert both.total.item() == pytest.approx(sum(expected).item() / 2, rel=1e-6)  # type: ignore[union-attr]


def test_the_value_by_hand() -> None:
    """Liang et al., equation 3, halved: (CE + CE) / 2 + alpha / 4 * (KL(p || q) + KL(q || p)), summed over tokens."""
    first, second = two_minds()
    pairs, alpha = batch(), 3.0
    expected = 0.0
    for row, place in pairs.target_mask.nonzero().tolist():
        p, q = (logits[row, place].double().softmax(-1).tolist() for logits in (first, second))
        gold = int(pairs.gold[row, place])
        for probabilities in (p, q):
            expected -= 0.5 * (0.9 * math.log(probabilities[gold]) + 0.1 * sum(map(math.log, probabilities)) / V)
        expected += alpha / 4 * sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True))
    loss = RDrop(0.1, alpha).build()(TwoMinds(first, second), pairs, 0)
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)


def test_disagreement_counts_real_tokens_only() -> None:
    first, second = two_minds()
    elsewhere = second + 50 * (~batch().target_mask)[..., None] * torch.arange(V)
    one, other = (RDrop().build()(TwoMinds(first, q), batch(), 0).total for q in (second, elsewhere))
    assert torch.equal(one, other)


def test_under_dropout_the_passes_disagree_and_both_learn() -> None:
    model = build(dropout=0.3)
    totals = []
    for alpha in (0.0, 5.0):
        torch.manual_seed(9)
        loss = RDrop(0.1, alpha).build()(model, batch(), 0)
        totals.append(loss.total.item())
    assert totals[1] > totals[0] + 0.01
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    free = [logits.requires_grad_() for logits in two_minds()]
    RDrop(0.1, 5.0).build()(TwoMinds(*free), batch(), 0).total.backward()  # type: ignore[no-untyped-call]
    for logits in free:
        assert logits.grad is not None
        assert logits.grad[batch().target_mask].any(-1).all()
        assert not logits.grad[~batch().target_mask].any()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing: expected at least 0 and below 1, got 1.0"),
        ({"alpha": -1.0}, "alpha: expected 0 or more, got -1.0"),
        ({"alpha": float("nan")}, "alpha: expected 0 or more, got nan"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        RDrop(**settings)
    assert str(error.value) == text
