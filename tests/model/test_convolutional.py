"""Convolutional models against F.conv1d and loops written here, how far they see, and trained.

Shapes: B batch, S source length, T target length, D d_model, k kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys
from torch import Tensor, nn
from torch.nn import functional as F

import transduce
from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.model.attention import Trace
from transduce.model.contract import Memory
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder, GatedConvolution, OneHead
from transduce.model.positions import Sinusoidal, Unordered
from transduce.model.scores import Additive, ScaledDot
from transduce.model.seq2seq import Model

D = 8
LENGTHS = (5, 1, 7, 3)
MASK = torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1)


def vectors(seed: int = 1, length: int = 7) -> Tensor:
    return torch.randn(4, length, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)


def randomised(module: nn.Module) -> nn.Module:
    """Biases start at 0, which would hide faults."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
    return module.double().eval()


def gated(layer: nn.Module, x: Tensor) -> Tensor:
    """conv1d of x (T + k - 1, D), halves a and b, a * sigmoid(b): (T, D)."""
    both = F.conv1d(x.T.unsqueeze(0), layer.convolution.weight, layer.convolution.bias)[0].T
    return both[:, :D] * torch.sigmoid(both[:, D:])


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_the_encoder_sentence_by_sentence(kernel: int) -> None:
    encoder = randomised(ConvolutionalEncoder(3, kernel, Unordered()).build(D, 0.0))
    memory = encoder(vectors(), MASK)
    assert len(memory.layers) == 3
    for row, length in enumerate(LENGTHS):
        x, edge = 0.1 * vectors()[row, :length], torch.zeros(kernel // 2, D, dtype=torch.float64)
        for number, layer in enumerate(encoder.layers):
            x = (gated(layer, torch.cat((edge, x, edge))) + x) * math.sqrt(0.5)
            close(memory.layers[number][row, :length], x)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 2, 5])
def test_the_decoder_sentence_by_sentence(kernel: int) -> None:
    """One step, by hand, of the decoder.

    h = glu(conv(x)); a = softmax((W h + g) z / sqrt(d)); c = sqrt(m) sum a z; x = ((h + c) r + x) r, r^2 = .5.
    """
    decoder = randomised(ConvolutionalDecoder(2, kernel, Unordered()).build(D, 0.0, 1))
    source, words, trace = vectors(3), vectors(4, 6), Trace()
    out, _ = decoder(words, decoder.start(Memory((source,), MASK)), trace)
    for row, length in enumerate(LENGTHS):
        x, z = 0.1 * words[row], source[row, :length]
        for number, layer in enumerate(decoder.layers):
            attention = layer.attention
            h = gated(layer.convolution, torch.cat((torch.zeros(kernel - 1, D, dtype=torch.float64), x)))
            query = attention.query((h + 0.1 * words[row]) * math.sqrt(0.5))
            weights = (query @ attention.key(z).T / math.sqrt(D)).softmax(-1)
            close(trace[f"decoder.{number}.cross"][row, 0, :, :length], weights)
            c = attention.output(weights @ attention.value(z)) * math.sqrt(length)
            x = ((h + c) * math.sqrt(0.5) + x) * math.sqrt(0.5)
        close(out[row], x)


@torch.no_grad()
@pytest.mark.parametrize(("layers", "kernel"), [(1, 1), (1, 4), (2, 3), (4, 2), (3, 3)])
def test_how_far_it_sees(layers: int, kernel: int) -> None:
    """A target place knows the last layers (k - 1) + 1 words; a source place as many, half of them on each side."""
    words, source = vectors(5, 12), Memory((vectors(3),), MASK)
    decoder = randomised(ConvolutionalDecoder(layers, kernel).build(D, 0.0, 1))
    reach = layers * (kernel - 1)

    def changed(read: Callable[[Tensor], Tensor], place: int) -> list[bool]:
        other = words.clone()
        other[:, place] += 1
        return (read(other) != read(words)).any(-1).any(0).tolist()

    seen = changed(lambda x: decoder(x, decoder.start(source))[0], 2)
    assert seen == [2 <= place <= 2 + reach for place in range(12)]
    if kernel % 2:
        encoder = randomised(ConvolutionalEncoder(layers, kernel).build(D, 0.0))
        seen = changed(lambda x: encoder(x, torch.ones(4, 12).bool()).layers[-1], 6)
        assert seen == [abs(place - 6) <= reach // 2 for place in range(12)]


@torch.no_grad()
def test_a_fresh_layer_keeps_the_variance() -> None:
    torch.manual_seed(1)
    layer = GatedConvolution(256, 3, 0.0)
    out = layer(torch.randn(8, 102, 256) * 0.5)  # small, as their argument supposes
    assert out.std().item() == pytest.approx(0.5, rel=0.15)


@torch.no_grad()
@torch.no_grad()
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_fresh_model_keeps_it_through_all_its_layers(dropout: float) -> None:
    """Vectors that grow from layer to layer end in gradients without bound; logits begin small."""
    torch.manual_seed(1)
    stacks = ConvolutionalEncoder(6), ConvolutionalDecoder(6)
    model = Model(256, dropout, "all", *stacks).build(1000, 1000, True).train()
    tokens, trace = torch.randint(4, 1000, (16, 15)), Trace()
    memory = model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool), trace)
    logits, _ = model.advance(tokens.flip(1), model.start(memory), trace)
    spreads = [trace[f"{side}.{layer}.out"].std().item() for side in ("encoder", "decoder") for layer in range(6)]
    assert max(spreads) / min(spreads) < 1.25
    assert 0.05 < logits.std() < 0.5


