"""Recordings to frames: against the definition, against torch's transform, and what is reported of bad files."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_media import RATE, sentence, tone

from transduce.core.errors import ConfigError, DataError, UserError
from transduce.data.readers import PreparedFrames, Reading, Unreadable
from transduce.data.speech import FLOOR, Speech, log_mel, mel_bands, normalised, resample

soundfile = pytest.importorskip("soundfile", reason="recordings are read by it: pip install transduce[senses]")
pytest.importorskip("soxr", reason="recordings are resampled by it: pip install transduce[senses]")


def defined(samples: np.ndarray, rate: int, features: int, window: int, hop: int, low: float, high: float) -> list:
    """Log-mel energies by the definition, a sum at a time: no transform of any library."""
    emphasised = [float(samples[0])] + [float(b) - 0.97 * float(a) for a, b in pairwise(samples)]
    points = 1
    while points < window:
        points *= 2
    mels = [2595 * math.log10(1 + f / 700) for f in (low, high)]
    corners = [
        700 * (10 ** ((mels[0] + (mels[1] - mels[0]) * i / (features + 1)) / 2595) - 1) for i in range(features + 2)
    ]
    frames = []
    for middle in range(0, len(samples), hop):
        power = []
        for k in range(points // 2 + 1):
            total = 0j
            for n in range(window):
                place = middle - window // 2 + n
                value = emphasised[place] if 0 <= place < len(samples) else 0.0
                weight = 0.5 - 0.5 * math.cos(2 * math.pi * n / window)
                total += (
                    value
                    * weight
                    * complex(math.cos(2 * math.pi * k * n / points), -math.sin(2 * math.pi * k * n / points))
                )
            power.append(abs(total) ** 2 / points)
        bands = []
        for left, top, right in zip(corners, corners[1:], corners[2:], strict=False):
            energy = 0.0
            for k, value in enumerate(power):
                hertz = k * rate / points
                if left < hertz <= top:
                    energy += value * (hertz - left) / (top - left)
                elif top < hertz < right:
                    energy += value * (right - hertz) / (right - top)
            bands.append(math.log(max(energy, FLOOR)))
        frames.append(bands)
    return frames


def test_log_mel_is_what_its_definition_says() -> None:
    samples = tone("mid", 0.05, seed=1)[:70]
    found = log_mel(samples, RATE, 6, 20 / RATE, 10 / RATE, 50.0, 4000.0)
    expected = defined(samples, RATE, 6, 20, 10, 50.0, 4000.0)
    assert found.shape == (7, 6)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_power_spectrum_is_torchs() -> None:
    samples = tone("both", 0.3, seed=2)
    speech = Speech(rate=RATE, features=20, normalise="none")
    emphasised = np.append(samples[:1], samples[1:] - 0.97 * samples[:-1])
    power = (
        torch.stft(
            torch.from_numpy(emphasised).double(),
            n_fft=256,
            hop_length=80,
            win_length=256,
            window=torch.nn.functional.pad(torch.hann_window(200, dtype=torch.float64), (0, 56)),
            center=False,
            return_complex=True,
        ).abs()
        ** 2
        / 256
    )
    bands = mel_bands(RATE, 256, 20, 20.0, 4000.0)
    expected = np.log(np.maximum(power.numpy().T @ bands, FLOOR))
    found = speech.frames(samples).astype(np.float32)  # frame n is about sample 80 n: its window begins 100 before
    shifted = np.log(np.maximum(_power(emphasised, -100) @ bands, FLOOR))
    np.testing.assert_allclose(found, shifted[: len(found)], atol=2e-2)  # kept in 16 bits
    np.testing.assert_allclose(
        np.log(np.maximum(_power(emphasised, 0) @ bands, FLOOR))[: len(expected)], expected, atol=1e-6
    )


def _power(samples: np.ndarray, begin: int) -> np.ndarray:
    """Power of windows of 200 samples, 80 apart, of which the first begins at `begin`."""
    padded = np.concatenate([np.zeros(max(0, -begin)), samples, np.zeros(400)])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    starts = range(0, len(samples), 80)
    rows = [np.fft.fft(padded[start : start + 200] * window, 256)[:129] for start in starts]
    return np.abs(np.array(rows)) ** 2 / 256


def test_a_tone_is_loudest_in_its_own_band() -> None:
    speech = Speech(rate=RATE, features=40)
    for word, hertz in (("low", 400.0), ("mid", 1000.0), ("high", 2400.0)):
        frames = speech.frames(tone(word, 0.3, seed=3)).astype(np.float32)[5:-5]
        peaks = mel_bands(RATE, 256, 40, 20.0, 4000.0).argmax(0) * RATE / 256
        assert abs(peaks[frames.mean(0).argmax()] - hertz) < 150


def test_normalised_frames_have_mean_0_and_deviation_1() -> None:
    frames = np.random.default_rng(1).normal(3, 2, (50, 8)).astype(np.float32)
    level, bands = normalised(frames, "level"), normalised(frames, "bands")
    assert abs(level.mean()) < 1e-5
    assert abs(level.std() - 1) < 1e-3
    np.testing.assert_allclose(bands.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(bands.std(0), 1, atol=1e-3)
    assert normalised(frames, "none") is frames
    louder = Speech(rate=RATE, features=20)
    quiet = tone("mid", 0.2, seed=4) + np.random.default_rng(5).normal(0, 0.1, 1600).astype(np.float32)
    np.testing.assert_allclose(louder.frames(quiet), louder.frames(2 * quiet), atol=0.03)


def test_files_of_any_format_rate_and_channels_say_the_same(tmp_path: Path) -> None:
    samples = sentence(["low", "high"], seed=5)
    twice = resample(samples, RATE, 2 * RATE)
    whole = np.rint(samples * 32767).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", whole, RATE)
    soundfile.write(tmp_path / "a.flac", whole, RATE)
    soundfile.write(tmp_path / "b.wav", np.stack([twice, twice], axis=1), 2 * RATE)
    speech = Speech(rate=RATE, features=20)
    first, second, third = (speech.read(str(tmp_path / name)) for name in ("a.wav", "a.flac", "b.wav"))
    assert len(first) == 1 + (len(samples) - 1) // 80
    np.testing.assert_array_equal(first, second)
    assert abs(len(first) - len(third)) <= 1
    assert np.corrcoef(first[: len(third)].ravel(), third[: len(first)].ravel())[0, 1] > 0.97
    np.testing.assert_array_equal(speech.read(samples), speech.frames(samples))
    np.testing.assert_array_equal(speech.read(tmp_path / "a.wav"), first)
    assert speech.read(PreparedFrames(first)) is first
    with pytest.raises(
        DataError, match=r"samples of shape \(4, 2\): expected one channel, a row of numbers from -1 to 1"
    ):
        speech.read(np.zeros((4, 2)))


def test_speeds_make_a_recording_shorter_and_higher() -> None:
    speech = Speech(rate=RATE, features=40, speeds=(0.8, 1.0, 1.25))
    slow, own, fast = speech.varied(tone("mid", 0.4, seed=6))
    assert (len(slow), len(own), len(fast)) == (50, 40, 32)
    middle = [frames[5:-5].astype(np.float32).mean(0).argmax() for frames in (slow, own, fast)]
    assert middle[0] < middle[1] < middle[2]


def test_long_recordings_are_cut_where_they_are_quiet() -> None:
    speech = Speech(rate=RATE, features=20)
    silence = np.zeros(800, np.float32)
    samples = np.concatenate([tone("low", 0.3, 7), silence, tone("high", 0.3, 8), silence, tone("mid", 0.3, 9)])
    frames = speech.frames(samples)
    reading = Reading(speech, lambda length: [(n, n + 1) for n in range(length)])
    parts = reading.parts(samples, 45)
    assert len(parts) == 3
    np.testing.assert_array_equal(np.concatenate(parts), frames)
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    assert 29 <= cuts[0] <= 41
    assert 69 <= cuts[1] <= 81
    assert len(reading.parts(samples, 500)) == 1
    assert reading.parts(PreparedFrames(np.zeros((0, 20), np.float16)), 500) == []
    assert reading.units(frames[:2]) == ("0,0.01", "0.01,0.02")


def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    speech = Speech(rate=RATE, shortest_seconds=0.1, longest_seconds=1.0)
    soundfile.write(tmp_path / "short.wav", np.zeros(100), RATE)
    soundfile.write(tmp_path / "long.wav", np.zeros(2 * RATE), RATE)
    soundfile.write(tmp_path / "nan.wav", np.full(2000, np.nan), RATE, subtype="FLOAT")
    (tmp_path / "text.wav").write_text("no sound")
    for name, reason in (
        ("gone.wav", "no such file"),
        ("short.wav", r"it lasts 0.013 s; expected 0.1 to 1.0 \(sources.shortest_seconds, sources.longest_seconds\)"),
        ("long.wav", "it lasts 2.000 s"),
        ("nan.wav", "some samples are not numbers"),
        ("text.wav", "Format not recognised|unknown format|Error opening"),
    ):
        with pytest.raises(Unreadable, match=reason):
            speech.examine(str(tmp_path / name))
    for name in ("gone.wav", "nan.wav", "text.wav"):
        with pytest.raises(DataError, match=r"cannot be read: .*expected a recording that libsndfile reads"):
            speech.read(str(tmp_path / name))
    assert len(speech.read(str(tmp_path / "long.wav"))) == 200, "too long to learn from, not to be read"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 1}, "rate=1, features=80: expected at least 100 and at least 1"),
        ({"hop": 0.03}, "hop=0.03, window=0.025: expected seconds above 0, the hop no more"),
        ({"lowest": 9000.0}, "expected hertz from 0 up to half the rate"),
        ({"speeds": (3.0,)}, r"speeds=\[3.0\]: expected numbers from 0.5 to 2, such as"),
        ({"shortest_seconds": 40.0}, "expected the first at least 0 and below the second"),
    ],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Speech(**settings)


def test_who_lacks_a_package_is_told_which_extra_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(UserError, match=r"reading this file needs soundfile: pip install 'transduce\[senses\]'"):
        Speech().read(str(tmp_path / "a.wav"))
    with pytest.raises(UserError, match="reading this file needs soxr"):
        resample(np.zeros(10, np.float32), 1, 2)
