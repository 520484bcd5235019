"""REINFORCE (Williams 1992; for translations Ranzato et al. 2016): what was rewarded becomes more probable.

    loss of a sentence = -1/n sum over its samples y of  (reward(y) - baseline) log p(y)

Its gradient is in expectation that of minus the expected reward, with any baseline that does not depend on y itself;
its value means nothing. What to watch is the metric `reward`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from transduce.errors import ConfigError
from transduce.objectives.sequence import Sentences, SequenceLevel
from transduce.search.settings import Greedy, Sample


@dataclass(frozen=True)
class Reinforce(SequenceLevel):
    """Samples that are better than the `baseline` become more probable, worse ones less.

    "others" is the mean reward of the sentence's other samples (leave-one-out, Kool et al. 2019), "greedy" the reward
    of its greedy translation (self-critical, Rennie et al. 2017), "none" is 0 and noisy.
    """

    baseline: Literal["others", "greedy", "none"] = "others"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline == "others" and self.samples < 2:
            raise ConfigError("samples: a baseline of the other samples needs at least 2; or set baseline=greedy")

    def judge(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        samples = sentences.find(Sample(samples=self.samples, limits=self.limits).build())
        rewards = sentences.rewards(samples)  # (B, n)
        advantages = rewards - self._baseline(sentences, rewards)
        return -(advantages * sentences.log_probs(samples)).mean(1), rewards.mean(1)

    def _baseline(self, sentences: Sentences, rewards: Tensor) -> Tensor:
        """What each sample's reward (B, n) is compared with: (B, n) or (B, 1)."""
        if self.baseline == "others":
            return (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        if self.baseline == "greedy":
            return sentences.rewards(sentences.find(Greedy(self.limits).build()))
        return rewards.new_zeros(len(rewards), 1)
