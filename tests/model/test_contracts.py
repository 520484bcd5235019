"""Every variant of the model through the same laws: what search, objectives and inspection rely on.

Shapes: B batch, S source length, T target length, H heads, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import pytest
import torch
from model_variants import PARTS, SYMBOLS, D, V, choices, close, covering, ragged, randomised, sentences, transformer
from torch import Tensor

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate, pad_sources
from transduce.model.attention import Attention, Trace
from transduce.model.blocks import PreNorm
from transduce.model.contract import rows
from transduce.model.convolutional import AddedPositions, ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.encoder_decoder import StepwiseDecoder
from transduce.model.norms import BatchNorm, BatchNormOverTokens
from transduce.model.positions import Learned, RelativeBias, Rotary, Sinusoidal
from transduce.model.recurrent import (
    Bahdanau,
    Cell,
    FixedVector,
    RecurrentAttention,
    RecurrentDecoder,
    RecurrentEncoder,
    Summary,
)
from transduce.model.scores import Score, Softmax, Weights
from transduce.model.seq2seq import Decoder, Encoder, Model, Seq2Seq, Tying
from transduce.model.transformer import Matched, Mixed, TransformerDecoder, TransformerEncoder, Wiring
from transduce.objectives import teacher_force
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.search import Search
from transduce.search.settings import Beam, Greedy
from transduce.training.optimizer import Adam, update

# Every kind of encoder with every kind of decoder, whatever they are made of; what a decoder has no place for is left.
CELLS, LOOKS = get_args(Cell), [*choices(RecurrentAttention), FixedVector(every_step=True)]
MIXTURE: dict[str, list[Any]] = {
    "encoder": [
        TransformerEncoder(2, Attention(2), 24),
        *(RecurrentEncoder(2, cell, directions) for cell in CELLS for directions in (1, 2)),
        *(ConvolutionalEncoder(2, kernel, separable=kernel > 3) for kernel in (1, 3, 5)),
    ],
    "decoder": [
        TransformerDecoder(2, Attention(2), 24),
        *(RecurrentDecoder(2, cell, look) for cell in CELLS for look in LOOKS),
        *(ConvolutionalDecoder(2, kernel, separable=kernel > 3) for kernel in (1, 2, 4)),
    ],
    "layers": [1, 2],
    "heads": [1, 4],
    "score": choices(Score),
    "weights": choices(Weights),
    "summary": list(get_args(Summary)),
    "positions": choices(AddedPositions),
    "wiring": choices(Wiring),
    "tie": list(get_args(Tying)),
}


def mixture(pick: Mapping[str, int]) -> Model:
    """The chosen encoder and decoder; only matched layers need as many on both sides."""
    part = {name: MIXTURE[name][number] for name, number in pick.items()}
    encoder, decoder = part["encoder"], part["decoder"]
    if isinstance(getattr(decoder, "attention", None), Attention):
        chosen = {name: part[name] for name in ("heads", "score", "weights")}
        decoder = replace(decoder, attention=replace(decoder.attention, **chosen))
    layers = part["layers"] if isinstance(part["wiring"], Matched) else 3 - part["layers"]

    def made(stack: Any, **chosen: Any) -> Any:
        return replace(stack, **{field.name: chosen[field.name] for field in fields(stack) if field.name in chosen})

    return Model(
        d_model=D,
        dropout=0.0,
        tie=part["tie"],
        encoder=made(encoder, layers=layers, positions=part["positions"]),
        decoder=made(decoder, **{name: part[name] for name in ("layers", "summary", "positions", "wiring")}),
    )


def label(value: Any) -> str:
    """The kind of a part, and of the parts inside that make it differ from others of its kind."""
    if isinstance(value, (TransformerEncoder, TransformerDecoder)):
        return "transformer"
    if isinstance(value, (RecurrentEncoder, RecurrentDecoder)):
        return ".".join(["recurrent", *(label(getattr(value, f.name)) for f in fields(value)[1:3])])
    if isinstance(value, (ConvolutionalEncoder, ConvolutionalDecoder)):
        return f"convolutional{value.kernel}"
    if isinstance(value, FixedVector):
        return f"fixed{int(value.every_step)}"
    return str(value) if isinstance(value, (str, int)) else kind_of(type(value))


def variants() -> Iterator[tuple[str, Model]]:
    """Transformers of every three parts together, all pairs of encoders and decoders, and stacks of uneven shape."""
    for parts, make, strength in ((PARTS, transformer, 3), (MIXTURE, mixture, 2)):
        for pick in covering(parts, strength):
            yield "-".join(label(parts[name][number]) for name, number in pick.items()), make(pick)
    base = transformer(dict.fromkeys(PARTS, 0))
    encoder, decoder = TransformerEncoder(2, Attention(2), 24), TransformerDecoder(2, Attention(2), 24)
    yield "paper", base
    yield "deep-shallow", replace(base, encoder=replace(encoder, layers=5), decoder=replace(decoder, layers=1))
    yield (
        "one-head",
        replace(
            base, encoder=replace(encoder, attention=Attention(1)), decoder=replace(decoder, attention=Attention(1))
        ),
    )
    yield (
        "many-heads",
        replace(
            base, encoder=replace(encoder, attention=Attention(16)), decoder=replace(decoder, attention=Attention(8, 2))
        ),
    )
    uneven = TransformerDecoder(3, Attention(4, 2), 7, "gelu", positions=Rotary(), residual=PreNorm(), wiring=Mixed())
    two_way = RecurrentEncoder(1, "gru")
    yield "luong", replace(base, encoder=two_way, decoder=RecurrentDecoder(1, "gru"))
    yield "bahdanau", replace(base, encoder=two_way, decoder=RecurrentDecoder(1, "gru", Bahdanau()))
    yield "convolutional", replace(base, encoder=ConvolutionalEncoder(2, 3), decoder=ConvolutionalDecoder(2, 3))
    yield "uneven", replace(base, tie="none", decoder=uneven)
    yield "biased", replace(base, output_bias=True)
    yield "unnormed-past", replace(base, decoder=replace(decoder, residual=PreNorm(), unnormed_past=True))


VARIANTS = dict(variants())
TRANSFORMERS = [name for name in VARIANTS if name.split("-")[0] in map(label, PARTS["score"])]


def test_every_kind_is_among_the_variants() -> None:
    stepwise = [kind for kind in get_args(Decoder) if issubclass(kind, StepwiseDecoder)]  # others: test_parallel.py
    assert {type(choice) for choice in MIXTURE["encoder"]} == set(get_args(Encoder))
    assert {type(choice) for choice in MIXTURE["decoder"]} == set(stepwise)
    pairs = {(type(model.encoder), type(model.decoder)) for model in VARIANTS.values()}
    assert pairs == set(itertools.product(get_args(Encoder), stepwise))


@pytest.fixture(params=VARIANTS, scope="module")
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return randomised(VARIANTS[request.param])


@torch.no_grad()
def force(model: Seq2Seq, batch: Batch) -> Tensor:
    return teacher_force(model, batch)


# ---- the laws --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_reading_in_any_chunks_is_teacher_forcing(model: Seq2Seq) -> None:
    batch = ragged()
    whole, start = force(model, batch), model.start(model.encode(batch.source, batch.source_mask))
    for chunks in ([1] * 9, [9], [4, 5], [1, 8], [8, 1], [2, 3, 1, 3]):
        state, logits = start, []
        for tokens in torch.split(batch.inputs, chunks, dim=1):
            read = state.length
            new, state = model.advance(tokens, state)
            assert state.length == read + tokens.size(1)
            logits.append(new)
        close(torch.cat(logits, dim=1), whole)


@torch.no_grad()
def test_a_state_is_not_changed_by_advancing_it(model: Seq2Seq) -> None:
    batch = ragged()
    _, state = model.advance(batch.inputs[:, :3], model.start(model.encode(batch.source, batch.source_mask)))
    first, _ = model.advance(batch.inputs[:, 3:4], state)
    model.advance(batch.inputs[:, 5:7], state)
    assert torch.equal(model.advance(batch.inputs[:, 3:4], state)[0], first)


@torch.no_grad()
def test_later_tokens_change_no_earlier_logits(model: Seq2Seq) -> None:
    batch = ragged()
    start = model.start(model.encode(batch.source, batch.source_mask))
    whole, _ = model.advance(batch.inputs, start)
    for place in range(1, batch.inputs.size(1)):
        other = batch.inputs.clone()
        other[:, place:] = (other[:, place:] + 5) % V
        changed, _ = model.advance(other, start)
        assert torch.equal(changed[:, :place], whole[:, :place])
        assert not torch.equal(changed[:, place], whole[:, place])


def test_more_padding_changes_nothing(model: Seq2Seq) -> None:
    batch = ragged()
    wider = replace(
        batch,
        source=torch.nn.functional.pad(batch.source, (0, 7), value=SYMBOLS.pad),
        source_mask=torch.nn.functional.pad(batch.source_mask, (0, 7), value=False),
        target=torch.nn.functional.pad(batch.target, (0, 3), value=SYMBOLS.pad),
    )
    close(force(model, wider)[:, :-3], force(model, batch))


@torch.no_grad()
def test_what_lies_under_the_mask_is_never_seen(model: Seq2Seq) -> None:
    batch = ragged()
    garbage = batch.source.where(batch.source_mask, torch.randint(0, V, batch.source.shape))
    assert not torch.equal(garbage, batch.source)
    memory, other = (model.encode(source, batch.source_mask) for source in (batch.source, garbage))
    for left, right in zip(memory.layers, other.layers, strict=True):
        assert torch.equal(left[batch.source_mask], right[batch.source_mask])
    assert torch.equal(force(model, replace(batch, source=garbage)), force(model, batch))


def test_a_sentence_alone_is_as_in_its_batch(model: Seq2Seq) -> None:
    """Among them a source of its end symbol only, and a target of one token: batches of one, lengths of one."""
    batch = ragged()
    together = force(model, batch)
    for row in range(len(batch.source)):
        read, written = int(batch.source_mask[row].sum()), int(batch.target_mask[row].sum())
        alone = Batch(
            batch.source[row : row + 1, :read],
            batch.source_mask[row : row + 1, :read],
            batch.target[row : row + 1, : written + 1],
            batch.target_mask[row : row + 1, :written],
        )
        close(force(model, alone)[0], together[row, :written])


@torch.no_grad()
def test_rows_and_advance_commute(model: Seq2Seq) -> None:
    batch, index = ragged(), torch.tensor([3, 0, 0, 4, 2, 3])
    memory = model.encode(batch.source, batch.source_mask)
    state, chosen = model.start(memory), rows(model.start(memory), index)
    from_memory = model.start(rows(memory, index))
    for tokens in torch.split(batch.inputs, [1, 3, 1, 4], dim=1):
        logits, state = model.advance(tokens, state)
        of_rows, chosen = model.advance(tokens[index], chosen)
        of_memory, from_memory = model.advance(tokens[index], from_memory)
        close(of_rows, logits[index])
        close(of_memory, logits[index])
    close(
        model.advance(batch.inputs[index, :1], rows(state, index))[0],
        model.advance(batch.inputs[:, :1], state)[0][index],
    )


def attentions(config: Model) -> Iterator[tuple[str, Attention]]:
    """The attention weights that a trace must hold: none in recurrent encoders, one in recurrent decoders, if any."""
    encoder, decoder = config.encoder, config.decoder
    if isinstance(encoder, TransformerEncoder):
        yield from ((f"encoder.{number}.self", encoder.attention) for number in range(encoder.layers))
    if isinstance(decoder, TransformerDecoder):
        yield from ((f"decoder.{number}.self", decoder.attention) for number in range(decoder.layers))
    if isinstance(decoder.attention, Attention):
        top_alone = isinstance(decoder, RecurrentDecoder)
        for number in range(decoder.layers - 1 if top_alone else 0, decoder.layers):
            yield f"decoder.{number}.cross", decoder.attention


@torch.no_grad()
def test_tracing_changes_nothing_and_shows_attention(model: Seq2Seq, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["model"]
    batch, trace = ragged(), Trace()
    memory = model.encode(batch.source, batch.source_mask, trace)
    logits, _ = model.advance(batch.inputs, model.start(memory), trace)
    close(logits, force(model, batch))

    config = VARIANTS[name]
    (size, target), source = batch.inputs.shape, batch.source.size(1)
    looking = [trace.get(f"decoder.{number}.cross") for number in range(config.decoder.layers)]
    assert config.decoder.cross_heads == tuple(0 if weights is None else weights.size(1) for weights in looking)
    hidden = ~batch.source_mask[:, None, None]  # (B, 1, 1, S)
    ahead = torch.ones(target, target, dtype=torch.bool).triu(1)
    seen: set[str] = set()

    def check(key: str, attention: Attention, queries: int, unseen: Tensor) -> None:
        weights = trace[key]
        assert weights.shape == (size, attention.heads, queries, unseen.size(-1))
        if isinstance(attention.weights, Softmax):
            close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert (weights >= 0).all()
        assert not weights.masked_select(unseen).any()
        seen.add(key)

    for key, attention in attentions(config):
        if key.startswith("encoder"):
            check(key, attention, source, hidden)
        else:
            check(key, attention, target, ahead if key.endswith("self") else hidden)
    for side, layers, length in (
        ("encoder", config.encoder.layers, source),
        ("decoder", config.decoder.layers, target),
    ):
        for number in range(layers):
            assert trace[f"{side}.{number}.out"].shape == (size, length, D)
            seen.add(f"{side}.{number}.out")
    assert trace.keys() == seen


@torch.no_grad()
def test_tracing_step_by_step_shows_the_same_rows(model: Seq2Seq) -> None:
    batch, whole = ragged(), Trace()
    start = model.start(model.encode(batch.source, batch.source_mask))
    model.advance(batch.inputs, start, whole)
    state = start
    for place in range(3):
        trace = Trace()
        _, state = model.advance(batch.inputs[:, place : place + 1], state, trace)
        for name in trace:
            width = place + 1 if name.endswith("self") else None
            close(trace[name], whole[name][..., place : place + 1, :width])


def test_training_is_inference_without_dropout(model: Seq2Seq) -> None:
    """With gradients on a CPU attention is written out, without them the fused kernel runs."""
    batch, before = ragged(), {name: buffer.clone() for name, buffer in model.named_buffers()}
    trained = teacher_force(model.train(), batch)
    assert trained.requires_grad
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.copy_(before[name])
    if not any(isinstance(module, BatchNormOverTokens) for module in model.modules()):  # it trains by the batch's own
        close(trained.detach(), force(model.eval(), batch))
    trained.square().sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    model.zero_grad()


def test_weights_come_back_and_shared_ones_are_there_once(model: Seq2Seq) -> None:
    weights = {name: tensor.clone() for name, tensor in model.weights().items()}
    statistics = [buffer for name, buffer in model.named_buffers() if "running" in name]
    assert sum(tensor.numel() for tensor in weights.values()) == sum(
        tensor.numel() for tensor in {*model.parameters(), *statistics}
    )
    before = force(model, ragged())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not torch.equal(force(model, ragged()), before)
    model.load_weights(weights)
    assert torch.equal(force(model, ragged()), before)


# ---- batching changes no translation ---------------------------------------------------------------------------------

SEARCHES: dict[str, Callable[[], Search]] = {
    "greedy": Greedy().build,
    "beam": Beam(size=4).build,
    "wide-beam": Beam(size=6, length_penalty=1.0).build,
}


@dataclass(frozen=True)
class Pupil:
    """A model that has learned to reverse, mostly, and sentences to reverse."""

    model: Seq2Seq
    sentences: list[list[int]]


# Transformers that learn quickly, named by all their parts: the covering array is another whenever a kind is added.
LEARNERS = (
    "additive-softmax-1-0-True-learned-batch_norm-pre_norm-swiglu-matched-none-2",
    "additive-softmax-0-4-False-learned-batch_norm-pre_norm-geglu-top-all-2",
    "dot-softmax-0-4-True-relative_bias-batch_norm-pre_norm-gelu-mixed-all-2",
)


def of_parts(name: str) -> Model:
    """The Transformer whose parts have these labels."""
    words = zip(PARTS.items(), name.split("-"), strict=True)
    return transformer({part: [*map(label, choices)].index(word) for (part, choices), word in words})


@pytest.fixture(params=["paper", "uneven", "luong", "bahdanau", "convolutional", *LEARNERS], scope="module")
def pupil(request: pytest.FixtureRequest) -> Pupil:
    torch.manual_seed(3)
    config = VARIANTS.get(request.param) or of_parts(request.param)
    config = replace(config, d_model=32)
    model = config.build(V, V, shared=True)
    optimizer, objective = Adam().build(model.parameters()), CrossEntropy(0.1).build()
    for step in range(150):
        read = sentences(32, seed=step)
        batch = collate(read, [line[::-1] for line in read], SYMBOLS, SYMBOLS)
        loss = objective(model, batch, step)
        optimizer.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        update(optimizer, 4e-3 * min(1, (step + 1) / 20), loss.count, clip=1.0)
    return Pupil(model.eval(), sentences(24, seed=1000))


def translate(
    search: Search, model: Seq2Seq, read: list[list[int]], width: int = 0
) -> list[tuple[tuple[int, ...], float]]:
    with torch.no_grad():
        found = search(model, model.encode(*pad_sources(read, SYMBOLS, width)), SYMBOLS)
    return [(hypotheses[0].tokens, hypotheses[0].log_prob) for hypotheses in found]


@pytest.mark.parametrize("name", SEARCHES)
def test_batching_changes_no_translation(pupil: Pupil, name: str) -> None:
    search, read = SEARCHES[name](), pupil.sentences
    alone = [translate(search, pupil.model, [sentence])[0] for sentence in read]
    right = sum(tokens == tuple(reversed(sentence)) for (tokens, _), sentence in zip(alone, read, strict=True))
    assert right >= len(read) // 4, "the model has learned too little for this test to mean much"
    order = torch.randperm(len(read), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = translate(search, pupil.model, [read[i] for i in order])
    for batched in (
        translate(search, pupil.model, read),
        translate(search, pupil.model, read, width=20),
        [shuffled[order.index(i)] for i in range(len(read))],
    ):
        assert [tokens for tokens, _ in batched] == [tokens for tokens, _ in alone]
        assert [log_prob for _, log_prob in batched] == pytest.approx([log_prob for _, log_prob in alone], abs=1e-4)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TransformerEncoder(layers=0), "layers: expected at least 1, got 0"),
        (lambda: Attention(heads=-1), "heads: expected at least 1, got -1"),
        (lambda: Attention(8, key_heads=3), "key_heads: expected a divisor of heads = 8, or 0, got 3"),
        (lambda: Attention(8, key_heads=-2), "key_heads: expected a divisor of heads = 8, or 0, got -2"),
        (lambda: Attention(8, key_width=-2), "key_width: expected at least 1, or 0 for d_model / heads, got -2"),
        (lambda: TransformerEncoder(d_ff=0), "d_ff: expected at least 1, got 0"),
        (lambda: Attention(dropout=1.0), "dropout: expected at least 0 and below 1, got 1.0"),
        (
            lambda: TransformerDecoder(activation_dropout=-0.1),
            "activation_dropout: expected at least 0 and below 1, got -0.1",
        ),
        (lambda: Learned(longest=0), "longest: expected at least 1, got 0"),
        (lambda: Rotary(base=1.0), "base: expected a number above 1, got 1.0"),
        (lambda: Sinusoidal(base=0.5), "base: expected a number above 1, got 0.5"),
        (
            lambda: TransformerDecoder(unnormed_past=True),
            "unnormed_past: expected false, since it needs residual 'pre_norm' and weights 'softmax'",
        ),
        (
            lambda: Model(d_model=24, encoder=TransformerEncoder(positions=Rotary())),
            "encoder.positions: 'rotary' rotates pairs, and a head is 3 wide; make it even",
        ),
        (lambda: RelativeBias(buckets=3), "buckets: expected an even number of at least 4, got 3"),
        (lambda: RelativeBias(32, farthest=16), "farthest: expected more than half of buckets = 32, got 16"),
        (lambda: BatchNorm(momentum=0.0), "momentum: expected a number above 0 and at most 1, got 0.0"),
        (
            lambda: Model(d_model=64, encoder=TransformerEncoder(5), decoder=TransformerDecoder(2, wiring=Matched())),
            "decoder.wiring: 'matched' needs as many encoder layers as decoder layers, got 5 and 2; use top or mixed,"
            " or make them equal",
        ),
        (lambda: Model(d_model=0), "d_model: expected at least 1, got 0"),
        (lambda: Model(dropout=1.0), "dropout: expected at least 0 and below 1, got 1.0"),
        (lambda: Model(d_model=100), "encoder.attention.heads: 8 heads do not divide d_model = 100; choose a divisor"),
        (
            lambda: Model(d_model=64, decoder=TransformerDecoder(attention=Attention(3))),
            "decoder.attention.heads: 3 heads do not divide d_model = 64; choose a divisor",
        ),
        (
            lambda: Model(d_model=16).build(20, 30, shared=False),
            "model.tie: 'all' needs one vocabulary for both sides, and the corpus has two;"
            " use model.tie=target, or prepare with tokenizer.shared=true",
        ),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text


def test_a_sequence_longer_than_its_learned_positions() -> None:
    model = transformer(dict.fromkeys(PARTS, 0) | {"positions": 1}).build(V, V, shared=True)
    memory = model.encode(torch.ones(1, 40, dtype=torch.int64), torch.ones(1, 40, dtype=torch.bool))
    _, state = model.advance(torch.ones(1, 40, dtype=torch.int64), model.start(memory))
    with pytest.raises(ConfigError) as error:
        model.advance(torch.ones(1, 1, dtype=torch.int64), state)
    assert str(error.value) == (
        "positions.longest: a sequence has 41 tokens, and positions are learned for 40; split the text, or train"
        " with a larger 'longest'"
    )


def test_sinusoids_have_no_longest_sequence() -> None:
    model = VARIANTS["paper"].build(V, V, shared=True).eval()
    tokens = torch.randint(4, V, (1, 1500), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        long = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert long.layers[-1].isfinite().all()


def test_two_vocabularies_and_which_matrices_are_shared() -> None:
    model = replace(VARIANTS["one-head"], tie="target").build(20, 30, shared=False)
    assert model.source_embedding.weight.shape == (20, 16)
    assert model.target_embedding is model.output_embedding
    logits, _ = model.advance(
        torch.ones(2, 3, dtype=torch.int64), model.start(model.encode(*pad_sources([[4], [5]], SYMBOLS)))
    )
    assert logits.shape == (2, 3, 30)
    separate = replace(VARIANTS["one-head"], tie="none").build(20, 20, shared=True)
    matrices = {separate.source_embedding, separate.target_embedding, separate.output_embedding}
    assert len(matrices) == 3
    together = VARIANTS["one-head"].build(20, 20, shared=True)
    assert together.source_embedding is together.target_embedding is together.output_embedding


def test_weights_of_another_model_are_refused() -> None:
    one, other = VARIANTS["one-head"].build(V, V, shared=True), VARIANTS["deep-shallow"].build(V, V, shared=True)
    with pytest.raises(ValueError, match=r"weights do not fit the model: .*decoder\.layers\.1\.attention"):
        one.load_weights(other.weights())
