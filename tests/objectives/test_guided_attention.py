"""Guided attention by hand: the diagonal on two tokens and three words, links as given, and what does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from term_models import SYMBOLS, Said, V, aligned, build, said

from transduce.core.errors import ConfigError, DataError
from transduce.data.batch import Batch, collate
from transduce.objectives import NO_CONTEXT, forward
from transduce.objectives.terms import GuidedAlignment, GuidedAttention, off_diagonal


def batch() -> Batch:
    """T = 2 (a token and the end symbol) against S = 3, with padding to 4 and 5."""
    return collate([[4, 5]], [[6]], SYMBOLS, SYMBOLS, source_length=5, target_length=4)


def test_the_cost_of_two_by_three_by_hand() -> None:
    """s/S is 0, 1/3, 2/3 and t/T is 0, 1/2; width 0.2, so that 2 width^2 = 0.08."""

    def cost(distance: float) -> float:
        return 1 - math.exp(-(distance**2) / 0.08)

    expected = torch.zeros(1, 4, 5)
    expected[0, 0, :3] = torch.tensor([0.0, cost(1 / 3), cost(2 / 3)])
    expected[0, 1, :3] = torch.tensor([cost(1 / 2), cost(1 / 6), cost(1 / 6)])
    torch.testing.assert_close(off_diagonal(batch().source_mask, batch().target_mask, 0.2), expected)


def test_the_diagonal_by_hand() -> None:
    """Two heads: one looks as it should, the other the wrong way round; the loss is their mean."""
    weights = torch.full((1, 2, 4, 5), 7.0)  # what padding looks at is in no sum
    weights[0, 0, :2] = torch.tensor([[1.0, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0]])
    weights[0, 1, :2] = torch.tensor([[0.0, 0, 1, 0, 0], [1, 0, 0, 0, 0]])
    near, half, far = (1 - math.exp(-(distance**2) / 0.08) for distance in (1 / 6, 1 / 2, 2 / 3))
    for heads, expected in (((), (near + far + half) / 2), ((0,), near), ((1,), far + half), ((1, 0), 0.0)):
        passed = said(batch(), {"decoder.0.cross": weights})
        found = GuidedAttention(heads=heads).build(NO_CONTEXT)(passed).item()
        assert found == pytest.approx(expected or (near + far + half) / 2, rel=1e-6)


def test_links_by_hand() -> None:
    """-sum of a log p where there are links; the end symbol has none."""
    weights = torch.full((1, 2, 4, 5), 0.2)
    weights[0, 0, 0, :3] = torch.tensor([0.5, 0.25, 0.25])
    weights[0, 1, 0, :3] = torch.tensor([0.125, 0.75, 0.125])
    links = torch.zeros(1, 4, 5)
    links[0, 0, :2] = torch.tensor([0.75, 0.25])
    first = -(0.75 * math.log(0.5) + 0.25 * math.log(0.25))
    second = -(0.75 * math.log(0.125) + 0.25 * math.log(0.75))
    passed = said(replace(batch(), alignment=links), {"decoder.0.cross": weights, "decoder.1.out": weights})
    for heads, expected in (((0,), first), ((1,), second), ((), (first + second) / 2)):
        found = GuidedAlignment(heads=heads).build(NO_CONTEXT)(passed).item()
        assert found == pytest.approx(expected, rel=1e-6)


def test_its_gradient_on_the_scores_is_that_of_cross_entropy() -> None:
    """The gradient is softmax - links at tokens with links, whatever the scale of the scores; nothing elsewhere."""
    links = torch.zeros(1, 4, 5)
    links[0, 0, 1] = 1.0
    links[0, 1, :2] = 0.5
    scores = torch.randn(1, 1, 4, 5, generator=torch.Generator().manual_seed(1)) * 20
    scores.requires_grad_()
    passed = said(replace(batch(), alignment=links), {"decoder.0.cross": scores.softmax(-1)})
    GuidedAlignment(layer=0).build(NO_CONTEXT)(passed).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    expected = (scores.softmax(-1)[:, 0] - links) * links.any(-1, keepdim=True)
    torch.testing.assert_close(scores.grad[:, 0], expected, rtol=1e-4, atol=1e-6)


def test_a_word_that_is_not_looked_at_at_all_gives_no_infinity() -> None:
    links = torch.zeros(1, 4, 5)
    links[0, 0, 0] = 1.0
    weights = torch.zeros(1, 1, 4, 5, requires_grad=True)
    loss = GuidedAlignment(layer=0).build(NO_CONTEXT)(
        said(replace(batch(), alignment=links), {"decoder.0.cross": weights})
    )
    assert loss.isfinite()
    assert torch.autograd.grad(loss, weights)[0].isfinite().all()


@pytest.mark.parametrize(("layer", "number"), [(0, 0), (1, 1), (-1, 1), (-2, 0)])
def test_the_layer_is_the_one_requested(layer: int, number: int) -> None:
    model, pairs = build(), aligned([[4, 5, 6]], [[7, 8]])
    passed = forward(model, pairs, {})
    expected = passed.trace[f"decoder.{number}.cross"].mean(1) * off_diagonal(pairs.source_mask, pairs.target_mask, 0.2)
    found = GuidedAttention(layer=layer).build(NO_CONTEXT)(passed)
    assert found.item() == pytest.approx(expected.sum().item(), rel=1e-6)


def test_it_reaches_the_decoder_s_queries_and_the_encoder() -> None:
    model, pairs = build(), aligned([[4, 5, 6]], [[7, 8]])
    GuidedAttention(layer=0).build(NO_CONTEXT)(forward(model, pairs, {})).backward()  # type: ignore[no-untyped-call]
    moved = {
        name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    assert any(name.startswith("encoder.layers.0") for name in moved)
    assert any(name.startswith("decoder.layers.0.cross.query") for name in moved)
    assert not any(name.startswith("decoder.layers.1") for name in moved)


def test_a_corpus_without_alignments_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        GuidedAlignment().build(NO_CONTEXT)(said(batch(), {"decoder.0.cross": torch.ones(1, 1, 4, 5)}))
    assert str(caught.value) == (
        "objective.terms: guided_alignment needs word alignments, and the corpus has none;"
        " give `transduce prepare` a file of them in Pharaoh format, train.alignment=FILE"
    )


def test_a_decoder_that_does_not_attend_is_refused() -> None:
    with pytest.raises(ConfigError, match="guided attention needs a decoder that attends to the source, and layer -1"):
        GuidedAttention().build(NO_CONTEXT)(said(batch(), {"decoder.0.out": torch.ones(1, 4, 8)}))
    with pytest.raises(ConfigError, match="needs a decoder that attends to the source"):
        GuidedAttention().build(NO_CONTEXT)(forward(Said(torch.zeros(1, 4, V)), batch(), {}))


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"guided attention on heads \[0, 2\], but the layer has 2 \(counted from 0\)"
    ):
        GuidedAttention(heads=(0, 2)).build(NO_CONTEXT)(said(batch(), {"decoder.0.cross": torch.ones(1, 2, 4, 5)}))
