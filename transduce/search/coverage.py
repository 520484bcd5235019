"""The coverage penalty of Wu et al. 2016 (equation 14): a translation that never looked at a source token loses score.

Shapes: B sentences, R rows (the groups of a sentence stand together), K paths a row, H heads, S source length.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from transduce.errors import ConfigError

# A sum of exactly 0, as ReLU attention gives, would rule a translation out for good: the paper has softmax only.
LEAST = 1e-6


def coverage_penalty(covered: Tensor, real: Tensor, weight: float) -> Tensor:
    """weight * sum over real source tokens of log(min(attention received, 1)), never above 0.

    covered (R, n, S) is the attention each source token received from all target tokens, the end symbol's included;
    real (R, S) -> (R, n).
    """
    received = covered.clamp(LEAST, 1).masked_fill(~real[:, None], 1)
    return weight * received.log().sum(-1)


def attention(trace: dict[str, Tensor]) -> Tensor:
    """Where the newest token's step looked: the last decoder layer's mean over heads, and over an ensemble: (N, S)."""
    last: dict[str, Tensor] = {}  # by member; layers are traced in order
    for name, weights in trace.items():  # weights (N, H, t, S)
        if found := re.fullmatch(r"(.*?)decoder\.\d+\.cross", name):
            last[found[1]] = weights[:, :, -1].float().mean(1)
    if not last:
        raise ConfigError(
            "coverage: this model's decoder does not look at the source by attention (it traces no decoder.N.cross),"
            " so that there is nothing to cover with; set coverage=0"
        )
    return torch.stack(list(last.values())).mean(0)
