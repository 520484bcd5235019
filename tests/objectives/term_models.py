"""A tiny model with every head, batches with made alignments, and a model that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.contract import DecoderState, Memory
from transduce.model.seq2seq import CTCHead, LengthHead, Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ForwardOutput, forward
from transduce.objectives.terms import CTC, Distillation, GuidedAlignment, GuidedAttention, Length, Term, ZLoss
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1)
V = 17
HEADS = (CTCHead(upsample=3), LengthHead(longest=20))
# Every term, with what it needs from this model.
TERMS: dict[str, Term] = {
    "guided_attention": GuidedAttention(0.7),
    "guided_alignment": GuidedAlignment(0.7, heads=(0, 1)),
    "ctc": CTC(0.7),
    "length": Length(0.7),
    "z_loss": ZLoss(0.7),
    "distillation": Distillation(0.7, teacher="other", temperature=2.0),
}
Tokens = Sequence[Sequence[int]]


def build(seed: int = 2) -> Seq2Seq:
    """Two layers of two heads, without dropout."""
    torch.manual_seed(seed)
    stacks = TransformerEncoder(2, Attention(2), 24), TransformerDecoder(2, Attention(2), 24)
    return Model(16, 0.0, "all", *stacks, heads=HEADS).build(V, V, True).train()


def aligned(sources: Tokens, targets: Tokens, source_length: int = 0, target_length: int = 0) -> Batch:
    """A batch in which the target token at place t comes from one or two places, and every third from none."""
    batch = collate(sources, targets, SYMBOLS, SYMBOLS, source_length, target_length)
    links = torch.zeros(*batch.gold.shape, batch.source.size(1))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for t in range(len(target)):
            if t % 3 and source:
                links[row, t, (t * 5) % len(source)] += 0.5
                links[row, t, (t * 2) % len(source)] += 0.5
    return replace(batch, alignment=links)


class Said:
    """Says given logits (B, T, V), leaves a given trace, and has heads that say given logits."""

    output_bias = None

    def __init__(self, logits: Tensor, trace: dict[str, Tensor] | None = None, **heads: Tensor) -> None:
        self.logits, self.left = logits, trace or {}
        self.heads: dict[str, Callable[[Memory], Tensor]] = {
            name: lambda memory, tensor=tensor: tensor for name, tensor in heads.items()
        }

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        return Memory((), mask)

    def start(self, memory: Memory) -> DecoderState:
        return DecoderState(None, None, 0)

    def states(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        if trace is not None:
            trace.update(self.left)
        return self.logits, replace(state, length=tokens.size(1))

    advance = states  # states are logits already

    @property
    def output(self) -> Tensor:
        return torch.eye(self.logits.size(-1), dtype=self.logits.dtype)


def said(batch: Batch, trace: dict[str, Tensor] | None = None, **heads: Tensor) -> ForwardOutput:
    """A pass over the batch whose logits are all 0."""
    return forward(Said(torch.zeros(*batch.gold.shape, V), trace, **heads), batch, {})
