"""Minimum risk training (Shen et al. 2016): of some candidates, the good ones shall hold the probability.

    loss of a sentence = sum over its candidates y of  q(y) (1 - reward(y)),   q(y) = p(y)^sharpness / their sum

Unlike REINFORCE's this is a loss whose value means something: the risk. With all translations as candidates and a
sharpness of 1 it is the expected one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.errors import ConfigError
from transduce.objectives.sequence import Candidate, Sentences, SequenceLevel
from transduce.search.settings import Sample


@dataclass(frozen=True)
class MinimumRisk(SequenceLevel):
    """Candidates are the distinct ones among `samples` draws, and the reference where `with_reference`, as Shen has it.

    `sharpness` is the paper's alpha: near 0 all candidates weigh alike, so that also the improbable ones are learned
    from; at 1 they weigh as the model has them.
    """

    sharpness: float = 0.005
    with_reference: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sharpness < math.inf:
            raise ConfigError(f"sharpness: expected a number above 0, got {self.sharpness}")

    def judge(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        candidates = sentences.find(Sample(samples=self.samples, limits=self.limits).build())
        if self.with_reference:
            candidates = [[*found, right] for found, right in zip(candidates, sentences.references, strict=True)]
        rewards = sentences.rewards(candidates)  # (B, n)
        sharpened = self.sharpness * sentences.log_probs(candidates)
        again = torch.tensor([repeated(found) for found in candidates]).to(sharpened.device)
        shares = sharpened.masked_fill(again, -torch.inf).softmax(1)
        return (shares * (1 - rewards)).sum(1), rewards[:, : self.samples].mean(1)


def repeated(candidates: Sequence[Candidate]) -> list[bool]:
    """Whether each has come before: candidates are a set."""
    first = {one: place for place, one in reversed(list(enumerate(candidates)))}
    return [first[one] != place for place, one in enumerate(candidates)]
