"""Speech as frames: log mel-band energies of a recording, a frame every hundredth of a second.

Files are read by soundfile (wav, flac, ogg ...), and resampled by soxr if their rate is not the model's. Frames
resemble Kaldi's: pre-emphasis, a Hann window, the power spectrum, triangular filters spaced evenly on the mel scale
(O'Shaughnessy's 2595 log10(1 + f / 700)), the logarithm; then normalised. Shapes: N samples, L frames, F bands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from transduce.core.errors import ConfigError, DataError
from transduce.data.readers import Array, Dtype, FileReader, Unreadable, missing

Floats = npt.NDArray[np.float32]
FLOOR = 1e-6  # energy below it, of samples in [-1, 1], counts as silence, so that faint noise does not matter
EMPHASIS = 0.97


@dataclass(frozen=True)
class Speech(FileReader):
    """Reads sources that are paths of recordings.

    `normalise`: "level" subtracts one mean over all frames of a recording and divides by one deviation, which removes
    loudness; "bands" does so for each band, which also removes the microphone; "none" leaves frames as they are.
    `speeds` makes several training pairs of each recording, played slower and faster (Ko et al., 2015).
    """

    kind: ClassVar[str] = "speech"
    dtype: ClassVar[Dtype] = "float16"
    expected: ClassVar[str] = "expected a recording that libsndfile reads (wav, flac, ogg, aiff)"
    rate: int = 16000  # samples per second; recordings of another rate are resampled
    features: int = 80  # mel bands
    window: float = 0.025  # seconds
    hop: float = 0.010  # seconds between frames
    lowest: float = 20.0  # hertz
    highest: float = 0.0  # hertz; 0 = half the rate
    normalise: Literal["level", "bands", "none"] = "level"
    speeds: tuple[float, ...] = (1.0,)
    shortest_seconds: float = 0.02
    longest_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.rate < 100 or self.features < 1:
            raise ConfigError(f"rate={self.rate}, features={self.features}: expected at least 100 and at least 1")
        if not 0 < self.hop <= self.window:
            raise ConfigError(f"hop={self.hop}, window={self.window}: expected seconds above 0, the hop no more")
        if not 0 <= self.lowest < self.top <= self.rate / 2:
            raise ConfigError(
                f"lowest={self.lowest}, highest={self.highest}: expected hertz from 0 up to half the rate,"
                f" {self.rate / 2}"
            )
        if not self.speeds or not all(0.5 <= speed <= 2 for speed in self.speeds):
            raise ConfigError(f"speeds={list(self.speeds)}: expected numbers from 0.5 to 2, such as [0.9, 1.0, 1.1]")
        if not 0 <= self.shortest_seconds < self.longest_seconds:
            raise ConfigError(
                f"shortest_seconds={self.shortest_seconds}, longest_seconds={self.longest_seconds}: expected the first"
                " at least 0 and below the second"
            )

    @property
    def width(self) -> int:
        return self.features

    @property
    def top(self) -> float:
        """The upper end of the highest band, in hertz."""
        return self.highest or self.rate / 2

    def load(self, path: str) -> Array:
        """Load samples in [-1, 1] at the reader's rate; several channels are averaged."""
        samples, rate = read_samples(path)
        if not np.isfinite(samples).all():
            raise Unreadable("some samples are not numbers")
        return resample(samples, rate, self.rate)

    def check(self, path: str) -> None:
        seconds = duration(path)
        if not self.shortest_seconds <= seconds <= self.longest_seconds:
            raise Unreadable(
                f"it lasts {seconds:.3f} s; expected {self.shortest_seconds} to {self.longest_seconds}"
                " (sources.shortest_seconds, sources.longest_seconds)"
            )

    def frames(self, content: Array) -> Array:
        samples = np.asarray(content, np.float32)
        if samples.ndim != 1:
            raise DataError(f"samples of shape {samples.shape}: expected one channel, a row of numbers from -1 to 1")
        mel = log_mel(samples, self.rate, self.features, self.window, self.hop, self.lowest, self.top)
        return normalised(mel, self.normalise).astype(self.dtype)

    def varied(self, content: Array) -> list[Array]:
        # Played at another speed like a tape: the pitch changes too.
        faster = [resample(content, round(self.rate * speed), self.rate) for speed in self.speeds]
        return [self.frames(samples) for samples in faster]

    def parts(self, frames: Array, longest: int) -> list[Array]:
        """Cut at the quietest frame of the latter half of what fits, repeatedly."""
        parts = []
        while len(frames) > longest > 1:
            half = longest // 2
            quiet = half + int(frames[half:longest].astype(np.float32).mean(1).argmin())
            parts.append(frames[:quiet])
            frames = frames[quiet:]
        return [*parts, frames]

    def place(self, frame: int, stop: int) -> dict[str, float]:
        return {"seconds": round(frame * self.hop, 6), "until": round(stop * self.hop, 6)}


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a recording with soundfile."""
    try:
        import soundfile
    except (ImportError, OSError):  # the package, or the library that it wraps
        raise missing("soundfile") from None
    if not Path(path).is_file():
        raise Unreadable("no such file")
    try:
        with soundfile.SoundFile(path) as file:
            yield file
    except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
        raise Unreadable(f"{str(error).strip().rstrip('.') or type(error).__name__}") from None


def duration(path: str) -> float:
    """Duration of a recording in seconds, from its header."""
    with _opened(path) as file:
        return float(file.frames / file.samplerate)


def read_samples(path: str) -> tuple[Floats, int]:
    """Samples in [-1, 1], the mean of all channels, and their rate."""
    with _opened(path) as file:
        samples = file.read(dtype="float32", always_2d=True)
        return samples.mean(1), int(file.samplerate)


def resample(samples: Array, rate: int, new_rate: int) -> Floats:
    """Resample a recording to another rate."""
    if rate == new_rate:
        return np.asarray(samples, np.float32)
    try:
        import soxr
    except ImportError:
        raise missing("soxr") from None
    return np.asarray(soxr.resample(np.asarray(samples, np.float32), rate, new_rate), np.float32)


def log_mel(
    samples: Floats, rate: int, features: int, window: float, hop: float, lowest: float, highest: float
) -> Floats:
    """Log mel energies (L, features): frame n is centred n hops after the first sample."""
    size, step = max(2, round(window * rate)), max(1, round(hop * rate))
    points = 1 << (size - 1).bit_length()  # of the FFT: the next power of two
    emphasised = np.append(samples[:1], samples[1:] - EMPHASIS * samples[:-1])
    padded = np.pad(emphasised, (size // 2, size - size // 2))
    count = 1 + (len(samples) - 1) // step if len(samples) else 0
    cut = np.lib.stride_tricks.sliding_window_view(padded, size)[::step][:count] * np.hanning(size + 1)[:size]
    power = np.abs(np.fft.rfft(cut, points)) ** 2 / points  # (L, points / 2 + 1)
    return np.log(np.maximum(power @ mel_bands(rate, points, features, lowest, highest), FLOOR)).astype(np.float32)


@lru_cache(maxsize=8)
def mel_bands(rate: int, points: int, features: int, lowest: float, highest: float) -> npt.NDArray[np.float64]:
    """Triangular filters (points / 2 + 1, features) with corners evenly spaced on the mel scale and peaks of 1."""

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    corners = 700 * (10 ** (np.linspace(mel(lowest), mel(highest), features + 2) / 2595) - 1)  # hertz
    bins = np.arange(points // 2 + 1)[:, None] * (rate / points)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    return np.maximum(0, np.minimum((bins - left) / (middle - left), (right - bins) / (right - middle)))


def normalised(frames: Floats, how: str) -> Floats:
    """Normalise to mean 0 and deviation 1 over a recording, of all numbers together or per band."""
    if how == "none":
        return frames
    axis = 0 if how == "bands" else None
    deviation = np.maximum(frames.std(axis=axis, keepdims=True), 1e-3)
    return np.asarray((frames - frames.mean(axis=axis, keepdims=True)) / deviation, np.float32)
