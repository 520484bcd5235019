"""The model against "Attention Is All You Need": torch's layers as an oracle, parameter counts, formulas, dropout.

Equation 1 is tested in test_attention.py, equation 3 in test_optimizer.py, label smoothing in test_cross_entropy.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.core import config
from transduce.experiment import Config
from transduce.model import attention as attention_module
from transduce.model import blocks as sublayers_module
from transduce.model.attention import Attention, MultiHeadAttention
from transduce.model.blocks import FeedForward, PostNorm, PostNormResidual, PreNorm, PreNormResidual
from transduce.model.contract import Memory
from transduce.model.layers import Dropout, dropout
from transduce.model.norms import LayerNorm
from transduce.model.positions import Sinusoidal, Unordered, sinusoids
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import DecoderLayer, EncoderLayer, TransformerDecoder, TransformerEncoder
from transduce.training.optimizer import Adam, Paper

D, HEADS, D_FF, LAYERS = 32, 4, 64, 3

# ---- torch.nn.TransformerEncoder and TransformerDecoder with copied weights ------------------------------------------


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for part, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_rest(ours: EncoderLayer | DecoderLayer, theirs: nn.Module, norms: tuple[str, ...]) -> None:
    """The feed-forward network, and the norms in the order of torch's names norm1, norm2, ..."""
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())  # type: ignore[union-attr]
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())  # type: ignore[union-attr]
    for number, name in enumerate(norms, 1):
        norm = theirs.get_submodule(f"norm{number}")
        ours.get_submodule(f"{name}.norm").load_state_dict(norm.state_dict())


