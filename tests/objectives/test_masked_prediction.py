"""Objectives of non-autoregressive decoders: what is hidden, what is summed, what cutting a batch changes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.contract import UNDECIDED, rows
from transduce.model.parallel import CutAtEnd, Length, LengthClassifier, ParallelDecoder, Upsampled
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerEncoder
from transduce.objectives.parallel import (
    Everything,
    Glancing,
    MaskedPrediction,
    ParallelCTC,
    Uniform,
    align,
    draw,
    needed,
)
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 11


def build(length: Length) -> Any:
    torch.manual_seed(1)
    decoder = ParallelDecoder(1, Attention(2), 16, length=length)
    return Model(16, 0.0, encoder=TransformerEncoder(1, Attention(2), 16), decoder=decoder).build(V, V, shared=True)


def pairs(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(2)
    sources, targets = (
        [torch.randint(4, V, (1 + (step * n) % 6,), generator=generator).tolist() for n in range(count)]
        for step in (3, 5)
    )
    return collate(sources, targets, SYMBOLS, SYMBOLS)


def gradient(model: Any) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


# ---- what is hidden --------------------------------------------------------------------------------------------------


def test_as_many_places_are_drawn_as_requested_and_each_as_often() -> None:
    torch.manual_seed(1)
    among = torch.tensor([[True, False, True, True, True], [False] * 5, [True] * 5])
    count = torch.tensor([2, 1, 5])
    drawn = torch.stack([draw(among, count) for _ in range(2000)])
    assert (drawn.sum(-1) == torch.tensor([2, 0, 5])).all()
    assert not drawn[:, ~among].any()
    assert drawn[:, 0].float().mean(0)[among[0]].tolist() == pytest.approx([0.5] * 4, abs=0.05)


def test_uniform_hides_any_number_alike() -> None:
    torch.manual_seed(1)
    places = torch.tensor([[True] * 4 + [False]] * 4000)
    found = Counter(Uniform().masked(places, lambda: places, 0).sum(1).tolist())
    assert found.keys() == {1, 2, 3, 4}
    assert all(count == pytest.approx(1000, abs=120) for count in found.values())
    assert torch.equal(Everything().masked(places, lambda: places, 0), places)


def test_glancing_tells_a_falling_share_of_what_is_wrong() -> None:
    places = torch.ones(2, 10, dtype=torch.bool)
    wrong = torch.arange(10) < torch.tensor([[8], [0]])
    glancing = Glancing(first=0.5, last=0.25, steps=100)
    for step, told in ((0, 4), (50, 3), (100, 2), (1000, 2)):
        assert glancing.masked(places, lambda: wrong, step).sum(1).tolist() == [10 - told, 10]


# ---- sums and counts -------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_hidden_places_and_of_the_length() -> None:
    model, batch = build(LengthClassifier(reach=8)), pairs()
    objective = MaskedPrediction(label_smoothing=0.1, length_weight=0.5, masking=Everything()).build()
    loss = objective(model, batch, 0)
    memory = model.encode(batch.source, batch.source_mask)
    real = batch.target_mask.clone()
    lengths = batch.target_mask.sum(1) - 1
    real[torch.arange(len(lengths)), lengths] = False  # the end symbol is given
    logits = model.refine(batch.gold.masked_fill(real, UNDECIDED), batch.target_mask, memory)
    words = F.cross_entropy(logits[real], batch.gold[real], label_smoothing=0.1, reduction="sum")
    length = F.nll_loss(model.lengths(memory), lengths, reduction="sum")
    torch.testing.assert_close(loss.total, words + 0.5 * length)
    assert int(loss.count) == int(lengths.sum())
    torch.testing.assert_close(loss.metrics["length"], length.detach())


@pytest.mark.parametrize(
    ("length", "objective"),
    [
        (LengthClassifier(), MaskedPrediction(masking=Everything())),
        (CutAtEnd(), MaskedPrediction(masking=Everything())),
        (Upsampled(), ParallelCTC()),
    ],
    ids=["classifier", "cut", "ctc"],
)
def test_cutting_a_batch_changes_nothing(length: Length, objective: Any) -> None:
    model, batch = build(length), pairs()
    whole = objective.build()(model, batch, 0)
    whole.total.backward()
    expected = gradient(model)
    total, count = 0.0, 0
    for part in ([0, 3], [1, 2, 4], [5]):
        loss = objective.build()(model, rows(batch, torch.tensor(part)), 0)
        loss.total.backward()
        total, count = total + loss.total.item(), count + int(loss.count)
    assert (total, count) == (pytest.approx(whole.total.item(), rel=1e-5), int(whole.count))
    torch.testing.assert_close(gradient(model), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("masking", [Uniform(), Glancing()], ids=["uniform", "glancing"])
@pytest.mark.parametrize("length", [LengthClassifier(), CutAtEnd()], ids=["classifier", "cut"])
def test_the_same_seed_hides_the_same(length: Length, masking: Any) -> None:
    model, batch, objective = build(length), pairs(), MaskedPrediction(masking=masking).build()
    totals = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        totals.append(objective(model, batch, 0).total.item())
    assert totals[0] == totals[1] != totals[2]


# ---- CTC -------------------------------------------------------------------------------------------------------------


def test_ctc_is_the_exact_score_of_the_model() -> None:
    model, batch = build(Upsampled(3)), pairs()
    loss = ParallelCTC().build()(model, batch, 0)
    with torch.no_grad():
        memory = model.encode(batch.source, batch.source_mask)
        scored = model.token_log_probs(memory, batch.target, batch.target_mask)
    torch.testing.assert_close(loss.total.detach(), -scored[batch.target_mask].sum())
    assert int(loss.count) == int(batch.target_mask.sum())


def test_targets_without_frames_enough_add_nothing_and_are_counted() -> None:
    model = build(Upsampled(1))
    batch = collate([[4], [4], [4, 5]], [[5, 5], [5, 6], [5, 6, 7, 8]], SYMBOLS, SYMBOLS)
    assert needed(batch).tolist() == [3, 2, 4]
    loss = ParallelCTC().build()(model, batch, 0)
    assert int(loss.metrics["too_long"]) == 2
    alone = ParallelCTC().build()(model, rows(batch, torch.tensor([1])), 0)
    torch.testing.assert_close(loss.total, alone.total)
    loss.total.backward()
    assert gradient(model).isfinite().all()


def test_the_alignment_is_each_frame_s_most_probable_token_over_all_paths() -> None:
    torch.manual_seed(3)
    frames, blank = 5, 6
    log_probs = (torch.randn(2, frames, blank + 1) * 2).log_softmax(-1)
    targets = [[4, 5], [5, 5]]
    batch = collate([[4], [4]], targets, SYMBOLS, SYMBOLS)
    found = align(log_probs, batch, torch.tensor([5, 4]))
    for row, count in ((0, 5), (1, 4)):
        occupied = torch.zeros(count, blank + 1)
        for path in itertools.product(range(blank + 1), repeat=count):
            if [token for token, _ in itertools.groupby(path) if token != blank] == targets[row]:
                weight = log_probs[row, range(count), path].sum().exp()
                occupied[range(count), path] += weight
        assert found[row, :count].tolist() == occupied.argmax(-1).tolist()


def test_glancing_gives_frames_away() -> None:
    model, batch = build(Upsampled(3)), pairs()
    canvases: list[Tensor] = []
    refine = model.refine

    def watched(canvas: Tensor, *rest: Any) -> Tensor:
        canvases.append(canvas)
        logits: Tensor = refine(canvas, *rest)
        return logits

    model.refine = watched
    ParallelCTC(masking=Glancing(first=1.0)).build()(model, batch, 0).total.backward()
    first, second = canvases
    assert (first == UNDECIDED).all()
    told = second != UNDECIDED
    assert told.any()
    assert not told[~batch.source_mask.repeat_interleave(3, dim=1)].any()
    blank_or_gold = (second == V) | (second.unsqueeze(-1) == batch.gold.unsqueeze(1)).any(-1)
    assert blank_or_gold[told].all()


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MaskedPrediction(label_smoothing=1.0), "label_smoothing: expected at least 0 and below 1, got 1.0"),
        (lambda: MaskedPrediction(length_weight=-1.0), "length_weight: expected 0 or more, got -1.0"),
        (lambda: Glancing(first=1.5), "first: expected a share from 0 to 1, got 1.5"),
        (lambda: Glancing(last=-0.5), "last: expected a share from 0 to 1, got -0.5"),
        (lambda: Glancing(steps=0), "steps: expected at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be(make: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text
