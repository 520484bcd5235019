"""Search by two outputs of one model: what the decoder finds and what the CTC head finds, ranked by both together.

The decoder knows what is likely said, and may skip or repeat; the CTC head keeps to the order and number of what was
heard. This is the rescoring of Watanabe et al. (2017, "Hybrid CTC/Attention"), with candidates of both sides instead of
the decoder's alone. Shapes: B sentences, N candidates of all, S frames of the head, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batch import pad_sources
from transduce.data.symbols import Symbols
from transduce.errors import ConfigError
from transduce.model.contract import Memory, rows, teacher_forced_log_probs
from transduce.search.constraints import DecodingConstraints
from transduce.search.ctc import prefix_beam
from transduce.search.hypothesis import Hypothesis, best_first
from transduce.search.rules import checked
from transduce.search.settings import Joint

IMPOSSIBLE = -1e9  # log p of a text that has more tokens than there are frames


@dataclass(frozen=True)
class JointSearch:
    """A beam search, the CTC head's prefix beam, and one more pass of the decoder over all that they found."""

    settings: Joint

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        constraints: Sequence[DecodingConstraints] | None = None,
        keys: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        heads = getattr(model, "heads", {})
        if "ctc" not in heads:
            raise ConfigError(
                "search.kind: 'joint' needs a model with a CTC head (model.heads, trained by the term ctc), and it has"
                " none; use beam"
            )
        settings, asked = self.settings, checked(constraints, len(memory.mask))
        found = settings.beam.build()(model, memory, symbols, asked, keys)
        logits = heads["ctc"](memory).float()
        frames = memory.mask.sum(1) * (logits.size(1) // memory.mask.size(1))
        heard = self._heard(logits, frames, symbols)
        for number, constraint in enumerate(asked):
            known = {hypothesis.tokens for hypothesis in found[number]}
            free = not (
                constraint.prefix or constraint.include or constraint.exclude
            )  # the head cannot be told what to say
            found[number] += [_bare(tokens) for tokens in heard[number] if free and tokens not in known]
        return self._ranked(model, memory, symbols, found, logits.log_softmax(-1), frames)

    def _heard(self, logits: Tensor, frames: Tensor, symbols: Symbols) -> list[list[tuple[int, ...]]]:
        """What the head finds, as tokens."""
        never = torch.tensor((*symbols.never, symbols.eos), dtype=torch.int64, device=logits.device)
        allowed = logits.log_softmax(-1).index_fill(-1, never, -torch.inf)
        return prefix_beam(allowed, frames.tolist(), self.settings.size)

    def _ranked(
        self,
        model: Any,
        memory: Memory,
        symbols: Symbols,
        found: list[list[Hypothesis]],
        log_probs: Tensor,
        frames: Tensor,
    ) -> list[list[Hypothesis]]:
        """All candidates by the weighted sum of both log-probabilities, best first."""
        device = memory.mask.device
        sentence = torch.tensor([n for n, own in enumerate(found) for _ in own], device=device)  # (N,)
        texts = [hypothesis.tokens for own in found for hypothesis in own]
        gold, mask = (tensor.to(device) for tensor in pad_sources(texts, symbols))  # (N, T)
        target = torch.cat((torch.full_like(gold[:, :1], symbols.bos), gold), dim=1)
        parts = teacher_forced_log_probs(model, rows(memory, sentence), target, mask).tolist()
        lengths = mask.sum(1) - 1
        blank = log_probs.size(2) - 1
        of_rows = log_probs[sentence].transpose(0, 1)  # (S, N, V + 1)
        losses = F.ctc_loss(of_rows, gold, frames[sentence], lengths, blank, reduction="none")
        heard = (-losses).clamp(min=IMPOSSIBLE).tolist()
        weight = self.settings.weight
        ranked: list[list[Hypothesis]] = [[] for _ in found]
        finished = [hypothesis.finished for own in found for hypothesis in own]
        for number, tokens, row, other, done in zip(sentence.tolist(), texts, parts, heard, finished, strict=True):
            own = tuple(row[: len(tokens) + 1])
            log_prob = math.fsum(own)
            ranked[number].append(Hypothesis(tokens, (1 - weight) * log_prob + weight * other, log_prob, done, own))
        return [sorted(own, key=best_first)[: self.settings.n_best] for own in ranked]


def _bare(tokens: tuple[int, ...]) -> Hypothesis:
    """A candidate that has no score yet."""
    return Hypothesis(tokens, 0.0, 0.0, True, ())
