"""Attention over a spectrogram and over a picture, in a real browser: the colours are the weights that Python found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from browsing import OpenPage
from test_browser_translating import faults
from toy_media import RATE, draw, sentence

from transduce.data.images import Images
from transduce.data.readers import Reading
from transduce.data.speech import Speech
from transduce.engines.torch.engine import TorchEngine
from transduce.inspection.inspect import inspect
from transduce.inspection.page import page as page_of
from transduce.inspection.record import Inspection, SourcePicture
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.sources import Frames, Patches
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Greedy, Limits
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from toy_model import Toy

pytestmark = pytest.mark.slow
Looks = tuple[Inspection, SourcePicture]


def looked(toy: Toy, source: Any, reader: Any, path: Path) -> Looks:
    """A random model that reads files, and what it looks at in one."""
    torch.manual_seed(5)
    stacks = TransformerEncoder(1, Attention(2), 32), TransformerDecoder(2, Attention(2), 32)
    config = Model(16, 0.0, "target", *stacks, source=source)
    tokenizers = toy.translator.tokenizers
    built = config.build(0, tokenizers.target.size, False)
    for parameter in built.parameters():  # fresh weights look at everything alike
        torch.nn.init.normal_(parameter, std=0.8)
    engine = TorchEngine(built, tokenizers.source.symbols, tokenizers.target.symbols, torch.device("cpu"))
    search, reading = Greedy(Limits(shortest=5, longest=6)), Reading(reader, source.places)
    seen = inspect(Translator(engine, tokenizers, search, 999, decoder=config.decoder, reading=reading), str(path))
    assert seen.sight is not None
    return seen, seen.sight


@pytest.fixture(scope="module")
def heard(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    soundfile = pytest.importorskip("soundfile", reason="recordings are read by it: pip install transduce[senses]")
    path = tmp_path_factory.mktemp("sound") / "tones.wav"
    soundfile.write(path, sentence(["low", "high", "both"], seed=3), RATE)
    return looked(toy, Frames(features=20, channels=4), Speech(RATE, 20), path)


@pytest.fixture(scope="module")
def read(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    pictures = pytest.importorskip("PIL.Image", reason="pictures are read by it: pip install transduce[senses]")
    path = tmp_path_factory.mktemp("picture") / "digits.png"
    pictures.fromarray(draw("407")).save(path)
    return looked(toy, Patches(patch=4, rows=4), Images(16, patch=4), path)


def inner(sight: SourcePicture) -> list[tuple[int, int]]:
    """A row and column of the values inside each place."""
    return [(int(top + high / 2), int(left + wide / 2)) for left, top, wide, high in sight.boxes]


def colours(page: Any, sight: SourcePicture) -> Any:
    """The colour there on the page, (places, 3)."""
    script = """(points) => {
      const canvas = document.querySelector(".sight canvas"), context = canvas.getContext("2d");
      const at = (down, across) => [Math.floor(across * canvas.width), Math.floor(down * canvas.height), 1, 1];
      return points.map((point) => [...context.getImageData(...at(...point)).data.slice(0, 3)]);
    }"""
    height, width = sight.values.shape
    points = [[(row + 0.5) / height, (column + 0.5) / width] for row, column in inner(sight)]
    return np.array(page.evaluate(script, points), dtype=float)


@pytest.mark.parametrize("sense", ["heard", "read"])
def test_the_chosen_token_colours_what_it_looks_at(
    sense: str, open_page: OpenPage, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen, sight = request.getfixturevalue(sense)
    (tmp_path / "page.html").write_text(page_of([seen]), encoding="utf-8")
    page = open_page(f"file://{tmp_path}/page.html", refused="willReadFrequently")  # what this test does to a canvas
    page.wait_for_selector(".sight canvas")
    plain = colours(page, sight)
    grey = np.array([255 * sight.values[place] for place in inner(sight)])
    assert plain == pytest.approx(grey[:, None].repeat(3, 1), abs=1.5)
    tokens = page.locator(".sight .token")
    assert tokens.count() == len(seen.written)
    warn = np.array([0xA6, 0x4B, 0x08])

    def check(weights: Any) -> None:
        """Each place is as much the colour of the tint as it is looked at."""
        shares = (0.75 * weights / weights.max())[:, None]
        assert colours(page, sight) == pytest.approx(plain * (1 - shares) + warn * shares, abs=6)

    mean = seen.map("cross", 0).weights.mean(0)  # (T, S)
    tokens.nth(1).hover()
    check(mean[1])
    tokens.nth(2).click()  # pinned, and looked at by itself once the pointer is gone
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    assert tokens.nth(2).get_attribute("aria-pressed") == "true"
    check(mean[2])
    name = seen.source[int(mean[2].argmax())]
    assert f"looks at: {name} " in page.locator(".told").inner_text()
    page.locator(".thumb").nth(5).click()  # another head of another layer: the mean and two heads in each row
    page.locator(".sight .token").nth(1).focus()
    check(seen.map("cross", 1).weights[1][1])
    page.keyboard.press("ArrowLeft")
    check(seen.map("cross", 1).weights[1][0])


def test_places_are_walked_by_keys_and_pointed_at(open_page: OpenPage, read: Looks, tmp_path: Path, axe: str) -> None:
    """In a picture down and to the right; whoever looks at a place is named, also to who cannot see it."""
    seen, _ = read
    (tmp_path / "page.html").write_text(page_of([seen]), encoding="utf-8")
    page = open_page(f"file://{tmp_path}/page.html", bypass_csp=True)
    page.focus(".sight canvas")
    told = page.locator(".told")
    assert told.get_attribute("aria-live") == "polite"
    walked = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        walked.append(told.inner_text().partition(" is looked at by: ")[0])
    assert walked == ["0,0,4,4", "4,0,4,4", "4,4,4,4", "0,4,4,4", "0,0,4,4", "0,0,4,4"]
    page.keyboard.press("Enter")
    page.locator(".token").first.focus()
    page.evaluate("document.activeElement.blur()")
    assert told.inner_text().startswith("0,0,4,4 is looked at by: ")  # pinned
    page.hover(".sight canvas", position={"x": 5 * 12, "y": 9 * 12})
    assert told.inner_text().startswith("4,8,4,4 is looked at by: ")
    page.click("[data-value=lines]")
    assert page.locator(".lines .token").count() == len(seen.written) + len(seen.source)
    page.click("[data-value=encoder]")
    assert page.locator("[data-value=sight]").count() == 0  # the encoder looks at places of the memory
    page.click("[data-value=cross]")
    page.click("[data-value=sight]")
    page.evaluate(axe)
    assert faults(page) == []
