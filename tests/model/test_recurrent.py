"""Recurrent models against torch.nn with packed sequences, against loops and formulas written here, and trained.

Shapes: B batch, S source length, T target length, D d_model, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import toys
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import transduce
from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.model.attention import Trace
from transduce.model.contract import Memory
from transduce.model.recurrent import (
    Bahdanau,
    Cell,
    FixedVector,
    Luong,
    RecurrentAttention,
    RecurrentDecoder,
    RecurrentEncoder,
    RecurrentStack,
    Summary,
    reversal,
    summarise,
)
from transduce.model.scores import Additive, Bilinear, Dot, Score
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerEncoder

D = 8
LENGTHS = torch.tensor([5, 1, 7, 3])
MASK = torch.arange(7) < LENGTHS.unsqueeze(1)
CELLS: tuple[Cell, ...] = get_args(Cell)
ORACLES: dict[Cell, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "elman": nn.RNN}


def sources(seed: int = 1) -> Tensor:
    return torch.randn(4, 7, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)


# ---- the encoder -----------------------------------------------------------------------------------------------------


def packed(encoder: nn.Module, cell: Cell, layers: int, x: Tensor, two_way: bool) -> Tensor:
    """The encoder's weights in one torch.nn module of all layers, run over packed sequences."""
    oracle = ORACLES[cell](D, D // (1 + two_way), layers, batch_first=True, bidirectional=two_way).double()
    weights = dict(encoder.named_parameters())
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            layer = name.removesuffix("_reverse").split("_l")[1]
            way = "backwards" if name.endswith("_reverse") else "forwards"
            own = name.removesuffix("_reverse").removesuffix(layer) + "0"
            parameter.copy_(weights.pop(f"{way}.{layer}.cells.{own}"))
        assert not weights
        out, _ = oracle(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(out, batch_first=True)[0]


@torch.no_grad()
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_the_encoder_is_torchs_over_packed_sequences(cell: Cell, layers: int, directions: Any) -> None:
    encoder = RecurrentEncoder(layers, cell, directions).build(D, 0.0).double()
    memory = encoder(sources(), MASK)
    assert len(memory.layers) == layers
    oracle = packed(encoder, cell, layers, sources(), directions == 2)
    close(memory.layers[-1][MASK], oracle[MASK])


def test_rows_are_turned_within_their_lengths() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
    assert reversal(mask).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]]


@torch.no_grad()
def test_every_place_sees_what_its_directions_let_it() -> None:
    """A one-way state knows the words up to its own, a two-way one all; the path is as long as they are apart."""
    x, other = sources(), sources()
    other[:, 2] += 1
    for directions, changed in ((1, [False, False, True, True, True]), (2, [True] * 5)):
        encoder = RecurrentEncoder(1, "gru", directions).build(D, 0.0).double()
        left, right = (encoder(each, MASK).layers[-1][0, :5] for each in (x, other))
        assert (left != right).any(-1).tolist() == changed


# ---- the decoder -----------------------------------------------------------------------------------------------------


def decoder(look: RecurrentAttention, cell: Cell = "gru", layers: int = 2, summary: Summary = "ends") -> RecurrentStack:
    torch.manual_seed(1)
    return RecurrentDecoder(layers, cell, look, summary).build(D, 0.0, 1).double()


def memory() -> Memory:
    return Memory((sources(2), sources(3)), MASK)


def targets() -> Tensor:
    return sources(4)[:, :6]


def stepped(cell: Cell, module: nn.Module, x: Tensor, carried: list[Tensor]) -> list[Tensor]:
    """One step of one layer, by the formulas of the papers as torch's documentation prints them."""
    weights = dict(module.named_parameters())
    inputs = x @ weights["cells.weight_ih_l0"].T + weights["cells.bias_ih_l0"]
    hidden = carried[0] @ weights["cells.weight_hh_l0"].T + weights["cells.bias_hh_l0"]
    if cell == "elman":
        return [torch.tanh(inputs + hidden)]
    if cell == "gru":
        (r, z, n), (hr, hz, hn) = inputs.chunk(3, -1), hidden.chunk(3, -1)
        update, new = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
        return [(1 - update) * new + update * carried[0]]
    enter, forget, new, out = (inputs + hidden).chunk(4, -1)
    inner = torch.sigmoid(forget) * carried[1] + torch.sigmoid(enter) * torch.tanh(new)
    return [torch.sigmoid(out) * torch.tanh(inner), inner]


def first(stack: RecurrentStack, cell: Cell, summary: Tensor) -> list[list[Tensor]]:
    """The state each layer begins with: hidden states of all layers, then inner ones."""
    layers = len(stack.layers)
    states = torch.tanh(stack.bridge(summary)).split(D, dim=-1)
    return [[states[number], *([states[layers + number]] if cell == "lstm" else [])] for number in range(layers)]


