"""Why scores are divided by sqrt(d_k): section 3.2.1 and footnote 4 of the paper, measured on the real scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from transduce.core.errors import ConfigError
from transduce.engines.torch.engine import pick_device
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.pace import fitted
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.model.attention import attend
from transduce.model.scores import Additive, Dot, ScaledDot, Score, softmax

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS: dict[str, Score] = {"dot product": Dot(), "scaled by 1/sqrt(d_k)": ScaledDot(), "additive": Additive()}


@dataclass(frozen=True)
class ScalingFactor:
    """Settings: random queries and keys of each width, and how many of each."""

    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    keys: int = 32
    queries: int = 512
    seed: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ConfigError(f"widths: expected two values of d_k or more, each at least 1, got {list(self.widths)}")
        if self.keys < 2 or self.queries < 2:
            raise ConfigError(f"keys: expected at least 2 keys and queries, got {self.keys} and {self.queries}")


@dataclass(frozen=True)
class Saturation:
    """Means over queries: variance of the scores, largest weight, relative entropy, size of the gradient.

    The entropy of the weights is divided by its maximum; the size of the gradient that the scores get is the root of
    the sum of squares of the softmax's derivatives.
    """

    way: str
    width: int
    variance: float
    largest: float
    entropy: float
    gradient: float


@dataclass(frozen=True)
class ScalingFactorResult:
    """Every score at every width."""

    settings: ScalingFactor
    rows: tuple[Saturation, ...]

    def of(self, way: str) -> list[Saturation]:
        return [row for row in self.rows if row.way == way]

    def report(self) -> LabReport:
        rows = tuple((row.way, row.width, row.variance, row.largest, row.entropy, row.gradient) for row in self.rows)
        headings = "score", "d_k", "variance of scores", "largest weight", "entropy / most", "gradient through softmax"
        return LabReport(
            name="scaling-factor",
            title="The scaling factor 1/sqrt(d_k)",
            question="What happens to softmax and its gradient when d_k grows, with and without the factor?",
            setup=(
                f"{self.settings.queries} random queries with {self.settings.keys} keys each, of components with"
                " mean 0 and variance 1."
            ),
            tables=(LabTable("scaling-factor", "Saturation of softmax", headings, rows),),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(10.0, 3.8),
        )

    def _findings(self) -> list[Claim]:
        plain, scaled, additive = (self.of(way) for way in WAYS)
        power = fitted(self.settings.widths, [row.variance for row in plain])
        last, first = plain[-1], plain[0]
        spread = [row.variance for row in scaled]
        lost, remaining = scaled[-1].gradient / last.gradient, scaled[-1].gradient / scaled[0].gradient
        return [
            Claim(
                f"The variance of the dot products grows as d_k^({power}); footnote 4 says d_k^1.",
                held=abs(power.value - 1) < 0.1,
            ),
            Claim(
                f"Divided by sqrt(d_k) it stays between {min(spread):.2f} and {max(spread):.2f}.",
                held=min(spread) > 0.5 and max(spread) < 2,
            ),
            Claim(
                f"Without the factor the largest of {self.settings.keys} weights is {first.largest:.2f} on average at"
                f" d_k = {first.width} and {last.largest:.2f} at d_k = {last.width}; with it {scaled[-1].largest:.2f}.",
                held=last.largest > 2 * scaled[-1].largest,
            ),
            Claim(
                f"At d_k = {last.width} the gradient through softmax is {lost:.1f} times larger with the factor than"
                f" without; with it, it is {remaining:.2f} of what it was at d_k = {scaled[0].width}.",
                held=lost > 2,
            ),
            Claim(
                f"The additive score needs no factor: its largest weight is {additive[-1].largest:.2f} at d_k ="
                f" {last.width}.",
                held=additive[-1].largest < 2 * scaled[-1].largest,
            ),
        ]

    def _draw(self, figure: Figure) -> None:
        panels = figure.subplots(1, 3)
        fields = ("variance", "largest", "gradient")
        labels = "variance of the scores", "largest weight", "gradient through softmax"
        for way, colour in zip(WAYS, colours(len(WAYS)), strict=True):
            rows = self.of(way)
            for axes, field in zip(panels, fields, strict=True):
                axes.plot(
                    [row.width for row in rows], [getattr(row, field) for row in rows], "o-", color=colour, label=way
                )
        for axes, label in zip(panels, labels, strict=True):
            axes.set_xscale("log", base=2)
            dress(axes, label)
            axes.set_xlabel("d_k", color=INK)
        panels[0].set_yscale("log")
        panels[1].set_ylim(0, 1)
        panels[2].set_ylim(bottom=0)
        panels[0].legend(frameon=False, fontsize=8, labelcolor=INK)


def scaling_factor(settings: ScalingFactor | None = None) -> ScalingFactorResult:
    """Measure scores, weights and gradients of every score at every width."""
    settings = settings or ScalingFactor()
    device = pick_device(settings.device)
    torch.manual_seed(settings.seed)
    rows = [_saturation(settings, way, width, device) for way in WAYS for width in settings.widths]
    return ScalingFactorResult(settings, tuple(rows))


def _saturation(settings: ScalingFactor, way: str, width: int, device: torch.device) -> Saturation:
    score = WAYS[way].build(1, width).to(device)
    query = torch.randn(settings.queries, 1, 1, width, device=device)
    key = torch.randn(settings.queries, 1, settings.keys, width, device=device)
    trace: dict[str, Tensor] = {}
    with torch.no_grad():
        attend(query, key, key, score=score, to_weights=softmax, trace=trace, name="weights")
        scores = score(query, key).flatten(1)  # (queries, keys)
    weights = trace["weights"].flatten(1)
    entropy = -(weights * weights.clamp(min=1e-38).log()).sum(-1) / math.log(settings.keys)
    # Of weight i by score j the derivative is w_i (1 - w_i) for i = j, else - w_i w_j.
    derivatives = torch.diag_embed(weights) - weights.unsqueeze(2) * weights.unsqueeze(1)
    return Saturation(
        way,
        width,
        variance=float(scores.var(-1).mean()),
        largest=float(weights.max(-1).values.mean()),
        entropy=float(entropy.mean()),
        gradient=float(derivatives.flatten(1).norm(dim=-1).mean()),
    )
