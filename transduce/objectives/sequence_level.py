"""Sequence-level training: draw translations, reward them, score them again with gradient.

Translations are drawn and scored without dropout: what improves is then the model that translates, and the gradient is
that of its expected reward, not of one network's draws through another.
Shapes: B pairs, n candidates of each, N of all, T target length, V vocabulary.

REINFORCE (Williams 1992; for translations Ranzato et al. 2016): what was rewarded becomes more probable.

    loss of a sentence = -1/n sum over its samples y of  (reward(y) - baseline) log p(y)

Its gradient is in expectation that of minus the expected reward, with any baseline that does not depend on y itself;
its value means nothing. What to watch is the metric `reward`.

Minimum risk training (Shen et al. 2016): of some candidates, the good ones shall hold the probability.

    loss of a sentence = sum over its candidates y of  q(y) (1 - reward(y)),   q(y) = p(y)^sharpness / their sum

Unlike REINFORCE's this is a loss whose value means something: the risk. With all translations as candidates and a
sharpness of 1 it is the expected one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transduce.core.bounds import Bounds, PositiveFloat, check_bounds
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch
from transduce.metrics import SentenceMetric, SentenceMetricConfig
from transduce.metrics.sentence import Scorer, sentence_scorer
from transduce.model.contract import Autoregressive, Memory, evaluating, rows
from transduce.model.seq2seq import Model
from transduce.objectives import NO_CONTEXT, Loss, Objective, ObjectiveContext
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.search import Search
from transduce.search.settings import Greedy, Limits, Sample

Candidate = tuple[int, ...]  # as the model wrote it: with the end symbol unless the length limit came first


@dataclass(frozen=True)
class SequenceLevel:
    """Settings common to REINFORCE and minimum risk training.

    `samples` translations of each sentence are drawn, no longer than `longest_ratio` times the source plus
    `longest_extra` tokens, and rewarded with sentence chrF or BLEU against the reference, from 0 to 1. Cross-entropy,
    which keeps the model a fluent one, is added with its terms in the weight `mixing`. Meant for a model that
    cross-entropy has trained: the samples of an untrained one are all alike bad.

    Each sentence weighs as many as its reference has tokens, end symbol included: so it does in cross-entropy, and,
    since n-grams are pooled, in the corpus's BLEU and chrF. Count is then target tokens, as for every objective.
    """

    samples: Annotated[int, Bounds(1, expected="at least 1 translation a sentence")] = 8
    reward: SentenceMetric | SentenceMetricConfig = "chrf"
    longest_ratio: float = 1.5
    longest_extra: int = 10
    mixing: Annotated[float, Bounds(0, expected="the weight of cross-entropy, 0 or more")] = 0.3
    cross_entropy: CrossEntropy = CrossEntropy()

    def __post_init__(self) -> None:
        check_bounds(self)
        Limits(self.longest_ratio, self.longest_extra)  # refuses what these cannot be

    @property
    def limits(self) -> Limits:
        return Limits(self.longest_ratio, self.longest_extra)

    def check(self, model: Model) -> None:
        """Raise ConfigError for a model that lacks what a term beside cross-entropy needs."""
        try:
            self.cross_entropy.check(model)
        except ConfigError as error:
            raise ConfigError(f"cross_entropy.{error}") from None

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Objective:
        scorer, cross_entropy = sentence_scorer(self.reward), self.cross_entropy.build(context)

        def loss(model: Autoregressive, batch: Batch, step: int) -> Loss:
            lengths = batch.target_mask.sum(1)  # (B,)
            with evaluating(cast("nn.Module", model)):
                memory = model.encode(batch.source, batch.source_mask)
                losses, rewards = self.judge(Sentences(model, memory, batch, context, scorer))
            total, metrics = (lengths * losses).sum(), {"reward": (lengths * rewards).sum()}
            if self.mixing:
                fluency = cross_entropy(model, batch, step)
                total, metrics = total + self.mixing * fluency.total, metrics | fluency.metrics
            return Loss(total, lengths.sum(), metrics)

        return loss

    def judge(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """A loss with gradient (B,) and the mean reward of the drawn translations (B,), for each sentence."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sentences:
    """An encoded batch: draws translations of its sentences, rewards them and scores them."""

    model: Autoregressive
    memory: Memory
    batch: Batch
    context: ObjectiveContext
    scorer: Scorer

    @cached_property
    def references(self) -> list[Candidate]:
        gold, lengths = self.batch.gold.tolist(), self.batch.target_mask.sum(1).tolist()
        return [tuple(row[:length]) for row, length in zip(gold, lengths, strict=True)]

    @cached_property
    def keys(self) -> list[int]:
        """Seeds of a search's draws, from torch's global generator: new at each step, reproducible on resuming."""
        drawn: list[int] = torch.randint(-(2**63), 2**63 - 1, (len(self.references),)).tolist()
        return drawn

    def find(self, search: Search) -> list[list[Candidate]]:
        """Decode translations of each sentence, with their end symbol if finished."""
        eos = self.context.symbols.eos
        found = search(self.model, self.memory, self.context.symbols, keys=self.keys)
        torch.clear_autocast_cache()  # weights cast where no gradient was wanted must not serve where one is
        return [[(*best.tokens, eos) if best.finished else best.tokens for best in sentence] for sentence in found]

    def rewards(self, candidates: Sequence[Sequence[Candidate]]) -> Tensor:
        """Sentence chrF or BLEU (B, n), 0 to 1, of n candidates a sentence; both texts are what the tokens spell."""
        read, count = self.context.detokenize, len(candidates[0])
        texts = [read(tokens) for tokens in chain.from_iterable(candidates)]
        references = [text for text in map(read, self.references) for _ in range(count)]
        scores = torch.tensor(self.scorer(texts, references) / 100, dtype=torch.float32)
        return scores.view(-1, count).to(self.memory.mask.device)

    def log_probs(self, candidates: Sequence[Sequence[Candidate]]) -> Tensor:
        """Log-probabilities (B, n), with gradient, with which sampling would draw n candidates a sentence.

        A search never draws some symbols, so they get no probability here either. A translation that the length limit
        cut has no end symbol, and none counts.
        """
        device, symbols = self.memory.mask.device, self.context.symbols
        written = [torch.tensor(tokens) for tokens in chain.from_iterable(candidates)]
        gold = pad_sequence(written, batch_first=True, padding_value=symbols.pad).to(device)  # (N, T)
        lengths = torch.tensor([len(tokens) for tokens in written]).to(device)
        mask = torch.arange(gold.shape[1], device=device) < lengths[:, None]
        inputs = torch.cat((torch.full_like(gold[:, :1], symbols.bos), gold[:, :-1]), dim=1)
        sentence = torch.arange(len(candidates), device=device).repeat_interleave(len(candidates[0]))
        logits, _ = self.model.advance(inputs, rows(self.model.start(self.memory), sentence), mask=mask)
        never = torch.tensor(symbols.never, dtype=torch.int64).to(device)
        log_probs = logits.float().index_fill(-1, never, -torch.inf).log_softmax(-1)  # (N, T, V)
        of_tokens = log_probs.gather(-1, gold[..., None]).squeeze(-1)
        return of_tokens.where(mask, 0.0).sum(1).view(len(candidates), -1)


@dataclass(frozen=True)
class Reinforce(SequenceLevel):
    """REINFORCE: samples better than the `baseline` become more probable, worse ones less.

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
        """Baseline of each sample's reward (B, n): (B, n) or (B, 1)."""
        if self.baseline == "others":
            return (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        if self.baseline == "greedy":
            return sentences.rewards(sentences.find(Greedy(self.limits).build()))
        return rewards.new_zeros(len(rewards), 1)


@dataclass(frozen=True)
class MinimumRisk(SequenceLevel):
    """Minimum risk training over the distinct ones of `samples` draws, and the reference if `with_reference`.

    `sharpness` is the paper's alpha: near 0 all candidates weigh alike, so that also the improbable ones are learned
    from; at 1 they weigh as the model has them.
    """

    sharpness: PositiveFloat = 0.005
    with_reference: bool = True

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
    """Whether each candidate has come before: candidates are a set."""
    first = {candidate: index for index, candidate in reversed(list(enumerate(candidates)))}
    return [first[candidate] != index for index, candidate in enumerate(candidates)]