def scored(stack: Any, score: Score, state: Tensor) -> Tensor:
    """softmax(score(s, h_i)) over the real places (B, S), one head, by the formulas."""
    attention, keys = stack.attention, stack.attention.key(memory().layers[-1])  # (B, S, D)
    query = attention.query(state).unsqueeze(1)  # (B, 1, D)
    if isinstance(score, Additive):
        energy = torch.tanh(query + keys) @ attention.score.vector[0, 0]
    elif isinstance(score, Bilinear):
        energy = ((query @ attention.score.matrix[0]) * keys).sum(-1) / D**0.5
    else:
        energy = (query * keys).sum(-1)
    return energy.masked_fill(~MASK, -torch.inf).softmax(-1)


def context(stack: Any, weights: Tensor) -> Tensor:
    """The context c = sum_i a_i h_i of the projected states, and the output projection (B, D)."""
    values = stack.attention.value(memory().layers[-1])
    return stack.attention.output((weights.unsqueeze(-1) * values).sum(1))


SCORES: list[Score] = [Additive(), Dot(), Bilinear()]


@torch.no_grad()
@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("cell", CELLS)
def test_bahdanau_step_by_step(cell: Cell, score: Score) -> None:
    """a_t = softmax(score(s_{t-1}, h_i)), c_t = sum a_ti h_i, s_t = f(s_{t-1}, [y; c_t]), tanh(W [s_t; c_t; y])."""
    stack = decoder(Bahdanau(score=score), cell)
    states = first(stack, cell, summarise(memory(), "ends"))
    outs, looks = [], []
    for word in targets().unbind(1):
        looks.append(scored(stack, score, states[-1][0]))
        looked = context(stack, looks[-1])
        x = torch.cat((word, looked), dim=-1)
        for number, layer in enumerate(stack.layers):
            states[number] = stepped(cell, layer, x, states[number])
            x = states[number][0]
        outs.append(torch.tanh(stack.join(torch.cat((x, looked, word), dim=-1))))
    trace = Trace()
    out, _ = stack(targets(), stack.start(memory()), trace)
    close(out, torch.stack(outs, dim=1))
    close(trace["decoder.1.cross"], torch.stack(looks, dim=1).unsqueeze(1))


