"""Pictures to patches: where each pixel goes, every kind of file, and what is reported of bad ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from toy_media import draw, write_idx

from transduce.core.errors import ConfigError, DataError, UserError
from transduce.data.images import Images, idx_items
from transduce.data.readers import PreparedFrames, Unreadable

Image = pytest.importorskip("PIL.Image", reason="pictures are opened by pillow: pip install transduce[senses]")


def test_every_pixel_goes_to_its_patch() -> None:
    images = Images(height=6, patch=3, background=9)
    picture = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8)
    frames = images.frames(picture)
    assert frames.shape == (6, 9)
    assert images.rows == 2
    for number, frame in enumerate(frames):
        column, row = divmod(number, 2)
        for place, value in enumerate(frame):
            down, along = divmod(place, 3)
            y, x = 3 * row + down, 3 * column + along
            assert value == (picture[y, x] if x < 8 else 9)
    assert images.place(3, 4) == {"left": 3.0, "top": 3.0, "width": 3.0, "height": 3.0}
    assert images.read(PreparedFrames(frames)) is frames
    assert images.box(3, 4) == (3.0, 3.0, 3.0, 3.0)
    sight = images.sight(frames)
    assert sight.shape == (6, 9)
    np.testing.assert_allclose(sight[:, :8] * 255, picture, atol=1e-4)
    square = Images(height=9, patch=3)
    assert square.read(np.zeros((9, 9), np.uint8)).shape == (9, 9), "pixels, though as wide as a frame"


def test_png_jpeg_and_idx_hold_the_same_picture(tmp_path: Path) -> None:
    pictures = np.stack([draw("7", seed) for seed in range(3)])
    Image.fromarray(pictures[1]).save(tmp_path / "a.png")
    Image.fromarray(pictures[1]).save(tmp_path / "a.jpeg", quality=100)
    write_idx(tmp_path / "a.idx3.gz", pictures)
    write_idx(tmp_path / "a.idx3", pictures)
    images = Images(height=16, patch=4)
    expected = images.frames(pictures[1])
    assert expected.dtype == np.uint8
    for name in ("a.png", "a.idx3#1", "a.idx3.gz#1"):
        np.testing.assert_array_equal(images.read(str(tmp_path / name)), expected)
    near = images.read(str(tmp_path / "a.jpeg")).astype(int)
    assert np.abs(near - expected).mean() < 4
    assert images.examine(str(tmp_path / "a.png")) == images.examine(str(tmp_path / "a.idx3#1"))
    assert images.examine(str(tmp_path / "a.png")) != images.examine(str(tmp_path / "a.idx3#2"))


def test_sizes_and_colours(tmp_path: Path) -> None:
    wide = np.zeros((32, 64, 3), np.uint8)
    wide[:, :32, 0] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    path = str(tmp_path / "wide.png")
    assert Images(height=16, patch=4).read(path).shape == (4 * 8, 16)
    assert Images(height=16, patch=4, width_pixels=16).read(path).shape == (16, 16)
    coloured = Images(height=16, patch=8, colour=True)
    frames = coloured.read(path)
    assert frames.shape == (8, 192)
    assert (frames[0].reshape(8, 8, 3)[0, 0] == (255, 0, 0)).all()
    grey = coloured.frames(np.full((16, 16), 7, np.uint8))
    assert (grey == 7).all()


def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    images = Images(height=16, patch=4, longest_patches=32)
    Image.fromarray(np.zeros((16, 160), np.uint8)).save(tmp_path / "long.png")
    content = (tmp_path / "long.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.png").write_text("no picture")
    write_idx(tmp_path / "labels.idx1", np.zeros(5, np.uint8))
    write_idx(tmp_path / "a.idx3", np.zeros((2, 16, 16), np.uint8))
    (tmp_path / "cut.idx3").write_bytes((tmp_path / "a.idx3").read_bytes()[:-1])
    (tmp_path / "huge.idx3").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08")
    for name, reason in (
        ("gone.png", "no such file"),
        ("gone.idx3#0", "no such file"),
        ("long.png", r"160 x 16 pixels are 160 patches; expected at most 32 \(sources.longest_patches\)"),
        ("cut.png", "truncated|broken|unrecognized|incomplete|cannot identify"),
        ("text.png", "cannot identify image file"),
        ("labels.idx1#0", "an idx file of 1 dimensions; expected 3: number, height, width"),
        ("a.idx3#2", "there are 2 pictures, counted from 0"),
        ("cut.idx3#0", "it ends after 511 of 512 bytes"),
        ("huge.idx3#0", "is damaged, or too large"),
        ("text.png#0", "not an idx file of bytes; expected it to begin with 00 00 08"),
        ("cut.gz#0", "end-of-stream|ended"),
    ):
        idx_items.cache_clear()
        with pytest.raises(Unreadable, match=reason):
            images.examine(str(tmp_path / name))
        with pytest.raises(DataError, match=r"cannot be read: .*expected a picture that pillow reads"):
            images.read(str(tmp_path / name))
    with pytest.raises(ConfigError, match="the picture: 160 x 16 pixels are 160 patches"):
        images.read(np.zeros((16, 160), np.uint8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"height": 10, "patch": 4}, "height=10, patch=4: expected a height of whole patches"),
        ({"width_pixels": -1}, "width_pixels=-1: expected 0, for each its own, or more"),
        ({"background": 256}, "background=256: expected from 0, black, to 255, white"),
    ],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Images(**settings)


def test_who_lacks_pillow_is_told_which_extra_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"reading this file needs pillow: pip install 'transduce\[senses\]'"):
        Images().read(str(tmp_path / "a.png"))
    with pytest.raises(UserError, match="reading this file needs pillow"):
        Images(height=28).read(np.zeros((14, 14), np.uint8))
