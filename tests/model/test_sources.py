"""What reads frames and patches: lengths, padding, every family behind it, and what is changed in training alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core.errors import ConfigError
from transduce.data.batch import collate, pad_any, pad_frames
from transduce.data.images import Images
from transduce.data.speech import Speech
from transduce.engines.native.lowering import reasons_against
from transduce.exchange.exported_run import Capabilities
from transduce.experiment import Config, Data, check_source
from transduce.model.attention import Attention
from transduce.model.contract import evaluating
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.parallel import ParallelDecoder, Upsampled
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.seq2seq import CTCHead, Model
from transduce.model.sources import Distortion, Frames, Patches, PatchReader, Source, SpecAugment, Tokens
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.terms import CTC, GuidedAttention
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
FRAMES, PATCHES = Frames(features=10, channels=4), Patches(patch=3, rows=2, stem=4)
COLUMNS = Patches(patch=3, rows=2, stem=4, columns=True)
ENCODERS: tuple[Any, ...] = (TransformerEncoder(2, Attention(2), 16), RecurrentEncoder(), ConvolutionalEncoder(2))
DECODERS: tuple[Any, ...] = (TransformerDecoder(2, Attention(2), 16), RecurrentDecoder(), ConvolutionalDecoder(2))


def build(source: Source, **parts: Any) -> Any:
    torch.manual_seed(1)
    stacks = {"encoder": ENCODERS[0], "decoder": DECODERS[0], **parts}
    return Model(16, 0.1, source=source, **stacks).build(12, 12, shared=True)


def sources(width: int, lengths: tuple[int, ...] = (13, 6, 21)) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.normal(size=(length, width)).astype(np.float16) for length in lengths]


def test_frames_are_padded_with_zeros_and_have_no_end_symbol() -> None:
    first, second, _ = sources(4)
    padded, mask = pad_frames([first, second], length=15, rows=3)
    assert padded.shape == (3, 15, 4)
    assert padded.dtype == torch.float32
    assert mask.sum(1).tolist() == [13, 6, 0]
    assert torch.equal(padded[1, :6], torch.from_numpy(second).float())
    assert padded[~mask].abs().sum() == 0
    whole, _ = pad_frames([np.full((2, 3), 255, np.uint8)])
    assert (whole == 1).all()
    assert pad_any([[4, 5]], SYMBOLS)[0].tolist() == [[4, 5, 2]]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 21])
def test_four_frames_are_one_place_of_the_memory(length: int) -> None:
    model = build(FRAMES).eval()
    batch, mask = pad_frames(sources(10, (length,)))
    memory = model.encode(batch, mask)
    places = FRAMES.places(length)
    assert memory.mask.shape == (1, -(-length // 4)) == (1, len(places))
    assert memory.mask.all()
    assert [frame for start, stop in places for frame in range(start, stop)] == list(range(length))
    assert len(Patches().places(9)) == 9
    assert Tokens().places(2) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    "source", [FRAMES, PATCHES, COLUMNS, Patches(patch=3, rows=2), Frames(features=10, convolutions=0)]
)
@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: type(encoder).__name__)
def test_padding_is_invisible(source: Any, encoder: Any) -> None:
    model = build(source, encoder=encoder).eval()
    several = sources(source.width, (14, 6, 22))
    memory = model.encode(*pad_frames(several, length=30))
    for row, alone in enumerate(several):
        own = model.encode(*pad_frames([alone]))
        count = own.mask.size(1)
        assert memory.mask[row].sum() == count
        for layer, other in zip(memory.layers, own.layers, strict=True):
            torch.testing.assert_close(layer[row, :count], other[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("source", [FRAMES, PATCHES, COLUMNS], ids=["frames", "patches", "columns"])
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: type(decoder).__name__)
def test_every_decoder_reads_them_step_by_step_as_all_at_once(source: Any, decoder: Any) -> None:
    model = build(source, decoder=decoder).eval()
    memory = model.encode(*pad_frames(sources(source.width, (14, 6))))
    tokens = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 4]])
    whole, _ = model.advance(tokens, model.start(memory))
    state, steps = model.start(memory), []
    for place in range(4):
        logits, state = model.advance(tokens[:, place : place + 1], state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_all_terms_of_speech_train_on_them() -> None:
    model = build(Frames(features=10, channels=4, augment=SpecAugment(1, 3, 1, 4)), heads=(CTCHead(upsample=1),))
    targets = [[4, 5], [6], [7, 8, 9]]
    batch = collate(sources(10), targets, SYMBOLS, SYMBOLS)
    objective = CrossEntropy(0.1, terms=(CTC(), GuidedAttention())).build()
    model.train()
    loss = objective(model, batch, 0)
    loss.total.backward()
    assert loss.total.isfinite()
    assert {"ctc", "guided_attention"} <= set(loss.metrics)
    assert all(parameter.grad is not None for parameter in model.parameters())
    with evaluating(model), torch.no_grad():
        frames = model.heads["ctc"](model.encode(batch.source, batch.source_mask))
    assert frames.shape == (3, 6, 13)


def test_decoders_that_write_all_at_once_read_frames_too() -> None:
    model = build(FRAMES, decoder=ParallelDecoder(1, Attention(2), 16, length=Upsampled(2))).eval()
    memory = model.encode(*pad_frames(sources(10)))
    target = torch.tensor([[1, 5, 2], [1, 6, 2], [1, 7, 2]])
    assert model.token_log_probs(memory, target, torch.ones(3, 2, dtype=torch.bool)).isfinite().all()


# -- what is changed while a model learns ------------------------------------------------------------------------------


def test_masks_hide_bands_and_stretches_within_their_bounds() -> None:
    torch.manual_seed(1)
    x, mask = torch.ones(200, 30, 12), torch.arange(30) < torch.randint(5, 31, (200, 1))
    bands = SpecAugment(1, 4, 0, 0).build()(x, mask)
    hidden = (bands == 0).all(1)
    assert torch.equal(hidden, (bands == 0).any(1)), "a band is hidden at all times"
    assert set(hidden.sum(1).tolist()) == {0, 1, 2, 3, 4}
    times = SpecAugment(0, 0, 1, 10, time_share=0.5).build()(x, mask)
    stretches = (times == 0).all(2)
    assert torch.equal(stretches, (times == 0).any(2))
    assert not (stretches & ~mask).any()
    assert (stretches.sum(1) <= 0.5 * mask.sum(1)).all()
    assert stretches.sum(1).max() == 10
    edges = F.pad(stretches.int(), (1, 1)).diff(dim=1).abs().sum(1)
    assert (edges <= 2).all(), "one stretch each"


def test_draws_follow_torchs_seed_and_stop_in_evaluation() -> None:
    for source in (
        Frames(features=10, channels=4, augment=SpecAugment(2, 4, 2, 5)),
        Patches(3, 2, augment=Distortion()),
    ):
        model = build(source).train()
        read = model.source_embedding
        padded = pad_frames(sources(source.width))

        def drawn(seed: int, read: Any = read, padded: Any = padded) -> Tensor:
            torch.manual_seed(seed)
            x: Tensor = read.read(*padded)[0]
            return x

        assert torch.equal(drawn(1), drawn(1))
        assert not torch.equal(drawn(1), drawn(2))
        model.eval()
        assert torch.equal(drawn(1), drawn(2))


def test_a_distortion_by_nothing_changes_nothing_and_a_shift_shifts() -> None:
    torch.manual_seed(1)
    picture = torch.rand(3, 1, 8, 20)
    still = Distortion(0, 0, 0, 0).build()(picture)
    torch.testing.assert_close(still, picture, atol=1e-5, rtol=1e-4)
    wave = torch.sin(torch.arange(40) * 0.3).expand(1, 1, 9, 40)
    shifted = Distortion(0, 0, 0, 3.0).build()(wave)
    middle = shifted[0, 0, 4, 10:30]
    differences = [(middle - torch.sin((torch.arange(10, 30) + d) * 0.3)).abs().mean() for d in np.arange(-3, 3.1, 0.1)]
    assert min(differences) < 0.02, "the same wave, elsewhere"
    turned = Distortion(rotation=20, shear=0, scale=0, shift=0).build()(torch.ones(50, 1, 30, 30))
    assert turned[:, :, 10:20, 10:20].min() > 0.99, "the middle stays"
    assert turned[:, :, 0, 0].min() < 0.5, "corners go out of the picture"
    strip = torch.zeros(50, 1, 28, 168)
    strip[:, :, 12:16] = 1  # a line along the middle
    wide = Distortion(rotation=12, shear=0, scale=0, shift=0).build()(strip)
    assert wide[:, :, 8:20].sum() > 0.97 * strip.sum(), "the ends of a line of writing stay in the picture"


def test_pictures_are_put_together_and_taken_apart_as_images_cuts_them() -> None:
    images = Images(height=6, patch=3, colour=True)
    pixels = np.random.default_rng(1).integers(0, 256, (6, 12, 3)).astype(np.uint8)
    padded, mask = pad_frames([images.frames(pixels)], length=9)  # not whole columns: padding comes as it likes
    reader = PatchReader(Patches(3, 2, channels=3), 16)
    picture, real = reader._picture(padded, mask)
    expected = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    torch.testing.assert_close(picture[0, :, :, :12], expected)
    assert real[0, 0, 0].tolist() == [True] * 12 + [False] * 3
    assert torch.equal(reader._patches(picture, 9), padded)


def test_a_column_of_patches_is_one_place_and_reads_all_of_them() -> None:
    source = Patches(patch=3, rows=2, columns=True)
    assert source.places(6) == [(0, 2), (2, 4), (4, 6)]
    images = Images(height=6, patch=3)
    assert images.place(*source.places(6)[1]) == {"left": 3.0, "top": 0.0, "width": 3.0, "height": 6.0}
    torch.manual_seed(1)
    reader = PatchReader(source, 16)
    padded, mask = pad_frames(sources(source.width, (6, 4)), length=7)  # not whole columns: padding comes as it likes
    x, real = reader.read(padded, mask)
    assert x.shape == (2, 4, 16)
    assert real.tolist() == [[True, True, True, False], [True, True, False, False]]
    weight, bias = reader.output.weight, reader.output.bias
    by_hand = weight[:, :9] @ padded[0, 2] + weight[:, 9:] @ padded[0, 3] + bias  # the upper patch, then the lower
    torch.testing.assert_close(x[0, 1], reader.norm(by_hand) + reader.row[0])


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_a_model_and_a_corpus_that_do_not_go_together() -> None:
    def corpus(reader: Any) -> Any:
        return SimpleNamespace(reader=reader, folder=Path("data/x"))

    check_source(Model(source=Frames(features=80)), corpus(Speech()))
    check_source(Model(source=Patches()), corpus(Images()))
    check_source(Model(), corpus(None))
    with pytest.raises(
        ConfigError, match=r"model.source: reads frames of 80 numbers, and the sources of data/x are text"
    ):
        check_source(Model(source=Frames()), corpus(None))
    with pytest.raises(ConfigError, match=r"model.source: reads tokens, and data/x holds speech, frames of 80 numbers"):
        check_source(Model(), corpus(Speech()))
    with pytest.raises(ConfigError, match=r"reads frames of 80 numbers, .* set model.source.kind=patches"):
        check_source(Model(source=Frames()), corpus(Images()))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Frames(features=0), "features: expected at least 1, got 0"),
        (lambda: Patches(stem=-1), "stem: expected 0 or more, got -1"),
        (lambda: SpecAugment(time_masks=-1), "time_masks: expected 0 or more, got -1"),
        (lambda: SpecAugment(time_share=2), "time_share: expected a number from 0 to 1, got 2"),
        (lambda: Distortion(rotation=-1), "rotation: expected 0 or more, got -1"),
        (
            lambda: Config(data=Data(shapes=4), model=Model(source=Frames())),
            "data.shapes: 4 shapes are for batches as wide as long",
        ),
    ],
)
def test_settings_that_make_no_sense(made: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made()


def test_other_systems_refuse_what_is_no_text() -> None:
    model = Model(source=Frames())
    assert any("model.source is 'frames', and only 'tokens' are read" in reason for reason in reasons_against(model))
    able = Capabilities("Marian", ("relu",), (), (), ())
    assert "source is 'frames', expected tokens" in list(able._reasons(model))
