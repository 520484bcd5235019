"""Positions (section 3.5): the picture of the sinusoids, what distance means in them, and unseen lengths.

"We chose the sinusoidal version because it may allow the model to extrapolate to sequence lengths longer than the ones
encountered during training": tried here for every scheme.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import TRANSFORMER, TrainingExperiment, exact, translate_whole
from transduce.lab.report import Claim, LabReport, LabTable, listed
from transduce.lab.tasks import Pair, copying, strings
from transduce.model.positions import Positions as Schemes
from transduce.model.positions import sinusoids

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMES = tuple(kind_of(scheme) for scheme in Schemes.__args__)
_PICTURE = 128  # positions and numbers in the picture


@dataclass(frozen=True)
class Positions(TrainingExperiment):
    """Settings: strings of 1 to `longest` letters are copied in training, longer ones afterwards."""

    steps: int = 300
    longest: int = 10
    schemes: tuple[str, ...] = SCHEMES

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [scheme for scheme in self.schemes if scheme not in SCHEMES]
        if unknown or not self.schemes:
            raise ConfigError(f"schemes: expected some of {', '.join(SCHEMES)}, got {list(self.schemes)}")
        if self.longest < 4:
            raise ConfigError(f"longest: expected at least 4 letters, got {self.longest}")


@dataclass(frozen=True)
class Copied:
    """The quality on strings of these lengths: letters at their position, and whole strings."""

    scheme: str
    shortest: int
    longest: int
    letters: float
    exact: float


@dataclass(frozen=True)
class PositionsResult:
    """The results: `rows` has every scheme in every range of length.

    `shift_error` is how far PE(pos + k) is from the rotation of PE(pos); `products` are PE(pos) . PE(pos + k) for
    k = 0, 1, ..., over their value at 0.
    """

    settings: Positions
    place: str
    rows: tuple[Copied, ...]
    shift_error: float
    products: tuple[float, ...]

    def of(self, scheme: str) -> list[Copied]:
        return [row for row in self.rows if row.scheme == scheme]

    def report(self) -> LabReport:
        ranges = [f"{row.shortest}-{row.longest}" for row in self.of(self.settings.schemes[0])]
        letters = tuple((scheme, *(100 * row.letters for row in self.of(scheme))) for scheme in self.settings.schemes)
        exact_rows = tuple((scheme, *(100 * row.exact for row in self.of(scheme))) for scheme in self.settings.schemes)
        headings = ("scheme", *(f"{label} letters" for label in ranges))
        distances = tuple((k, product) for k, product in enumerate(self.products))
        return LabReport(
            name="positions",
            title="Positions: six schemes, and lengths never seen",
            question=f"Trained on strings of up to {self.settings.longest} letters, which schemes copy longer ones?",
            setup=f"{self.place}. The first range is what was trained on; greedy search.",
            tables=(
                LabTable("positions", "Letters at their place, %", headings, letters),
                LabTable("exact", "Whole strings, %", headings, exact_rows),
                LabTable("distances", "Sinusoids: PE(pos) · PE(pos + k), 1 at k = 0", ("k", "product"), distances[:17]),
            ),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 4.2),
        )

    def _findings(self) -> list[Claim]:
        seen = {scheme: self.of(scheme)[0].letters for scheme in self.settings.schemes}
        beyond = {scheme: self.of(scheme)[-1].letters for scheme in self.settings.schemes}
        order = sorted(beyond, key=lambda scheme: -beyond[scheme])
        ranking = ", ".join(
            f"{scheme} {100 * beyond[scheme]:.0f} % (seen lengths: {100 * seen[scheme]:.0f} %)" for scheme in order
        )
        lasting = [scheme for scheme in order if beyond[scheme] > 0.9 * seen[scheme]]
        text = "none keeps nine tenths of it" if not lasting else f"{listed(lasting)} keep nine tenths of it"
        found = [
            Claim(
                "PE(pos + k) is PE(pos) turned, the same turn for every pos: the largest difference is"
                f" {self.shift_error:.1e}.",
                held=self.shift_error < 1e-5,
            ),
            Claim(
                f"Letters at their place at about twice the trained length: {ranking}; {text}.",
                held=None,
            ),
        ]
        if "sinusoidal" in beyond:
            sinusoidal = beyond["sinusoidal"]
            kept = sinusoidal / max(seen["sinusoidal"], 1e-9)
            text = f"The sinusoids keep {kept:.0%} of their quality at twice the length;"
            found.append(
                Claim(f'{text} the paper hoped that they "may allow" it.', held=sinusoidal > 0.9 * seen["sinusoidal"])
            )
        return found

    def _draw(self, figure: Figure) -> None:
        picture, quality = figure.subplots(1, 2)
        picture.imshow(sinusoids(_PICTURE, _PICTURE).numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
        picture.set_xlabel("number of the vector", color=INK)
        picture.set_ylabel("position", color=INK)
        picture.set_title("sin and cos of pos / 10000^(2i / d)", fontsize=9, color=INK)
        for scheme, colour in zip(self.settings.schemes, colours(len(self.settings.schemes)), strict=True):
            rows = self.of(scheme)
            quality.plot(range(len(rows)), [100 * row.letters for row in rows], "o-", color=colour, label=scheme)
        dress(quality, "letters at their place, %")
        rows = self.of(self.settings.schemes[0])
        quality.set_xticks(range(len(rows)), [f"{row.shortest}-{row.longest}" for row in rows])
        quality.set_xlabel(f"letters of the string (trained: up to {self.settings.longest})", color=INK)
        quality.set_ylim(0, 102)
        quality.legend(frameon=False, fontsize=8, labelcolor=INK)


def positions(settings: Positions | None = None) -> PositionsResult:
    """Train one small Transformer with each scheme."""
    settings = settings or Positions()
    longest = settings.longest
    ranges = [(1, longest), (longest + 1, longest * 3 // 2), (longest * 3 // 2 + 1, longest * 2)]
    task = copying(6000, range(1 + longest // 3, longest + 1), 200, settings.seed)
    rows: list[Copied] = []
    with settings.bench(task) as bench:
        tests = {
            lengths: strings(100, range(max(3, lengths[0]), lengths[1] + 1), settings.seed + 1) for lengths in ranges
        }
        for scheme in settings.schemes:
            words = [f"model.{side}.positions={scheme}" for side in ("encoder", "decoder")]
            translator = bench.train(scheme, *TRANSFORMER, *words, "data.tokens=512").open()
            for (first, last), pairs in tests.items():
                texts = translate_whole(translator, [source for source, _ in pairs])
                right = [target for _, target in pairs]
                rows.append(Copied(scheme, first, last, letters_right(texts, pairs), exact(texts, right)))
        return PositionsResult(settings, bench.place, tuple(rows), shift_error(), products())


def letters_right(texts: list[str], pairs: tuple[Pair, ...]) -> float:
    """The share of letters at their right position."""
    right = sum(
        written == expected
        for text, (_, target) in zip(texts, pairs, strict=True)
        for written, expected in zip(text, target, strict=False)
    )
    return right / sum(len(target) for _, target in pairs)


def shift_error(shift: int = 17, length: int = 200, d_model: int = 64) -> float:
    """How far PE(pos + shift) is from PE(pos) with each pair of numbers rotated by one angle for all positions."""
    table = sinusoids(length + shift, d_model).double()
    pairs = table.view(-1, d_model // 2, 2)  # sin, cos
    turned = torch.stack((_turn(pairs, shift, 0), _turn(pairs, shift, 1)), dim=-1)
    return float((turned[:length] - pairs[shift:]).abs().max())


def _turn(pairs: Tensor, shift: int, which: int) -> Tensor:
    """Rotate pairs: sin(a + b) and cos(a + b) by the addition theorems, with b read off the table."""
    sin, cos = pairs[shift, :, 0], pairs[shift, :, 1]
    if which == 0:
        return pairs[..., 0] * cos + pairs[..., 1] * sin
    return pairs[..., 1] * cos - pairs[..., 0] * sin


def products(length: int = 64, d_model: int = 64) -> tuple[float, ...]:
    """The products PE(0) . PE(k) over PE(0) . PE(0), equal from every position on."""
    table = sinusoids(length, d_model).double()
    return tuple(((table @ table[0]) / (table[0] @ table[0])).tolist())
