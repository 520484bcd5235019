"""A trained model to be exported, and the capabilities of other systems: every reason why one cannot run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transduce.core.config import kind_of
from transduce.core.errors import RunError
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.blocks import Activation, PositionWise
from transduce.model.encoder_decoder import Seq2Seq
from transduce.model.scores import ScaledDot, Softmax
from transduce.model.seq2seq import Model
from transduce.model.sources import Tokens
from transduce.model.transformer import StackConfig, Top, TransformerDecoder, TransformerEncoder
from transduce.text.tokenizer import Tokenizers
from transduce.training.run_folder import open_model


@dataclass(frozen=True)
class ExportedRun:
    """The content of a run folder; `longest` is the longest source of training, in tokens."""

    config: Config
    tokenizers: Tokenizers
    model: Seq2Seq
    longest: int

    @classmethod
    def open(cls, folder: Path) -> ExportedRun:
        config, tokenizers, model, longest = open_model(folder, trust=False)
        return cls(config, tokenizers, cast("Seq2Seq", model.eval()), longest)

    @property
    def stacks(self) -> tuple[TransformerEncoder, TransformerDecoder]:
        """Both stacks of a model that passed `Capabilities.check` as a Transformer."""
        model = self.config.model
        return cast("TransformerEncoder", model.encoder), cast("TransformerDecoder", model.decoder)


@dataclass(frozen=True)
class Capabilities:
    """The parts of models that a system supports.

    `grouped` means that several heads may share keys and values, `any_attention` that scores, weights and widths of
    attention may be what they like.
    """

    system: str
    activations: Sequence[Activation]
    norms: Sequence[type[Any]]
    residuals: Sequence[type[Any]]
    positions: Sequence[type[Any]]
    grouped: bool = False
    any_attention: bool = False

    def check(self, model: Model, more: Sequence[str] = ()) -> None:
        """Raise RunError for a model with unsupported parts, naming them all; `more` are further reasons."""
        reasons = [*self._reasons(model), *more]
        if reasons:
            raise RunError(f"{self.system} cannot run this model: {'; '.join(reasons)}")

    def _reasons(self, model: Model) -> Iterator[str]:
        if not isinstance(model.source, Tokens):
            yield f"source is '{kind_of(type(model.source))}', expected tokens"
        for name, stack, plain in (
            ("encoder", model.encoder, TransformerEncoder),
            ("decoder", model.decoder, TransformerDecoder),
        ):
            if isinstance(stack, plain):
                yield from self._stack(name, stack)
            else:
                yield f"{name} is '{kind_of(type(stack))}', expected transformer"
        if isinstance(model.decoder, TransformerDecoder) and not isinstance(model.decoder.wiring, Top):
            yield f"decoder.wiring is '{kind_of(type(model.decoder.wiring))}', expected top"
        if isinstance(model.decoder, TransformerDecoder) and model.decoder.unnormed_past:
            yield "decoder.unnormed_past is true, expected false (import the Marian model with --as-trained)"

    def _stack(self, name: str, stack: StackConfig) -> Iterator[str]:
        if stack.activation not in self.activations:
            yield f"{name}.activation is {stack.activation!r}, expected {' or '.join(self.activations)}"
        if stack.feed_forward != PositionWise():
            yield f"{name}.feed_forward is '{kind_of(type(stack.feed_forward))}', expected position_wise"
        for part, known in (("norm", self.norms), ("residual", self.residuals), ("positions", self.positions)):
            kind = type(getattr(stack, part))
            if kind not in known:
                yield f"{name}.{part} is '{kind_of(kind)}', expected {' or '.join(map(kind_of, known))}"
        if stack.window:
            yield f"{name}.window is {stack.window}, expected 0"
        yield from self._attention(f"{name}.attention", stack.attention)

    def _attention(self, name: str, attention: Attention) -> Iterator[str]:
        if attention.key_heads not in (0, attention.heads) and not self.grouped:
            yield f"{name}.key_heads is {attention.key_heads}, expected as many as heads"
        if self.any_attention:
            return
        if attention.key_width:
            yield f"{name}.key_width is {attention.key_width}, expected d_model / heads"
        if attention.score != ScaledDot():
            yield f"{name}.score is '{kind_of(type(attention.score))}', expected scaled_dot"
        if attention.weights != Softmax():
            yield f"{name}.weights is '{kind_of(type(attention.weights))}', expected softmax"
        if attention.query_key_norm:
            yield f"{name}.query_key_norm is set"
