"""What the decoder reads in training: the reference, its own predictions, or the reference with noise.

A model that only ever reads references has not learned to continue after a mistake of its own (exposure bias). The two
remedies change the decoder's inputs and nothing else, so the loss, its smoothing and its terms stay cross-entropy's.
All draws come from torch's global generator, which the loop seeds for each micro-batch.
Shapes: B pairs, T target length, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from transduce.core.bounds import Bounds, Probability, check_bounds
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch
from transduce.model.contract import Autoregressive, Memory
from transduce.objectives import NO_CONTEXT, ObjectiveContext
from transduce.text.vocabulary import Symbols


class Inputs(Protocol):
    """The decoder's inputs (B, T) for a batch, at the step after `step` updates."""

    def __call__(self, model: Autoregressive, batch: Batch, memory: Memory, step: int) -> Tensor: ...


class InputsConfig(Protocol):
    """The config of what the decoder reads while it learns."""

    def build(self, context: ObjectiveContext) -> Inputs:
        """Build the function that returns the decoder's inputs for each batch."""
        ...


class ProbabilityConfig(Protocol):
    """The config of a probability that changes during training."""

    def at(self, step: int) -> float:
        """After `step` updates."""
        ...


@dataclass(frozen=True)
class TeacherForcing:
    """Read the reference, shifted by one."""

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Inputs:
        return lambda model, batch, memory, step: batch.inputs


# -- the model's own predictions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ramp:
    """A probability that goes from `start` to `end` during the first `steps` updates."""

    start: Probability = 0.0
    end: Probability = 0.25
    steps: Annotated[int, Bounds(1, expected="at least 1 update")] = 10_000

    def __post_init__(self) -> None:
        check_bounds(self)

    def between(self, progress: float) -> float:
        return self.start + (self.end - self.start) * progress


@dataclass(frozen=True)
class Linear(_Ramp):
    """A straight line, constant once `end` is reached."""

    def at(self, step: int) -> float:
        return self.between(min(1.0, step / self.steps))


@dataclass(frozen=True)
class Exponential(_Ramp):
    """Exponential decay: the distance to `end` falls to a hundredth after `steps` updates (Bengio's k^i)."""

    def at(self, step: int) -> float:
        return self.between(1 - 0.01 ** (step / self.steps))


@dataclass(frozen=True)
class InverseSigmoid(_Ramp):
    """An S-curve: 1 / (1 + exp(5 - 10 step / steps)) of the way, 0.7 % at first and 99.3 % after `steps`.

    Bengio's k / (k + exp(i / k)) is the same curve with its middle at k ln k and its slope 1 / k, which one number
    binds together; here the middle is always half of `steps`.
    """

    def at(self, step: int) -> float:
        return self.between(1 / (1 + math.exp(max(-700.0, 5 - 10 * step / self.steps))))


@dataclass(frozen=True)
class Constant:
    """A constant probability."""

    probability: Probability = 0.1

    def __post_init__(self) -> None:
        check_bounds(self)

    def at(self, step: int) -> float:
        return self.probability


@dataclass(frozen=True)
class ScheduledSampling:
    """Replace inputs by the model's own predictions, each with a scheduled probability.

    Bengio et al. 2015, in two passes as Mihaylova and Martins 2019 do for Transformers: the first reads the reference
    and predicts, without gradient and under the same kind of dropout, a token at each position; the second reads the
    mixture and is trained. `temperature` 0 takes the most probable token, 1 draws from the model's distribution.
    Predictions are tokens that decoding could have continued from: no end symbol, start symbol or padding.
    """

    schedule: Linear | Exponential | InverseSigmoid | Constant | ProbabilityConfig = Linear()
    temperature: Annotated[float, Bounds(0, expected="0 (the most probable token) or more")] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Inputs:
        struck = special(context.symbols)

        def inputs(model: Autoregressive, batch: Batch, memory: Memory, step: int) -> Tensor:
            probability = self.schedule.at(step)
            if probability == 0:
                return batch.inputs
            with torch.no_grad():
                logits, _ = model.advance(batch.inputs, model.start(memory), mask=batch.target_mask)
                predicted = self._predict(logits[:, :-1].float(), struck)  # (B, T - 1): for inputs 1, 2, ...
            torch.clear_autocast_cache()  # weights cast where no gradient was wanted must not serve where one is
            guessed = torch.cat((batch.inputs[:, :1], predicted), dim=1)
            return guessed.where(_draws(batch) < probability, batch.inputs)

        return inputs

    def _predict(self, logits: Tensor, struck: list[int]) -> Tensor:
        # The highest of logits with Gumbel noise is a draw from their softmax.
        noise = self.temperature * -torch.empty_like(logits).exponential_().log() if self.temperature else 0.0
        scores = logits + noise
        for token in struck:  # one by one: a list of them would have to be sent to the device first
            scores[..., token] = -torch.inf
        return scores.argmax(-1)


# -- noise -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputNoise:
    """Replace each input after the start symbol by a random token (`replace`) or the unknown token (`drop`).

    Unknown tokens are the word dropout of Bowman et al. 2016 (blank noising, Xie et al. 2017): the decoder must look at
    the source for what it cannot read. Random tokens, uniform over the vocabulary without special symbols, are mistakes
    to recover from, as SwitchOut's (Wang et al. 2018) are. The swaps and deletions that Lample et al. 2018 put on
    *source* sentences are left out: an input moved one position forward is the very answer expected there.
    """

    replace: Probability = 0.1
    drop: Probability = 0.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.replace + self.drop > 1:
            raise ConfigError(f"drop: expected at most 1 together with replace, got {self.drop} + {self.replace}")

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Inputs:
        if self.replace and not context.vocabulary:
            raise ValueError("noise that replaces tokens is built with ObjectiveContext(vocabulary=...)")
        struck = sorted({*special(context.symbols), context.symbols.unk})
        ordinary = context.vocabulary - len(struck)

        def inputs(model: Autoregressive, batch: Batch, memory: Memory, step: int) -> Tensor:
            draws = _draws(batch)
            noise = torch.full_like(batch.inputs, context.symbols.unk)
            if self.replace:
                random = torch.randint_like(noise, ordinary)
                for token in struck:  # in order, each makes way for itself: what is left are ordinary tokens
                    random += random >= token
                noise = random.where(draws < self.replace, noise)
            return noise.where(draws < self.replace + self.drop, batch.inputs)

        return inputs


InputsChoice = TeacherForcing | ScheduledSampling | InputNoise


def special(symbols: Symbols) -> list[int]:
    """Tokens that decoding never continues from: padding, start, end and forbidden symbols."""
    return sorted({symbols.pad, symbols.bos, symbols.eos, *symbols.never})


def _draws(batch: Batch) -> Tensor:
    """Uniform numbers (B, T) from [0, 1) for the inputs that may change; 1 at the start symbol and at padding."""
    draws = torch.rand(batch.inputs.shape, device=batch.inputs.device).where(batch.target_mask, 1.0)
    return torch.cat((torch.ones_like(draws[:, :1]), draws[:, 1:]), dim=1)
