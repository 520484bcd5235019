"""Non-autoregressive decoders, through the laws that decoding and objectives rely on.

Shapes: B batch, S source length, C places of a canvas, H heads, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from model_variants import PARTS, SYMBOLS, D, V, close, covering, ragged, randomised
from torch import Tensor
from torch.nn import functional as F

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate, pad_sources
from transduce.model.attention import Attention, Trace
from transduce.model.contract import UNDECIDED, Memory, rows
from transduce.model.convolutional import ConvolutionalEncoder
from transduce.model.norms import BatchNormOverTokens
from transduce.model.parallel import CutAtEnd, LengthClassifier, ParallelDecoder, Upsampled
from transduce.model.recurrent import RecurrentEncoder
from transduce.model.scores import Softmax
from transduce.model.seq2seq import Model
from transduce.model.transformer import Matched, TransformerEncoder

LENGTHS = [LengthClassifier(reach=6, ratio=0.8), CutAtEnd(1.3, 2), Upsampled(2)]
ENCODERS = [TransformerEncoder(2), RecurrentEncoder(2, "gru"), ConvolutionalEncoder(2, 3)]
ALL_PARTS: dict[str, list[Any]] = {**PARTS, "length": LENGTHS, "encoder": ENCODERS}


def parallel(pick: Mapping[str, int]) -> Model:
    """The model made of the chosen parts."""
    part = {name: ALL_PARTS[name][number] for name, number in pick.items()}
    attention = Attention(2, *(part[name] for name in ("key_heads", "key_width", "score", "weights", "query_key_norm")))
    shared = {name: part[name] for name in ("positions", "norm", "residual", "activation", "window")}
    transformer = isinstance(part["encoder"], TransformerEncoder)
    return Model(
        d_model=D,
        dropout=0.0,
        tie=part["tie"],
        encoder=TransformerEncoder(2, attention, 24, **shared) if transformer else part["encoder"],
        decoder=ParallelDecoder(2, attention, 24, **shared, wiring=part["wiring"], length=part["length"]),
    )


def variants() -> Iterator[tuple[str, Model]]:
    """Every two parts together."""
    for pick in covering(ALL_PARTS, strength=2):
        values = [ALL_PARTS[name][number] for name, number in pick.items()]
        yield "-".join(str(v) if isinstance(v, (str, int)) else kind_of(type(v)) for v in values), parallel(pick)


VARIANTS = dict(variants())


@dataclass(frozen=True)
class Scene:
    """A model, a batch it has read, and a canvas half written upon."""

    config: Model
    model: Any
    batch: Batch
    memory: Memory
    canvas: Tensor
    mask: Tensor

    def refine(self) -> Tensor:
        logits: Tensor = self.model.refine(self.canvas, self.mask, self.memory)
        return logits


@pytest.fixture(params=VARIANTS, scope="module")
def scene(request: pytest.FixtureRequest) -> Scene:
    config = VARIANTS[request.param]
    model = randomised(config)
    batch = ragged()
    with torch.no_grad():
        memory = model.encode(batch.source, batch.source_mask)
        places = model.lengths(memory).argmax(1)
    if config.decoder.offers == "parallel":  # any canvas will do
        places = torch.tensor([5, 2, 7, 1, 4])
    mask = torch.arange(int(places.max())) < places[:, None]
    generator = torch.Generator().manual_seed(5)
    canvas = torch.randint(4, V, mask.shape, generator=generator)
    return Scene(config, model, batch, memory, canvas.masked_fill(canvas % 2 == 0, UNDECIDED), mask)


# ---- the laws --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_what_lies_under_the_mask_is_never_seen(scene: Scene) -> None:
    garbage = scene.canvas.where(scene.mask, torch.randint(0, V, scene.canvas.shape))
    whole = scene.refine()
    assert torch.equal(scene.model.refine(garbage, scene.mask, scene.memory)[scene.mask], whole[scene.mask])
    source = scene.batch.source.where(scene.batch.source_mask, torch.randint(0, V, scene.batch.source.shape))
    memory = scene.model.encode(source, scene.batch.source_mask)
    assert torch.equal(scene.model.refine(scene.canvas, scene.mask, memory)[scene.mask], whole[scene.mask])


@torch.no_grad()
def test_more_padding_changes_nothing(scene: Scene) -> None:
    batch = scene.batch
    memory = scene.model.encode(F.pad(batch.source, (0, 7)), F.pad(batch.source_mask, (0, 7)))
    canvas, mask = F.pad(scene.canvas, (0, 3), value=UNDECIDED), F.pad(scene.mask, (0, 3))
    wider = scene.model.refine(canvas, mask, memory)[:, : scene.mask.size(1)]
    close(wider[scene.mask], scene.refine()[scene.mask])
    known, padded = scene.model.lengths(scene.memory), scene.model.lengths(memory)
    close(padded[:, : known.size(1)], known)
    assert (padded[:, known.size(1) :] == -torch.inf).all()
    target, target_mask = F.pad(batch.target, (0, 2)), F.pad(batch.target_mask, (0, 2))
    scored = scene.model.token_log_probs(scene.memory, batch.target, batch.target_mask)
    again = scene.model.token_log_probs(memory, target, target_mask)[:, :-2]
    torch.testing.assert_close(again[batch.target_mask], scored[batch.target_mask], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_sentence_alone_is_as_in_its_batch_and_rows_commute(scene: Scene) -> None:
    index = torch.tensor([3, 0, 0, 4, 2, 3])
    whole, lengths = scene.refine(), scene.model.lengths(scene.memory)
    chosen = scene.model.refine(scene.canvas[index], scene.mask[index], rows(scene.memory, index))
    close(chosen[scene.mask[index]], whole[index][scene.mask[index]])
    close(scene.model.lengths(rows(scene.memory, index)), lengths[index])
    for row in range(len(whole)):
        real, places = int(scene.batch.source_mask[row].sum()), int(scene.mask[row].sum())
        source = scene.batch.source[row : row + 1, :real]
        memory = scene.model.encode(source, torch.ones_like(source, dtype=torch.bool))
        canvas = scene.canvas[row : row + 1, :places]
        alone = scene.model.refine(canvas, torch.ones_like(canvas, dtype=torch.bool), memory)
        close(alone[0], whole[row, :places])


@torch.no_grad()
def test_tracing_changes_nothing_and_shows_where_each_place_looks(scene: Scene) -> None:
    trace: Trace = {}
    memory = scene.model.encode(scene.batch.source, scene.batch.source_mask, trace)
    traced = scene.model.refine(scene.canvas, scene.mask, memory, trace)
    close(traced[scene.mask], scene.refine()[scene.mask])  # what padding sees in a window is nobody's business
    (size, places), source = scene.canvas.shape, scene.batch.source.size(1)
    config, real = scene.config, scene.batch.source_mask
    attentive = config.encoder.layers if isinstance(config.encoder, TransformerEncoder) else 0
    expected = {f"encoder.{layer}.self": (source, real) for layer in range(attentive)}
    for layer in range(config.decoder.layers):
        expected |= {f"decoder.{layer}.self": (places, scene.mask), f"decoder.{layer}.cross": (places, real)}
    assert {name for name in trace if not name.endswith(".out")} == expected.keys()
    softmax = isinstance(config.decoder.attention.weights, Softmax)
    for name, (queries, seen) in expected.items():
        weights = trace[name]
        assert weights.shape == (size, 2, queries, seen.size(1))
        assert not weights.masked_select(~seen[:, None, None]).any()
        if softmax:
            close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    if softmax:
        assert trace["decoder.0.self"][0].triu(1).any(), "no place looks ahead"


@torch.no_grad()
def test_scoring_traces_where_each_token_looks(scene: Scene) -> None:
    """With CTC too, where rows of frames become rows of tokens."""
    trace: Trace = {}
    batch = scene.batch
    scored = scene.model.token_log_probs(scene.memory, batch.target, batch.target_mask, trace)
    last = torch.arange(batch.gold.size(1)) == batch.target_mask.sum(1, keepdim=True) - 1  # frames may not say the end
    untraced = scene.model.token_log_probs(scene.memory, batch.target, batch.target_mask)
    possible = batch.target_mask & (scored > -torch.inf).cummin(1).values
    torch.testing.assert_close(scored[possible], untraced[possible], atol=1e-5, rtol=1e-5)
    for layer in range(scene.config.decoder.layers):
        weights = trace[f"decoder.{layer}.cross"]
        assert weights.size(1) == scene.config.decoder.cross_heads[layer]
        assert weights.size(2) >= batch.gold.size(1)
        assert not weights.masked_select(~batch.source_mask[:, None, None]).any()
        if isinstance(scene.config.decoder.attention.weights, Softmax):
            sums = weights.sum(-1).amin(1)[:, : batch.gold.size(1)]  # (B, T)
            close(sums[possible & ~last], torch.ones_like(sums[possible & ~last]))


@torch.no_grad()
def test_undecided_and_decided_places_are_distinguished(scene: Scene) -> None:
    blank = scene.model.refine(torch.full_like(scene.canvas, UNDECIDED), scene.mask, scene.memory)
    assert blank[scene.mask].isfinite().all()
    assert not torch.equal(blank[scene.mask], scene.refine()[scene.mask])
    nowhere = scene.model.refine(scene.canvas, torch.zeros_like(scene.mask), scene.memory)  # as rows that only pad are
    assert nowhere.isfinite().all()


@torch.no_grad()
def test_lengths_are_probabilities(scene: Scene) -> None:
    lengths = scene.model.lengths(scene.memory)
    assert lengths.double().exp().sum(1).tolist() == pytest.approx([1.0] * len(lengths), abs=1e-6)


def test_every_weight_is_trained(scene: Scene) -> None:
    model, batch = scene.model, scene.batch
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
    memory = model.train().encode(batch.source, batch.source_mask)
    logits = model.refine(scene.canvas, scene.mask, memory)
    if not any(isinstance(module, BatchNormOverTokens) for module in model.modules()):
        close(logits.detach()[scene.mask], scene.refine()[scene.mask].detach())
    total = logits[scene.mask].square().sum()
    if scene.config.decoder.offers == "parallel":
        total = total - model.build_canvas(memory, batch.gold, batch.target_mask).log_prob.sum()
    total.backward()
    for name, parameter in model.named_parameters():
        unread = name == "blank.weight" and not (scene.canvas == V).any()  # still read as an output
        assert unread or parameter.grad is not None, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    model.zero_grad()
    with torch.no_grad():
        for name, buffer in model.eval().named_buffers():
            if name in before:
                buffer.copy_(before[name])


@torch.no_grad()
def test_weights_come_back(scene: Scene) -> None:
    weights = {name: tensor.clone() for name, tensor in scene.model.weights().items()}
    before, lengths = scene.refine(), scene.model.lengths(scene.memory)
    for parameter in scene.model.parameters():
        parameter.zero_()
    assert not torch.equal(scene.refine(), before)
    scene.model.load_weights(weights)
    assert torch.equal(scene.refine(), before)
    assert torch.equal(scene.model.lengths(scene.memory), lengths)


# ---- scores are probabilities ----------------------------------------------------------------------------------------


def small(length: Any) -> Model:
    attention = Attention(2)
    return Model(
        d_model=8,
        dropout=0.0,
        encoder=TransformerEncoder(1, attention, 8),
        decoder=ParallelDecoder(1, attention, 8, length=length),
    )


@torch.no_grad()
@pytest.mark.parametrize(
    ("length", "longest"), [(CutAtEnd(1.0, 1), 3), (LengthClassifier(reach=2), 3), (Upsampled(2), 4)], ids=str
)
def test_all_translations_together_are_certain(length: Any, longest: int) -> None:
    """Every sequence of tokens without the end symbol, as long as there are places, scored: probabilities sum to 1.

    The classifier's canvas may hold end symbols too, so that there every sequence is taken of each length.
    """
    torch.manual_seed(1)
    vocabulary = 4
    model = small(length).build(vocabulary, vocabulary, shared=True).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) / 2)
    ends = isinstance(length, (CutAtEnd, Upsampled))
    words = [token for token in range(vocabulary) if not ends or token != SYMBOLS.eos]
    targets = [list(target) for n in range(longest + 1) for target in itertools.product(words, repeat=n)]
    if isinstance(length, Upsampled):  # frames may say the end symbol's number like any other
        targets = [list(t) for n in range(longest + 1) for t in itertools.product(range(vocabulary), repeat=n)]
    batch = collate([[2]] * len(targets), targets, SYMBOLS, SYMBOLS)
    scored = model.token_log_probs(model.encode(batch.source, batch.source_mask), batch.target, batch.target_mask)
    totals = scored.double().where(batch.target_mask, torch.zeros(())).sum(1).exp()
    assert float(totals.sum()) == pytest.approx(1.0, abs=1e-5)
    assert scored[batch.target_mask].max() <= 1e-5


@torch.no_grad()
def test_one_token_no_token_and_a_target_out_of_reach() -> None:
    for length in (LengthClassifier(reach=2), CutAtEnd(0.5, 0)):
        model = small(length).build(V, V, shared=True).eval()
        batch = collate([[], [4]], [[], [5] * 9], SYMBOLS, SYMBOLS)
        memory = model.encode(batch.source, batch.source_mask)
        canvas = model.build_canvas(memory, batch.gold, batch.target_mask)  # type: ignore[operator]
        assert canvas.open.sum(1).tolist() == [0, 9]
        assert canvas.mask.sum(1).tolist() == [1, 10]
        scored = model.token_log_probs(memory, batch.target, batch.target_mask)
        assert scored[batch.target_mask].isfinite().all()
    tight = small(Upsampled(1)).build(V, V, shared=True).eval()
    batch = collate([[4], [4]], [[5, 5], [5, 6]], SYMBOLS, SYMBOLS)  # two frames: no room for a blank between
    scored = tight.token_log_probs(tight.encode(batch.source, batch.source_mask), batch.target, batch.target_mask)
    assert scored[0].tolist()[1:] == [-torch.inf, 0.0]
    assert scored[1].isfinite().all()


@torch.no_grad()
def test_a_canvas_that_is_cut_is_filled_with_end_symbols() -> None:
    model = small(CutAtEnd(1.5, 2)).build(V, V, shared=True).eval()
    batch = collate([[4, 5, 6], [7]], [[8, 9], [9, 8, 7, 6]], SYMBOLS, SYMBOLS)
    canvas = model.build_canvas(model.encode(batch.source, batch.source_mask), batch.gold, batch.target_mask)  # type: ignore[operator]
    assert canvas.open.sum(1).tolist() == [8, 5]
    assert canvas.gold[0, :9].tolist() == [8, 9, *[SYMBOLS.eos] * 7]
    assert canvas.gold[1, :6].tolist() == [9, 8, 7, 6, SYMBOLS.eos, SYMBOLS.eos]
    assert canvas.mask.sum(1).tolist() == [9, 6]


def test_settings_that_cannot_be() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: LengthClassifier(reach=0), "reach: expected at least 1, got 0"),
        (lambda: LengthClassifier(ratio=0.0), "ratio: expected a number above 0, got 0.0"),
        (lambda: CutAtEnd(ratio=-1.0), "ratio: expected a number above 0, got -1.0"),
        (lambda: CutAtEnd(extra=-1), "extra: expected 0 or more, got -1"),
        (lambda: Upsampled(factor=0), "factor: expected at least 1, got 0"),
        (
            lambda: Model(encoder=TransformerEncoder(5), decoder=ParallelDecoder(2, wiring=Matched())),
            "decoder.wiring: 'matched' needs as many encoder layers as decoder layers, got 5 and 2; use top or mixed,"
            " or make them equal",
        ),
    ]
    for make, text in cases:
        with pytest.raises(ConfigError) as error:
            make()
        assert str(error.value) == text


@torch.no_grad()
def test_rounding_of_ratios_is_the_same_for_widths_and_places() -> None:
    model = small(CutAtEnd(2.3, 0)).build(V, V, shared=True).eval()
    memory = model.encode(*pad_sources([[4] * 9], SYMBOLS))  # 2.3 * 10 is less than 23 in binary
    assert model.lengths(memory).argmax(1).tolist() == [int(2.3 * 10)]  # type: ignore[operator]