def test_a_separable_layer_reads_each_number_apart_and_then_each_place() -> None:
    layer = randomised(GatedConvolution(D, 3, 0.0, separable=True))
    x = vectors()
    a, b = layer.convolution.weight[:, :, 0].chunk(2)
    one, other = layer.convolution.bias.chunk(2)
    read = sum(x[:, place : x.size(1) - 2 + place] * layer.depthwise.weight[:, 0, place] for place in range(3))
    close(layer(x), (read @ a.T + one) * (read @ b.T + other).sigmoid())
    torch.manual_seed(1)
    fresh = GatedConvolution(256, 3, 0.0, separable=True)
    assert fresh(torch.randn(8, 102, 256) * 0.5).std().item() == pytest.approx(0.5, rel=0.15)
    assert (
        sum(p.numel() for p in fresh.parameters())
        < sum(p.numel() for p in GatedConvolution(256, 3, 0.0).parameters()) / 2
    )


@torch.no_grad()
def test_one_word_alone_in_its_batch() -> None:
    model = Model(16, 0.0, encoder=ConvolutionalEncoder(), decoder=ConvolutionalDecoder()).build(9, 9, True).eval()
    one = torch.tensor([[3]])
    logits, state = model.advance(one, model.start(model.encode(one, torch.ones(1, 1).bool())))
    assert logits.shape == (1, 1, 9)
    assert logits.isfinite().all()
    assert model.advance(one, state)[1].length == 2


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConvolutionalEncoder(layers=0), "layers: expected at least 1, got 0"),
        (lambda: ConvolutionalDecoder(kernel=0), "kernel: expected at least 1, got 0"),
        (
            lambda: ConvolutionalEncoder(kernel=4),
            "kernel: expected an odd number, so that the kernel is symmetric, got 4",
        ),
        (
            lambda: Model(16, decoder=ConvolutionalDecoder(attention=OneHead(3))),
            "decoder.attention.heads: 3 heads do not divide d_model = 16; choose a divisor",
        ),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == text


def test_from_a_config_file(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        'encoder = {kind = "convolutional", kernel = 5, positions = "sinusoidal"}\n'
        'decoder = {kind = "convolutional", attention.score = "additive"}\n'
    )
    config = configs.load(Model, path)
    assert config.encoder == ConvolutionalEncoder(kernel=5, positions=Sinusoidal())
    assert config.decoder == ConvolutionalDecoder(attention=OneHead(heads=1, score=Additive()))
    assert ConvolutionalDecoder().attention == OneHead(heads=1, score=ScaledDot())
    with pytest.raises(ConfigError, match="'rotary' is not one of learned, sinusoidal, unordered"):
        configs.load(Model, path, ["encoder.positions=rotary"])


SETTINGS = (
    "data.tokens=512 model.d_model=64 model.dropout=0.0 model.encoder=convolutional model.encoder.layers=2"
    " model.decoder=convolutional model.decoder.layers=2 training.report_every=100 training.save_every=1000"
    " training.learning_rate.kind=cosine training.learning_rate.peak=3e-3 training.learning_rate.warmup=50"
    " validation.every=1000 validation.metric=chrf validation.sentences=50"
).split()


@pytest.mark.slow
def test_reversing_is_learned_by_train_and_known_after_load(tmp_path: Path) -> None:
    pairs = toys.reversals(2200)
    held_out, rest = pairs[:200], pairs[200:]
    corpus = toys.corpus(tmp_path, rest, held_out)
    toys.run(corpus, tmp_path / "run", *SETTINGS, "training.steps=300")
    assert toys.exact(transduce.load(tmp_path / "run", "cpu"), held_out) >= 0.95
