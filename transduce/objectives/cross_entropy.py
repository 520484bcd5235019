"""Cross-entropy with label smoothing (section 5.4), summed over target tokens, and whatever terms stand beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from transduce.data.batch import Batch
from transduce.errors import ConfigError
from transduce.model.contract import Memory, TrainableSeq2Seq
from transduce.model.seq2seq import Model
from transduce.objectives.base import NO_CONTEXT, ForwardOutput, Loss, Objective, ObjectiveContext, forward
from transduce.objectives.inputs import InputsChoice, TeacherForcing
from transduce.objectives.projected import projected_losses
from transduce.objectives.terms import Term, Terms
from transduce.objectives.weighted import check_weight


@dataclass(frozen=True)
class Smoothed:
    """Settings of an objective that rests on cross-entropy: -log p(gold), smoothed, and terms of the same pass.

    The gold token gets weight 1 - e + e / V and every other e / V (e = label_smoothing). V counts the whole vocabulary,
    padding included, as in `torch.nn.functional.cross_entropy`. `weight` is that of the cross-entropy itself.
    """

    label_smoothing: float = 0.1
    weight: float = field(default=1.0, kw_only=True)
    terms: tuple[Term, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected at least 0 and below 1, got {self.label_smoothing}")
        check_weight(self.weight)

    def check(self, model: Model) -> None:
        """Refuse a model that lacks what a term needs."""
        for number, term in enumerate(self.terms):
            try:
                term.check(model)
            except ConfigError as error:
                raise ConfigError(f"terms[{number}].{error}") from None

    @property
    def steady(self) -> bool:
        """Whether every step does the same, but for random draws: then its launches can be recorded and replayed."""
        return not self.terms

    def loss_of(self, passed: ForwardOutput, terms: Terms, step: int) -> Loss:
        """Cross-entropy and terms of one forward pass."""
        loss = smoothed_loss(passed.log_probs, passed.batch.gold, passed.batch.target_mask, self.label_smoothing)
        return terms.add(Loss(self.weight * loss.total, loss.count, loss.metrics), passed, step)


@dataclass(frozen=True)
class CrossEntropy(Smoothed):
    """Smoothed cross-entropy, and terms; `inputs` is what the decoder reads meanwhile."""

    inputs: InputsChoice = TeacherForcing()

    @property
    def steady(self) -> bool:
        return not self.terms and isinstance(self.inputs, TeacherForcing)

    def build(self, tools: ObjectiveContext = NO_CONTEXT) -> Objective:
        read, terms = self.inputs.build(tools), Terms(self.terms, tools)

        def objective(model: TrainableSeq2Seq, batch: Batch, step: int) -> Loss:
            def inputs(memory: Memory) -> Tensor:
                return read(model, batch, memory, step)

            if batch.room != (0, 0) and self.steady:
                return self._projected(model, *_packed(model, batch))
            passed = forward(model, batch, terms.trace(step), inputs)
            if self.terms:  # they read logits, so that these are there
                return self.loss_of(passed, terms, step)
            return self._projected(model, passed.states, batch.gold, batch.target_mask)

        return objective

    def _projected(self, model: TrainableSeq2Seq, states: Tensor, gold: Tensor, mask: Tensor) -> Loss:
        """states (B, T, D), gold and mask (B, T)."""
        flat = states.flatten(0, 1), model.output, gold.flatten(), mask.flatten()
        smoothed, nll = projected_losses(*flat, self.label_smoothing, model.output_bias)
        return Loss(self.weight * smoothed, mask.sum(), {"nll": nll.detach()})


def _packed(model: TrainableSeq2Seq, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """States, gold and mask end to end, as one row."""
    read = batch.source, batch.source_mask, batch.inputs, batch.target_mask
    states, layout = model.packed(*read, batch.room)
    gold = layout.collect(batch.gold)
    return states, gold, layout.real(batch.target_mask)


def smoothed_loss(log_probs: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> Loss:
    """log_probs (B, T, V), gold and mask (B, T). The metric `nll` is the unsmoothed sum."""
    nll = -log_probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # (B, T)
    smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(-1) if smoothing else nll
    nothing = nll.new_zeros(())
    return Loss(
        total=smoothed.where(mask, nothing).sum(),
        count=mask.sum(),
        metrics={"nll": nll.detach().where(mask, nothing).sum()},
    )
