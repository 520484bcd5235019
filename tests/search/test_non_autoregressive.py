"""Mask-predict and CTC against plain programs for one sentence, alone and in batches, with and without a beginning."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.core.errors import ConfigError
from transduce.data.batch import collate, pad_sources
from transduce.model.attention import Attention
from transduce.model.contract import UNDECIDED
from transduce.model.parallel import CutAtEnd, Length, LengthClassifier, ParallelDecoder, Upsampled
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerEncoder
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, CancelToken, DecodingConstraints
from transduce.search.non_autoregressive import collapse
from transduce.search.settings import CTCCollapse, MaskPredict
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 9
SOURCES = [[4, 5, 6, 7, 8], [5], [8, 7, 6], [4, 4, 5, 8, 8, 7, 6], []]


def build(length: Length, vocabulary: int = V) -> Any:
    """A model with large random weights, so that what it says is sure and mixed."""
    torch.manual_seed(4)
    decoder = ParallelDecoder(2, Attention(2), 24, length=length)
    model = Model(16, 0.0, encoder=TransformerEncoder(1, Attention(2), 24), decoder=decoder).build(
        vocabulary, vocabulary, shared=True
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    return model.eval().double()


@torch.no_grad()
def find(search: Any, model: Any, sources: list[list[int]], constraints: Any = None) -> list[list[Hypothesis]]:
    memory = model.encode(*pad_sources(sources, SYMBOLS))
    found: list[list[Hypothesis]] = search.build()(model, memory, SYMBOLS, constraints)
    return found


@torch.no_grad()
def by_hand(settings: MaskPredict, model: Any, source: list[int], prefix: tuple[int, ...] = ()) -> Any:
    """(tokens, log-probabilities of them and the end) of every length candidate, best first: the paper, in lists."""
    memory = model.encode(*pad_sources([source], SYMBOLS))
    lengths = model.lengths(memory)[0].tolist()
    likeliest = sorted((n for n, p in enumerate(lengths) if p > -math.inf), key=lambda n: -lengths[n])
    found = []
    for wanted in likeliest[: settings.length_candidates]:
        length = max(wanted, len(prefix))

        def read(tokens: list[int]) -> Tensor:
            canvas = torch.tensor([[*tokens, SYMBOLS.eos]])
            log_probs: Tensor = model.refine(canvas, torch.ones_like(canvas, dtype=torch.bool), memory)
            return log_probs[0].float().log_softmax(-1)

        tokens = [*prefix, *[UNDECIDED] * (length - len(prefix))]
        empty = read([UNDECIDED] * length)
        sure = [float(empty[place, token]) for place, token in enumerate(prefix)] + [0.0] * (length - len(prefix))
        writable = list(range(len(prefix), length))
        for iteration in range(settings.iterations):
            count = len(writable) * (settings.iterations - iteration) // settings.iterations
            again = sorted(writable, key=lambda place: sure[place])[:count] if iteration else writable
            for place in again:
                tokens[place] = UNDECIDED
            log_probs = read(tokens)
            for place in again:
                choices = [token for token in range(V) if token not in SYMBOLS.never]
                tokens[place] = max(choices, key=lambda token: float(log_probs[place, token]))
                sure[place] = float(log_probs[place, tokens[place]])
        written = [*tokens, SYMBOLS.eos]
        end = written.index(SYMBOLS.eos)
        parts = [*sure, 0.0][: end + 1]
        parts[end] += lengths[wanted]
        found.append((tuple(written[:end]), parts))
    return sorted(found, key=lambda one: -sum(one[1]) / len(one[1]))


@pytest.mark.parametrize("length", [LengthClassifier(reach=3), CutAtEnd(1.0, 2)], ids=["classifier", "cut"])
@pytest.mark.parametrize("settings", [MaskPredict(1, 1), MaskPredict(4, 3, 3), MaskPredict(10, 5)], ids=str)
def test_mask_predict_is_the_paper_s_and_the_batch_changes_nothing(length: Length, settings: MaskPredict) -> None:
    model = build(length)
    together = find(settings, model, SOURCES)
    for source, batched in zip(SOURCES, together, strict=True):
        (alone,) = find(settings, model, [source])
        expected = by_hand(settings, model, source)[: settings.n_best]
        for found in (alone, batched):
            assert [one.tokens for one in found] == [tokens for tokens, _ in expected]
            for one, (_, parts) in zip(found, expected, strict=True):
                assert one.token_log_probs == pytest.approx(parts, abs=1e-4)
                assert one.log_prob == pytest.approx(sum(one.token_log_probs))
                assert one.score == pytest.approx(one.log_prob / len(one.token_log_probs))
                assert one.finished


@pytest.mark.parametrize("length", [LengthClassifier(reach=3), CutAtEnd(1.0, 2)], ids=["classifier", "cut"])
def test_a_forced_beginning_stays(length: Length) -> None:
    model, settings = build(length), MaskPredict(4, 3)
    prefixes = [(8, 8), (), (5,), (4, 5, 6), (7, 7, 7, 7, 7, 7, 7, 7)]
    together = find(settings, model, SOURCES, [DecodingConstraints(prefix=prefix) for prefix in prefixes])
    for source, prefix, (found, *_) in zip(SOURCES, prefixes, together, strict=True):
        tokens, parts = by_hand(settings, model, source, prefix)[0]
        assert found.tokens[: len(prefix)] == prefix
        assert found.tokens == tokens
        assert found.token_log_probs == pytest.approx(parts, abs=1e-4)


def test_one_pass_finds_what_scoring_finds() -> None:
    """With one iteration the log-probability of a translation is the one that scoring gives it."""
    for length in (LengthClassifier(reach=3), CutAtEnd(1.0, 2)):
        model = build(length)
        found = [one for one, *_ in find(MaskPredict(1, 1), model, SOURCES)]
        batch = collate(SOURCES, [one.tokens for one in found], SYMBOLS, SYMBOLS)
        with torch.no_grad():
            memory = model.encode(batch.source, batch.source_mask)
            scored = model.token_log_probs(memory, batch.target, batch.target_mask)
        for one, row in zip(found, scored.tolist(), strict=True):
            assert row[: len(one.token_log_probs)] == pytest.approx(one.token_log_probs, abs=1e-4)


# ---- CTC -------------------------------------------------------------------------------------------------------------


def test_collapsing_a_path() -> None:
    blank = 9
    found = collapse([9, 4, 4, 9, 4, 5, 9, 9], [-1.0, -2.0, -4.0, -8.0, -16.0, -32.0, -64.0, -128.0], blank)
    assert found.tokens == (4, 4, 5)
    assert found.token_log_probs == (-3.0, -28.0, -32.0, -192.0)
    assert found.log_prob == found.score == -255.0
    assert collapse([9, 9], [-1.0, -1.0], blank).tokens == ()


@torch.no_grad()
def test_ctc_says_the_best_path_and_the_batch_changes_nothing() -> None:
    model = build(Upsampled(3))
    together = find(CTCCollapse(), model, SOURCES)
    for source, (batched,) in zip(SOURCES, together, strict=True):
        ((alone,),) = find(CTCCollapse(), model, [source])
        assert batched.tokens == alone.tokens
        assert batched.token_log_probs == pytest.approx(alone.token_log_probs, abs=1e-4)
        memory = model.encode(*pad_sources([source], SYMBOLS))
        canvas = torch.full((1, 3 * (len(source) + 1)), UNDECIDED)
        log_probs = model.refine(canvas, torch.ones_like(canvas, dtype=torch.bool), memory)[0].log_softmax(-1)
        log_probs[:, [*SYMBOLS.never, SYMBOLS.eos]] = -torch.inf
        best = log_probs.max(-1)
        assert alone.tokens == tuple(token for token, _ in itertools.groupby(best.indices.tolist()) if token != V)
        assert alone.log_prob == pytest.approx(float(best.values.sum()), abs=1e-4)


@torch.no_grad()
def test_prefix_beam_search_finds_the_most_probable_translations() -> None:
    """With a beam wide enough for every beginning of a tiny vocabulary: against all translations, scored."""
    vocabulary = 6  # 4 and 5 may be written
    model = build(Upsampled(2), vocabulary)
    (found,) = find(CTCCollapse(size=60, n_best=5), model, [[4, 5]])
    every = [list(tokens) for n in range(7) for tokens in itertools.product((4, 5), repeat=n)]
    batch = collate([[4, 5]] * len(every), every, SYMBOLS, SYMBOLS)
    scored = model.token_log_probs(model.encode(batch.source, batch.source_mask), batch.target, batch.target_mask)
    totals = scored.where(batch.target_mask, torch.zeros(())).sum(1).tolist()
    expected = sorted(zip(totals, every, strict=True), reverse=True)[:5]
    assert [list(one.tokens) for one in found] == [tokens for _, tokens in expected]
    assert [one.log_prob for one in found] == pytest.approx([total for total, _ in expected], abs=1e-4)
    assert all(one.score == one.log_prob == pytest.approx(sum(one.token_log_probs)) for one in found)


def test_a_wider_beam_is_no_worse_and_the_batch_changes_nothing() -> None:
    model = build(Upsampled(2))
    together = find(CTCCollapse(size=4), model, SOURCES)
    for source, (wide,), (path,) in zip(SOURCES, together, find(CTCCollapse(), model, SOURCES), strict=True):
        assert wide.log_prob >= path.log_prob - 1e-4
        assert find(CTCCollapse(size=4), model, [source])[0][0].tokens == wide.tokens


@pytest.mark.parametrize(
    "constraint",
    [DecodingConstraints(prefix=(4,)), DecodingConstraints(include=(((4,),),)), DecodingConstraints(exclude=((4,),))],
    ids=str,
)
def test_ctc_cannot_be_told_what_to_say(constraint: DecodingConstraints) -> None:
    with pytest.raises(ConfigError) as error:
        find(CTCCollapse(), build(Upsampled()), SOURCES[:2], [UNCONSTRAINED, constraint])
    assert str(error.value) == (
        "prefixes, include, exclude: a CTC decoder places its tokens on frames freely and cannot be"
        " constrained; use a model that decodes token by token"
    )


def test_a_cancel_token_is_no_constraint_on_words() -> None:
    """A server has it for every text."""
    model = build(Upsampled())
    stops = [DecodingConstraints(cancel_token=CancelToken()) for _ in SOURCES]
    assert find(CTCCollapse(), model, SOURCES, stops) == find(CTCCollapse(), model, SOURCES)


@pytest.mark.parametrize(
    "constraint", [DecodingConstraints(include=(((4,),),)), DecodingConstraints(exclude=((4,),))], ids=str
)
def test_mask_predict_promises_nothing_about_words(constraint: DecodingConstraints) -> None:
    with pytest.raises(ConfigError) as error:
        find(MaskPredict(), build(LengthClassifier()), SOURCES[:2], [UNCONSTRAINED, constraint])
    assert str(error.value) == (
        "include, exclude: a non-autoregressive search cannot guarantee single words; use a model that"
        " decodes token by token"
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MaskPredict(iterations=0), "iterations: expected an integer from 1 to 1,000, got 0"),
        (lambda: MaskPredict(length_candidates=0), "length_candidates: expected an integer of at least 1, got 0"),
        (
            lambda: MaskPredict(n_best=6),
            "n_best: expected an integer from 1 to length_candidates (5); raise those for more, got 6",
        ),
        (lambda: CTCCollapse(size=0), "size: expected an integer of at least 1, got 0"),
        (
            lambda: CTCCollapse(size=2, n_best=3),
            "n_best: expected an integer from 1 to the number of prefixes, size = 2, got 3",
        ),
    ],
)
def test_settings_that_cannot_be(make: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text
