"""Cross-entropy with label smoothing (section 5.4), summed over target tokens, and R-Drop on top of it.

Output projection and smoothed cross-entropy are fused, a chunk of rows at a time, so that logits are never stored: a
batch of 25,000 tokens has 800 million logits for 32,000 words, 3 GB in single precision, and log-softmax stores as many
again. Here a chunk of rows is projected, its loss summed and its gradient taken at once, for a sum of losses has the
same gradient whatever else is added to it. Shapes: N tokens, D d_model, V vocabulary, C rows of a chunk.

R-Drop (Liang et al., 2021): two passes under different dropout must agree.

    total = sum over tokens of  CE_1 / 2 + CE_2 / 2 + alpha / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

The paper adds the two cross-entropies and weighs the symmetric KL by alpha / 2; dividing by two keeps the loss in the
unit of one pass, so that learning rates and logs mean the same as for plain cross-entropy. Terms are halved likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transduce.core.bounds import BelowOne, NonNegativeFloat, check_bounds
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch
from transduce.kernels import dispatch
from transduce.model.contract import Memory, TrainableSeq2Seq, rows
from transduce.model.seq2seq import Model
from transduce.objectives import NO_CONTEXT, ForwardOutput, Loss, Objective, ObjectiveContext, forward
from transduce.objectives.inputs import InputsChoice, InputsConfig, TeacherForcing
from transduce.objectives.terms import Term, TermConfig, Terms

CHUNK = 1 << 27  # logits at a time on a GPU: half a gigabyte in single precision
# On a CPU a chunk is shorter, and its losses are summed some rows at a time, which stay in the cache; matrices are
# multiplied by whole chunks, for each adds a gradient of all weights to the last.
CHUNK_ON_CPU, CACHED = 1 << 24, 1 << 19


def projected_losses(
    states: Tensor, weight: Tensor, gold: Tensor, mask: Tensor, smoothing: float, bias: Tensor | None = None
) -> Tensor:
    """Smoothed and plain loss sums (2,) over tokens where mask is True; only the first has a gradient.

    states (N, D), weight (V, D), bias (V,) of the logits, gold and mask (N,). The gold token weighs 1 - e + e / V,
    every other e / V.
    """
    states = dispatch.to_autocast_dtype(states)
    compiling = torch.compiler.is_compiling()
    if states.device.type == "cpu" and not compiling and not mask.all():  # a GPU would have to wait
        real = mask.nonzero().squeeze(-1)
        states, gold, mask = states[real], gold[real], mask[real]
    sums: Tensor = _ProjectedLosses.apply(states, weight, bias, gold, mask, smoothing)  # type: ignore[no-untyped-call]
    return sums


class _ProjectedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, mask: Tensor, smoothing: float
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        given = states, weight.to(states.dtype), None if bias is None else bias.to(states.dtype), gold, mask
        # Compiled, all rows are one chunk, and nothing is written in place, which some versions of torch forget.
        compiling = torch.compiler.is_compiling()
        made = _chunk(*given, smoothing, learning, len(gold)) if compiling else _all_chunks(*given, smoothing, learning)
        sums, *slopes = made
        ctx.save_for_backward(*slopes[:1], *(slope.to(weight.dtype) for slope in slopes[1:]))
        return sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0][0]  # of the smoothed sum; the plain one is for reports
        to_states, to_weight, *to_bias = (slope * scale.to(slope.dtype) for slope in ctx.saved_tensors)
        return to_states, to_weight, to_bias[0] if to_bias else None, None, None, None


def _all_chunks(
    states: Tensor, matrix: Tensor, bias: Tensor | None, gold: Tensor, mask: Tensor, smoothing: float, learning: bool
) -> list[Tensor]:
    """Run `_chunk` over all rows, a chunk at a time, and add up the results."""
    sizes = (CHUNK_ON_CPU, CACHED) if states.device.type == "cpu" else (CHUNK, CHUNK)
    rows, together = (max(1, size // matrix.size(0)) for size in sizes)
    high = torch.promote_types(states.dtype, torch.float32)
    sums = states.new_zeros(2, dtype=high)
    slopes = [torch.empty_like(states), torch.zeros_like(matrix, dtype=high)] if learning else []
    if learning and bias is not None:
        slopes.append(torch.zeros_like(bias, dtype=high))
    for begin in range(0, states.size(0), rows):
        part = slice(begin, begin + rows)
        found, *chunk = _chunk(states[part], matrix, bias, gold[part], mask[part], smoothing, learning, together)
        sums += found
        if learning:
            slopes[0][part] = chunk[0]
            for total, slope in zip(slopes[1:], chunk[1:], strict=True):
                total += slope
    return [sums, *slopes]


def _chunk(
    states: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    mask: Tensor,
    smoothing: float,
    learning: bool,
    together: int,
) -> list[Tensor]:
    """The two loss sums of a chunk and, if `learning`, the gradients of the first for states, matrix and any bias."""
    logits = dispatch.product(states, matrix, bias)  # (C, V)
    sums, slope = _losses_in_parts(logits, gold, mask, smoothing, learning, together)
    if not learning:
        return [sums]
    to_bias = [] if bias is None else [slope.sum(0, dtype=torch.promote_types(slope.dtype, torch.float32))]
    return [sums, dispatch.product(slope, matrix.T), dispatch.summed_products(slope, states), *to_bias]


def _losses_in_parts(
    logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float, learning: bool, rows: int
) -> tuple[Tensor, Tensor]:
    """Run `_losses` on `rows` rows at a time; gradients overwrite the logits, in their type."""
    if torch.compiler.is_compiling():
        kernels = dispatch.loss_kernels(logits)
        way = _losses_compiled if kernels is None else kernels.losses_and_slopes
        return way(logits, gold, mask, smoothing)
    if rows >= len(logits):
        sums, slope = _losses(logits, gold, mask, smoothing, learning)
        return sums, slope.to(logits.dtype)
    found = []
    for begin in range(0, len(logits), rows):
        part = slice(begin, begin + rows)
        sums, slope = _losses(logits[part], gold[part], mask[part], smoothing, learning)
        found.append(sums)
        if learning:
            logits[part] = slope
    return torch.stack(found).sum(0), logits


def _losses(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float, learning: bool) -> tuple[Tensor, Tensor]:
    """The two sums (2,) of a chunk, and the gradient of the first for each logit (C, V).

    Only softmax takes exp of the logits, which costs most: the logarithm of its divisor follows from the largest logit
    and the largest probability, which is at least 1 / V.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probs = logits.softmax(-1)
    divisor = logits.amax(-1) - probs.amax(-1).log()  # (C,), as a logarithm
    plain = divisor - logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    smoothed = (1 - smoothing) * plain + smoothing * (divisor - logits.mean(-1))
    nothing = plain.new_zeros(())
    sums = torch.stack((smoothed.where(mask, nothing).sum(), plain.where(mask, nothing).sum()))
    if not learning:
        return sums, logits
    slope = probs.sub_(smoothing / logits.size(-1))
    slope.scatter_add_(-1, gold.unsqueeze(-1), slope.new_full((), smoothing - 1).expand(len(gold), 1))
    return sums, slope.mul_(mask.unsqueeze(-1))


