"""The decoder that writes all tokens at once: a Transformer decoder whose every place sees all others.

How it knows the length of what it writes is a choice, and decides which of two models it belongs to (canvas.py and
upsampled.py). Gu et al. 2018; Ghazvininejad et al. 2019; Libovicky and Helcl 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from transduce.model.canvas import CutAtEnd, LengthClassifier
from transduce.model.transformer import DecoderStack, WiredStack
from transduce.model.upsampled import Upsampled
from transduce.model.whole import EncoderDecoder, Parts

Length = LengthClassifier | CutAtEnd | Upsampled


@dataclass(frozen=True)
class ParallelDecoder(WiredStack):
    """N blocks of self-attention without a mask against looking ahead, attention to the encoder, and feed-forward."""

    kind: ClassVar[str] = "parallel"
    length: Length = LengthClassifier()

    @property
    def offers(self) -> str:
        """To searches and objectives: "parallel", or "ctc"."""
        return self.length.offers

    @property
    def one_length(self) -> bool:
        """Whether a sentence has a single length to try, so that a search finds one translation of it."""
        return isinstance(self.length, CutAtEnd)

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> DecoderStack:
        return DecoderStack(self, d_model, dropout, encoder_layers, causal=False)

    def assemble(self, parts: Parts) -> EncoderDecoder:
        return self.length.assemble(parts)