@torch.no_grad()
@pytest.mark.parametrize("score", SCORES, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("cell", CELLS)
def test_luong_step_by_step(cell: Cell, score: Score) -> None:
    """s_t = f(s_{t-1}, y), a_t = softmax(score(s_t, h_i)), c_t = sum a_ti h_i, tanh(W [c_t; s_t])."""
    stack = decoder(Luong(score=score), cell)
    states = first(stack, cell, summarise(memory(), "ends"))
    outs = []
    for x in targets().unbind(1):
        for number, layer in enumerate(stack.layers):
            states[number] = stepped(cell, layer, x, states[number])
            x = states[number][0]
        looked = context(stack, scored(stack, score, x))
        outs.append(torch.tanh(stack.join(torch.cat((looked, x), dim=-1))))
    out, _ = stack(targets(), stack.start(memory()))
    close(out, torch.stack(outs, dim=1))


@torch.no_grad()
@pytest.mark.parametrize("summary", get_args(Summary))
@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_one_fixed_vector_step_by_step(cell: Cell, every_step: bool, summary: Summary) -> None:
    stack = decoder(FixedVector(every_step), cell, summary=summary)
    top = memory().layers[-1]
    last = torch.stack([row[length - 1] for row, length in zip(top, LENGTHS, strict=True)])
    mean = torch.stack([row[:length].mean(0) for row, length in zip(top, LENGTHS, strict=True)])
    vector = {"ends": torch.cat((top[:, 0], last), dim=-1), "last": last, "mean": mean}[summary]
    states = first(stack, cell, vector)
    outs = []
    for word in targets().unbind(1):
        x = torch.cat((word, vector), dim=-1) if every_step else word
        for number, layer in enumerate(stack.layers):
            states[number] = stepped(cell, layer, x, states[number])
            x = states[number][0]
        outs.append(x)
    trace = Trace()
    out, _ = stack(targets(), stack.start(memory()), trace)
    close(out, torch.stack(outs, dim=1))
    assert not [name for name in trace if name.endswith("cross")]


@torch.no_grad()
def test_without_attention_only_the_summary_is_known() -> None:
    """What lies between the ends changes nothing without attention, and something with it."""
    known = memory()
    other = replace(known, layers=(known.layers[0], known.layers[1].clone()))
    other.layers[1][:, 1:2] += MASK[:, 2:3].unsqueeze(-1)
    for look, same in ((FixedVector(), True), (FixedVector(every_step=True), True), (Luong(), False)):
        stack = decoder(look)
        left, right = (stack(targets(), stack.start(each))[0] for each in (known, other))
        assert torch.equal(left, right) is same


@torch.no_grad()
def test_both_ends_hold_a_two_way_encoders_last_states() -> None:
    """The last forward state and the last backward one, which stands at the first place."""
    encoder = RecurrentEncoder(1, "gru", 2).build(D, 0.0).double()
    oracle = nn.GRU(D, D // 2, batch_first=True, bidirectional=True).double()
    for name, parameter in oracle.named_parameters():
        way = encoder.backwards if name.endswith("_reverse") else encoder.forwards
        assert way is not None
        parameter.copy_(dict(way[0].named_parameters())[f"cells.{name.removesuffix('_reverse')}"])
    _, last = oracle(pack_padded_sequence(sources(), LENGTHS, batch_first=True, enforce_sorted=False))
    ends = summarise(encoder(sources(), MASK), "ends")  # (B, 2 D)
    close(ends[:, D : D + D // 2], last[0])
    close(ends[:, D // 2 : D], last[1])


@torch.no_grad()
@pytest.mark.parametrize("look", [Luong(), Bahdanau(), FixedVector()], ids=lambda look: type(look).__name__)
def test_one_word_alone_in_its_batch(look: RecurrentAttention) -> None:
    model = Model(16, 0.0, encoder=RecurrentEncoder(), decoder=RecurrentDecoder(attention=look)).build(9, 9, True)
    one = torch.tensor([[3]])
    logits, state = model.eval().advance(one, model.start(model.encode(one, torch.ones(1, 1).bool())))
    assert logits.shape == (1, 1, 9)
    assert logits.isfinite().all()
    assert model.advance(one, state)[1].length == 2


@pytest.mark.parametrize(
    "look", [Luong(), Bahdanau(), FixedVector(every_step=True)], ids=lambda look: type(look).__name__
)
@pytest.mark.parametrize("cell", CELLS)
def test_cells_keep_their_precision_where_the_rest_is_bf16(cell: Cell, look: RecurrentAttention) -> None:
    model = Model(
        16, 0.0, encoder=RecurrentEncoder(cell=cell), decoder=RecurrentDecoder(cell=cell, attention=look)
    ).build(9, 9, True)
    tokens = torch.tensor([[3, 5, 4], [6, 7, 8]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model.encode(tokens, torch.ones_like(tokens).bool())
        logits, state = model.advance(tokens, model.start(memory))
        again, _ = model.advance(tokens[:, :1], state)
    assert {tensor.dtype for tensor in (*memory.layers, *state.cache)} == {torch.float32}
    assert logits.dtype == torch.bfloat16
    (logits.float().sum() + again.float().sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_do_not_need_training_mode(cell: Cell, device: str) -> None:
    """Rewards are learned from without dropout: the model evaluates, and is differentiated all the same."""
    config = Model(16, 0.3, encoder=RecurrentEncoder(cell=cell), decoder=RecurrentDecoder(cell=cell))
    model = config.build(9, 9, True).to(device).eval()
    tokens = torch.tensor([[3, 5, 4], [6, 7, 8]], device=device)
    logits, _ = model.advance(tokens, model.start(model.encode(tokens, torch.ones_like(tokens).bool())))
    logits.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RecurrentEncoder(layers=0), "layers: expected at least 1, got 0"),
        (lambda: RecurrentDecoder(layers=-2), "layers: expected at least 1, got -2"),
        (
            lambda: Model(d_model=15, encoder=RecurrentEncoder()),
            "encoder.directions: 2 share d_model = 15, which is odd; make it even, or directions = 1",
        ),
        (
            lambda: Model(16, encoder=RecurrentEncoder(), decoder=RecurrentDecoder(attention=Luong(heads=3))),
            "decoder.attention.heads: 3 heads do not divide d_model = 16; choose a divisor",
        ),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text


def test_from_a_config_file_and_back(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        'encoder.layers = 3\n[decoder]\nkind = "recurrent"\ncell = "elman"\n[decoder.attention]\nkind = "bahdanau"\n'
        'score = "dot"\n'
    )
    config = configs.load(Model, path)
    assert config.encoder == TransformerEncoder(layers=3)
    assert config.decoder == RecurrentDecoder(cell="elman", attention=Bahdanau(heads=1, score=Dot()))
    assert configs.load(Model, path, ["decoder.attention=fixed_vector"]).decoder.attention == FixedVector()
    path.write_text(configs.dump(config))
    assert configs.load(Model, path) == config


# ---- learning --------------------------------------------------------------------------------------------------------

SETTINGS = (
    "data.tokens=512 model.d_model=64 model.dropout=0.0 model.encoder=recurrent model.encoder.layers=1"
    " model.decoder=recurrent model.decoder.layers=1 training.report_every=100 training.save_every=1000"
    " training.learning_rate.kind=cosine training.learning_rate.peak=5e-3 training.learning_rate.warmup=50"
    " validation.every=1000 validation.metric=chrf validation.sentences=50"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("look", ["luong", "bahdanau"])
def test_reversing_is_learned_by_train_and_known_after_load(tmp_path: Path, look: str) -> None:
    pairs = toys.reversals(2200)
    held_out, rest = pairs[:200], pairs[200:]
    corpus = toys.corpus(tmp_path, rest, held_out)
    toys.run(corpus, tmp_path / "run", *SETTINGS, f"model.decoder.attention={look}", "training.steps=250")
    translator = transduce.load(tmp_path / "run", "cpu")
    assert toys.exact(translator, held_out) >= 0.95
    assert "1 encoder and\n1 decoder layers" in (tmp_path / "run" / "README.md").read_text()