def _losses_compiled(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """`_losses` in the form that a compiler fuses into two passes: row sums, then gradients in the logits' type."""
    high = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = high.logsumexp(-1)
    right = logits.gather(-1, gold.unsqueeze(-1)).squeeze(-1).to(high.dtype)
    smoothed = total - (1 - smoothing) * right - smoothing * high.mean(-1)
    nothing = total.new_zeros(())
    sums = torch.stack((smoothed.where(mask, nothing).sum(), (total - right).where(mask, nothing).sum()))
    words = torch.arange(logits.size(-1), device=logits.device)
    slope = (high - total.unsqueeze(-1)).exp() - smoothing / logits.size(-1)
    slope = slope - (1 - smoothing) * (words == gold.unsqueeze(-1))
    return sums, (slope * mask.unsqueeze(-1)).to(logits.dtype)


@dataclass(frozen=True)
class Smoothed:
    """Settings of an objective built on smoothed cross-entropy, -log p(gold), with terms of the same forward pass.

    The gold token gets weight 1 - e + e / V and every other e / V (e = label_smoothing). V counts the whole vocabulary,
    padding included, as in `torch.nn.functional.cross_entropy`. `weight` is that of the cross-entropy itself.
    """

    label_smoothing: BelowOne = 0.1
    weight: NonNegativeFloat = field(default=1.0, kw_only=True)
    terms: tuple[Term | TermConfig, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_bounds(self)

    def check(self, model: Model) -> None:
        """Raise ConfigError for a model that lacks what a term needs."""
        for number, term in enumerate(self.terms):
            try:
                term.check(model)
            except ConfigError as error:
                raise ConfigError(f"terms[{number}].{error}") from None

    @property
    def steady(self) -> bool:
        """Whether every step runs the same kernels, but for random draws, so that a CUDA graph can replay it."""
        return not self.terms

    def loss_of(self, output: ForwardOutput, terms: Terms, step: int) -> Loss:
        """Cross-entropy and terms of one forward pass."""
        loss = smoothed_loss(output.log_probs, output.batch.gold, output.batch.target_mask, self.label_smoothing)
        return terms.add(Loss(self.weight * loss.total, loss.count, loss.metrics), output, step)


@dataclass(frozen=True)
class CrossEntropy(Smoothed):
    """Smoothed cross-entropy and terms; `inputs` chooses what the decoder reads in training."""

    inputs: InputsChoice | InputsConfig = TeacherForcing()

    @property
    def steady(self) -> bool:
        return not self.terms and isinstance(self.inputs, TeacherForcing)

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Objective:
        read, terms = self.inputs.build(context), Terms(self.terms, context)

        def objective(model: TrainableSeq2Seq, batch: Batch, step: int) -> Loss:
            def inputs(memory: Memory) -> Tensor:
                return read(model, batch, memory, step)

            if batch.capacity != (0, 0) and self.steady:
                return self._projected(model, *_packed(model, batch))
            output = forward(model, batch, terms.trace(step), inputs)
            if self.terms:  # they read logits, so that these are there
                return self.loss_of(output, terms, step)
            return self._projected(model, output.states, batch.gold, batch.target_mask)

        return objective

    def _projected(self, model: TrainableSeq2Seq, states: Tensor, gold: Tensor, mask: Tensor) -> Loss:
        """The loss of states (B, T, D) with gold and mask (B, T)."""
        flat = states.flatten(0, 1), model.output, gold.flatten(), mask.flatten()
        smoothed, nll = projected_losses(*flat, self.label_smoothing, model.output_bias)
        return Loss(self.weight * smoothed, mask.sum(), {"nll": nll.detach()})


def _packed(model: TrainableSeq2Seq, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """States, gold and mask of all sentences concatenated without padding, as one row."""
    read = batch.source, batch.source_mask, batch.inputs, batch.target_mask
    states, layout = model.packed(*read, batch.capacity)
    gold = layout.pack(batch.gold)
    return states, gold, layout.real(batch.target_mask)


def smoothed_loss(log_probs: Tensor, gold: Tensor, mask: Tensor, smoothing: float) -> Loss:
    """The smoothed loss of log_probs (B, T, V), gold and mask (B, T); the metric `nll` is the unsmoothed sum."""
    nll = -log_probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # (B, T)
    smoothed = (1 - smoothing) * nll - smoothing * log_probs.mean(-1) if smoothing else nll
    nothing = nll.new_zeros(())
    return Loss(
        total=smoothed.where(mask, nothing).sum(),
        count=mask.sum(),
        metrics={"nll": nll.detach().where(mask, nothing).sum()},
    )


@dataclass(frozen=True)
class RDrop(Smoothed):
    """Smoothed cross-entropy and agreement between two dropout masks, weighted by `alpha`."""

    alpha: NonNegativeFloat = 5.0

    def build(self, context: ObjectiveContext = NO_CONTEXT) -> Objective:
        terms = Terms(self.terms, context)

        def objective(model: TrainableSeq2Seq, batch: Batch, step: int) -> Loss:
            return self._loss(model, batch, step, terms)

        return objective

    def _loss(self, model: TrainableSeq2Seq, batch: Batch, step: int, terms: Terms) -> Loss:
        twice = rows(batch, torch.arange(len(batch.source), device=batch.source.device).repeat(2))
        output = forward(model, twice, terms.trace(step))  # (2 B, T, V): each row a second time, under other dropout
        both = self.loss_of(output, terms, step)
        first, second = output.log_probs.chunk(2)
        difference = (first.exp() - second.exp()) * (first - second)  # both KL directions at once
        disagreement = difference.sum(-1).where(batch.target_mask, difference.new_zeros(())).sum()
        return Loss(
            total=both.total / 2 + self.alpha / 4 * disagreement,
            count=batch.target_mask.sum(),
            metrics={name: value / 2 for name, value in both.metrics.items()},
        )