def scramble(module: nn.Module) -> None:
    """PyTorch starts biases at 0 and norms at 1, which would hide a wrong copy."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 3)


def settings(pre_norm: bool, activation: str) -> dict[str, object]:
    return {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": pre_norm}


@torch.no_grad()
def encoders(pre_norm: bool, activation: str) -> tuple[nn.Module, nn.TransformerEncoder]:
    layer = nn.TransformerEncoderLayer(D, HEADS, D_FF, **settings(pre_norm, activation))  # type: ignore[arg-type]
    final = nn.LayerNorm(D) if pre_norm else None
    theirs = nn.TransformerEncoder(layer, LAYERS, norm=final, enable_nested_tensor=False)
    scramble(theirs)
    residual = PreNorm() if pre_norm else PostNorm()
    ours = TransformerEncoder(
        LAYERS, Attention(HEADS), D_FF, activation, positions=Unordered(), residual=residual
    ).build(D, 0.0)  # type: ignore[arg-type]
    for block, original in zip(ours.layers, theirs.layers, strict=True):
        assert isinstance(block, EncoderLayer)
        copy_attention(block.attention, original.self_attn)
        copy_rest(block, original, ("around_attention", "around_feed_forward"))
    if final is not None:
        ours.final.load_state_dict(final.state_dict())
    return ours, theirs


@torch.no_grad()
def decoders(pre_norm: bool, activation: str) -> tuple[nn.Module, nn.TransformerDecoder]:
    layer = nn.TransformerDecoderLayer(D, HEADS, D_FF, **settings(pre_norm, activation))  # type: ignore[arg-type]
    final = nn.LayerNorm(D) if pre_norm else None
    theirs = nn.TransformerDecoder(layer, LAYERS, norm=final)
    scramble(theirs)
    residual = PreNorm() if pre_norm else PostNorm()
    ours = TransformerDecoder(
        LAYERS, Attention(HEADS), D_FF, activation, positions=Unordered(), residual=residual
    ).build(D, 0.0, LAYERS)  # type: ignore[arg-type]
    for block, original in zip(ours.layers, theirs.layers, strict=True):
        assert isinstance(block, DecoderLayer)
        copy_attention(block.attention, original.self_attn)
        copy_attention(block.cross, original.multihead_attn)
        copy_rest(block, original, ("around_attention", "around_cross", "around_feed_forward"))
    if final is not None:
        ours.final.load_state_dict(final.state_dict())
    return ours, theirs


MASK = torch.arange(9) < torch.tensor([9, 3, 6, 1])[:, None]  # (B, S) with ragged padding


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("learning", [False, True], ids=["fused", "with-gradients"])
def test_the_encoder_is_that_of_torch(pre_norm: bool, activation: str, learning: bool) -> None:
    torch.manual_seed(1)
    ours, theirs = encoders(pre_norm, activation)
    x = torch.randn(4, 9, D)
    with torch.set_grad_enabled(learning):
        found = ours(x, MASK).layers[-1]
        expected = theirs(x, src_key_padding_mask=~MASK)
    assert (found - expected)[MASK].abs().max() < 1e-5


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("learning", [False, True], ids=["fused", "with-gradients"])
def test_the_decoder_is_that_of_torch(pre_norm: bool, activation: str, learning: bool) -> None:
    torch.manual_seed(2)
    ours, theirs = decoders(pre_norm, activation)
    target, memory = torch.randn(4, 7, D), torch.randn(4, 9, D)
    ahead = torch.ones(7, 7, dtype=torch.bool).triu(1)  # torch's masks are True where one may not look
    with torch.set_grad_enabled(learning):
        found, state = ours(target, ours.start(Memory((memory,), MASK)))  # type: ignore[operator]
        expected = theirs(target, memory, tgt_mask=ahead, memory_key_padding_mask=~MASK)
    assert state.length == 7
    assert (found - expected).abs().max() < 1e-5


# ---- sizes: section 3, table 3 ---------------------------------------------------------------------------------------


def formula(vocabulary: int, layers: int, d: int, f: int) -> int:
    """One embedding; per layer W^Q, W^K, W^V, W^O, W_1, W_2 with biases and the norms; the decoder attends twice."""
    attention, feed_forward, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    return vocabulary * d + layers * (encoder + decoder)


@pytest.mark.parametrize(
    ("preset", "d_model", "d_ff", "count", "printed"),
    [("base", 512, 2048, 63_082_496, 65e6), ("big", 1024, 4096, 214_245_376, 213e6)],
)
def test_parameter_counts(preset: str, d_model: int, d_ff: int, count: int, printed: float) -> None:
    with torch.device("meta"):
        model = config.load(Config, preset).model.build(37_000, 37_000, shared=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == count == formula(37_000, 6, d_model, d_ff)
    assert abs(count - printed) / printed < 0.04  # the paper rounds, and does not say what it counts


def test_base_and_big_are_the_papers() -> None:
    base, big = config.load(Config, "base"), config.load(Config, "big")
    encoder, decoder = TransformerEncoder(6, Attention(8), 2048), TransformerDecoder(6, Attention(8), 2048)
    assert base.model == Model(512, 0.1, "all", encoder, decoder) == Model()
    wide = Model(
        1024,
        0.3,
        "all",
        replace(encoder, attention=Attention(16), d_ff=4096),
        replace(decoder, attention=Attention(16), d_ff=4096),
    )
    assert big.model == wide
    for preset, steps, averaged in ((base, 100_000, 5), (big, 300_000, 20)):
        training = preset.training
        assert (training.steps, training.average, training.average_of) == (steps, averaged, "last")
        assert training.optimizer == Adam(beta1=0.9, beta2=0.98, epsilon=1e-9)
        assert training.learning_rate == Paper(warmup=4000, factor=1.0)
        assert (training.clip, preset.data.tokens) == (0.0, 25_000)
        assert preset.objective.label_smoothing == 0.1
        assert preset.search == config.parse(type(preset), {"search": {"kind": "beam", "size": 4}}).search


@pytest.mark.parametrize(
    ("preset", "numbers"), [("tiny", (128, 3, 4, 512)), ("small", (256, 6, 4, 1024))], ids=["tiny", "small"]
)
def test_tiny_and_small_are_smaller_ones_of_the_same_kind(preset: str, numbers: tuple[int, ...]) -> None:
    model = config.load(Config, preset).model
    for stack in (model.encoder, model.decoder):
        assert (model.d_model, stack.layers, stack.attention.heads, stack.d_ff) == numbers
        assert (stack.positions, stack.residual, stack.activation) == (Sinusoidal(), PostNorm(), "relu")
    assert (model.tie, model.dropout) == ("all", 0.1)


# ---- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [512, 6, 7])
def test_position_table(d_model: int) -> None:
    table = sinusoids(200, d_model)
    assert table.shape == (200, d_model)
    for position in (0, 1, 2, 17, 199):
        for column in range(d_model):
            angle = position / 10000 ** (column // 2 * 2 / d_model)
            expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            assert table[position, column].item() == pytest.approx(expected, abs=1e-6)


def test_positions_are_added_to_scaled_embeddings() -> None:
    """Section 3.4: embeddings times sqrt(d_model); 3.5: plus the position, the same in encoder and decoder."""
    model = Model(
        d_model=16, encoder=TransformerEncoder(1, Attention(2), 8), decoder=TransformerDecoder(1, Attention(2), 8)
    ).build(9, 9, True)
    tokens = torch.tensor([[4, 8, 5]])
    embedded = F.embedding(tokens, model.source_embedding.weight) * 4
    assert torch.equal(model.source_embedding(tokens), embedded)
    for stack in (model.encoder, model.decoder):
        assert torch.equal(stack.positions.add(embedded, 5), embedded + sinusoids(8, 16)[5:])  # type: ignore[operator]


def test_equation_2() -> None:
    network, x = FeedForward(8, 24), torch.randn(2, 3, 8)
    inner, outer = network.inner, network.outer
    expected = (x @ inner.weight.T + inner.bias).clamp(min=0) @ outer.weight.T + outer.bias
    torch.testing.assert_close(network(x), expected)


def test_without_positions_the_encoder_does_not_see_order() -> None:
    torch.manual_seed(3)
    stacks = Model(
        32,
        0.0,
        "all",
        TransformerEncoder(2, Attention(4), 64, positions=Unordered()),
        TransformerDecoder(2, Attention(4), 64),
    )
    ordered = replace(stacks, encoder=replace(stacks.encoder, positions=Sinusoidal()))
    source, mask = torch.randint(4, 20, (3, 8)), torch.ones(3, 8, dtype=torch.bool)
    order = torch.randperm(8)

    def difference(model: Seq2Seq) -> float:
        straight, shuffled = (model.encode(tokens, mask).layers[-1] for tokens in (source, source[:, order]))
        return (straight[:, order] - shuffled).abs().max().item()

    assert difference(stacks.build(20, 20, True)) < 1e-5
    assert difference(ordered.build(20, 20, True)) > 0.1


# ---- dropout: section 5.4 --------------------------------------------------------------------------------------------

LAYERS_54 = (2, 3)  # of encoder and decoder


def dropout_model(on_weights: float = 0.0, inside: float = 0.0) -> Seq2Seq:
    attention = Attention(2, dropout=on_weights)
    encoder = TransformerEncoder(LAYERS_54[0], attention, 24, activation_dropout=inside)
    decoder = TransformerDecoder(LAYERS_54[1], attention, 24, activation_dropout=inside)
    return Model(16, 0.25, "all", encoder, decoder).build(9, 9, True)


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, tuple[int, ...]]]:
    """Fills with (where, probability, shape) for each dropout that is really applied."""
    seen: list[tuple[str, float, tuple[int, ...]]] = []

    def record(where: str) -> object:
        def recorded(x: Tensor, probability: float, training: bool) -> Tensor:
            if training and probability > 0:
                seen.append((where, probability, tuple(x.shape)))
            return x

        return recorded

    monkeypatch.setattr(attention_module, "drop", record("weights"))
    monkeypatch.setattr(sublayers_module, "dropout", record("inner"))
    monkeypatch.setattr("transduce.model.layers.dropout", record("module"))
    return seen


def read(model: Seq2Seq) -> None:
    source, target = torch.randint(4, 9, (2, 5)), torch.randint(4, 9, (2, 7))
    model.advance(target, model.start(model.encode(source, torch.ones_like(source, dtype=torch.bool))))


def test_dropout_is_where_the_paper_says_and_nowhere_else(sites: list[tuple[str, float, tuple[int, ...]]]) -> None:
    model = dropout_model()
    read(model.train())
    encoder = [("module", 0.25, (2, 5, 16))] * (1 + 2 * LAYERS_54[0])  # the sum with positions, and each sub-layer
    decoder = [("module", 0.25, (2, 7, 16))] * (1 + 3 * LAYERS_54[1])
    assert sites == encoder + decoder
    sites.clear()
    read(model.eval())
    assert sites == []


def test_dropout_that_the_paper_does_not_have_can_be_requested(sites: list[tuple[str, float, tuple[int, ...]]]) -> None:
    read(dropout_model(on_weights=0.5, inside=0.125).train())
    assert [p for where, p, _ in sites if where == "weights"] == [0.5] * (LAYERS_54[0] + 2 * LAYERS_54[1])
    assert [p for where, p, _ in sites if where == "inner"] == [0.125] * sum(LAYERS_54)


def test_dropout_comes_before_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything is dropped, a sub-layer adds nothing; the residual itself is never dropped."""
    monkeypatch.setattr("transduce.model.layers.dropout", lambda x, probability, training: torch.zeros_like(x))
    x = torch.randn(2, 3, 16)
    post, pre = PostNormResidual(LayerNorm().build(16), 0.5), PreNormResidual(LayerNorm().build(16), 0.5)
    assert torch.equal(post(x, torch.square), post.norm(x))
    assert torch.equal(pre(x, torch.square), x)


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_dropout_is_that_of_torch_in_all_but_the_draw(probability: float) -> None:
    torch.manual_seed(4)
    x = torch.full((999, 1003), 2.0, requires_grad=True)
    dropped = dropout(x, probability, training=True)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(1 - probability, abs=0.002)
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 2 / (1 - probability)), rtol=1e-3, atol=0)
    dropped.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, dropped.detach() / 2)
    rows, columns = kept.float().mean(0), kept.float().mean(1)  # no stripes: each place is drawn on its own
    spread = 6 * math.sqrt(probability * (1 - probability) / 999)
    assert (rows - 1 + probability).abs().max() < spread
    assert (columns - 1 + probability).abs().max() < spread
    neighbours = (kept[:, 1:] & kept[:, :-1]).float().mean().item()
    assert neighbours == pytest.approx((1 - probability) ** 2, abs=0.003)
    assert not torch.equal(dropout(x, probability, training=True), dropped)
    assert torch.equal(dropout(x, probability, training=False), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


def test_dropout_of_almost_everything() -> None:
    assert Model(dropout=0.999999).dropout == 0.999999
    assert dropout(torch.ones(1000), 0.999999, training=True).isfinite().all()
