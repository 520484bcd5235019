"""Which weights a run with a moving average offers: the raw ones or their average, whichever validate better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from transduce.training.session import Session
from transduce.training.validate import ValidationResult

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Offered:
    """Weights, what validation found of them, and whether they are `raw` though there is a moving average."""

    weights: Weights
    measured: ValidationResult
    raw: bool = False


def better(
    session: Session, measure: Callable[[Weights], ValidationResult], loss: Callable[[Weights], float]
) -> Offered:
    """The weights of a run where it stands; with a moving average the better of both, by the metric of validation.

    The raw ones are measured by their loss on the same text and, if that is the lower one, by all measures like the
    average. With several processes all must ask.
    """
    weights = session.averaged_weights()
    offered = Offered(weights, measure(weights))
    if session.average is None:
        return offered
    raw, averaged = session.raw_weights(), offered.measured.values
    losses = {"raw_loss": loss(raw), "ema_loss": averaged["loss"]}
    if losses["raw_loss"] < losses["ema_loss"]:
        measured, rank = measure(raw), session.config.validation.rank
        if rank(measured.values) < rank(averaged):
            offered = Offered(raw, measured, raw=True)
    return replace(offered, measured=replace(offered.measured, values=offered.measured.values | losses))


def which(ema: float, raw: bool) -> str:
    """For the name of weights in a run with a moving average: raw or averaged. Without one nothing."""
    if not ema:
        return ""
    return ", raw weights" if raw else f", moving average of weights (decay {ema})"
