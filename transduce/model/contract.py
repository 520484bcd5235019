"""The interface of models for search, objectives and inspection: encoder memory and decoder state.

    memory = model.encode(source, mask)            every encoder layer's output
    state = model.start(memory)                    the decoder before its first token
    logits, state = model.advance(tokens, state)   after any number of tokens

Teacher forcing is `advance(all tokens)`, decoding is `advance(one token)`, a forced prefix is `advance(prefix)`. A
non-autoregressive decoder, which predicts all tokens at once, has a smaller interface: `lengths` and `refine`.
Shapes: B batch, S source length, D d_model, V vocabulary, t tokens read in one call, C positions of a canvas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from transduce.kernels import dispatch
from transduce.kernels.dispatch import KernelSupport
from transduce.kernels.packing import PackedLayout, PaddedLayout, StaticCacheLayout, StaticKernelLayout

T = TypeVar("T")
UNDECIDED = -1  # an undecided position of a canvas; not a token of any vocabulary


@dataclass(frozen=True)
class Memory:
    """Encoder output: the states (B, S, D) of each layer, and the source mask (B, S), True at real tokens."""

    layers: tuple[Tensor, ...]
    mask: Tensor


@dataclass(frozen=True)
class DecoderState:
    """State of a decoder between calls. Every tensor inside is batch first.

    `static` never changes within a sentence (keys and values of the source, masks), so a beam search that reorders
    hypotheses of one sentence gathers only `cache`. `length` counts the tokens read so far.
    """

    static: Any
    cache: Any
    length: int

    @property
    def start(self) -> int | Tensor:
        """The position of the next token, equal in all rows."""
        return self.length

    @property
    def kernels(self) -> ModuleType | None:
        """Kernels for the next steps; None for plain torch."""
        return None

    def layout(self, given: PaddedLayout, support: KernelSupport, traced: bool) -> PaddedLayout:
        """Choose the layout of the next tokens, given what the kernels support."""
        return given

    def layer_caches(self) -> Sequence[Any]:
        """The cache of each layer, to be appended to."""
        return self.cache  # type: ignore[no-any-return]

    def visible(self, window: int) -> Tensor | None:
        """The attention mask (B, 1, K, L) of the next tokens; None where causal order decides."""
        return None

    def bias(self, positions: Any, count: int) -> Tensor | None:
        """The position bias added to the scores of the next `count` tokens."""
        return positions.bias(count, self.length + count)  # type: ignore[no-any-return]

    def advanced(self, cache: Any, count: int) -> DecoderState:
        """Return the state after `count` more tokens, with the new caches of the layers."""
        return dataclasses.replace(self, cache=cache, length=self.length + count)


@dataclass(frozen=True)
class CacheShape:
    """Size of a static KV cache: B `sentences` of up to `source` tokens, K `paths` each, `length` (L) positions."""

    sentences: int
    paths: int
    source: int
    length: int


@dataclass(frozen=True)
class StaticDecoderState(DecoderState):
    """State in memory allocated once, so that every step has the same shapes and addresses (for CUDA graphs).

    `advance` then takes the newest tokens (B, K) of K paths of each sentence, all at the sentence's position (B,), and
    writes keys and values into `cache` in place. ancestors (B, K, L) is, for each path and position, which of the K
    paths wrote the entry that the path descends from, so that paths are reordered without copying the cache. `length`
    bounds the positions that attention reads.
    """

    position: Tensor
    ancestors: Tensor

    @property
    def start(self) -> Tensor:
        return self.position

    @property
    def kernels(self) -> ModuleType | None:
        return dispatch.decoding_kernels(self.position)

    def layout(self, given: PaddedLayout, support: KernelSupport, traced: bool) -> PaddedLayout:
        kernels = self.kernels
        if kernels is not None and support.tiles and not traced:
            return StaticKernelLayout(self.position, self.ancestors, kernels)
        return StaticCacheLayout(self.position, self.ancestors, kernels)

    def layer_caches(self) -> Sequence[Any]:
        where = torch.arange(len(self.position), device=self.position.device), self.position
        return [layer.at(where, self.length) for layer in self.cache]

    def visible(self, window: int) -> Tensor:
        """Ancestor mask (B, 1, K, length * K), True at the entries that each path descends from, its newest included.

        The K entries of a position stand side by side. A window hides those further back.
        """
        positions = torch.arange(self.length, device=self.position.device)
        before = positions <= self.position[:, None]  # (B, length)
        if window:
            before &= positions >= self.position[:, None] - window
        paths = self.ancestors.size(1)
        if paths == 1:
            return before[:, None, None]
        descends = self.ancestors[..., : self.length, None] == torch.arange(paths, device=positions.device)
        return (descends & before[:, None, :, None]).flatten(2)[:, None]  # of (B, K, length, K)

    def bias(self, positions: Any, count: int) -> Tensor | None:
        bias: Tensor | None = positions.bias_at(self.position, self.length)
        # The K paths of a position stand together.
        return bias if bias is None else bias.repeat_interleave(self.ancestors.size(1), dim=3)

    def advanced(self, cache: Any, count: int) -> StaticDecoderState:
        """Advance by one position; the layers have written their caches in place."""
        return dataclasses.replace(self, position=self.position + 1)


class Autoregressive(Protocol):
    """A model that decodes token by token."""

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory: ...

    def start(self, memory: Memory) -> DecoderState: ...

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens (B, t) after `state`: logits (B, t, V) and the new state."""
        ...


class SupportsStaticCache(Autoregressive, Protocol):
    """An autoregressive model that can decode in a static KV cache."""

    @property
    def vocabulary(self) -> int:
        """Size of the target vocabulary."""
        ...

    def allocate_cache(self, cache_shape: CacheShape) -> StaticDecoderState | None:
        """Allocate a zeroed static cache; None where the model cannot have one of this shape."""
        ...

    def prefill(self, state: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """Encode b sentences (b, S) into rows `slots` (b,) of the static cache."""
        ...


class TrainableSeq2Seq(Autoregressive, Protocol):
    """An autoregressive model whose logits are `states @ output.T + output_bias`: a loss may fuse the product."""

    output_bias: Tensor | None

    def states(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]: ...

    def packed(
        self, source: Tensor, source_mask: Tensor, tokens: Tensor, mask: Tensor, capacity: tuple[int, int]
    ) -> tuple[Tensor, PackedLayout]:
        """Decoder states of all tokens without padding (encoder_decoder.py), for stacks that support packing."""
        ...

    @property
    def output(self) -> Tensor: ...


def teacher_forced_log_probs(
    model: Autoregressive, memory: Memory, target: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None
) -> Tensor:
    """Log p (B, T) of each token of target (B, T + 1) given those before it; mask (B, T)."""
    logits, _ = model.advance(target[:, :-1], model.start(memory), trace, mask)
    return logits.float().log_softmax(-1).gather(-1, target[:, 1:, None]).squeeze(-1)


class HasHeads(Protocol):
    """A model with extra outputs beside the decoder's: functions of the memory, by name."""

    @property
    def heads(self) -> Mapping[str, Callable[[Memory], Tensor]]: ...


class NonAutoregressive(Protocol):
    """A non-autoregressive model: predicts all undecided positions of a canvas at once, in one or more iterations."""

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory: ...

    def lengths(self, memory: Memory) -> Tensor:
        """Log p (B, L) of n positions to write, for n from 0; -inf where a sentence cannot have so many."""
        ...

    def refine(self, canvas: Tensor, mask: Tensor, memory: Memory, trace: dict[str, Tensor] | None = None) -> Tensor:
        """Logits (B, C, V) for every position of canvas (B, C), which holds tokens or UNDECIDED; mask as elsewhere.

        (B, C, V + 1) for a model with CTC, whose last class is the blank.
        """
        ...

    def token_log_probs(
        self, memory: Memory, target: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Log p (B, T) of the tokens of a given translation, see encoder_decoder.py."""
        ...


@dataclass(frozen=True)
class Canvas:
    """The canvas of a given translation: gold (B, C), padded with end symbols, and mask (B, C).

    `open` (B, C) are the positions to write: all real ones but the last. log_prob (B,) is that of their number.
    """

    gold: Tensor
    mask: Tensor
    open: Tensor
    log_prob: Tensor


class TokenCanvasModel(NonAutoregressive, Protocol):
    """A non-autoregressive model whose canvas holds the target tokens themselves and the end symbol."""

    def build_canvas(self, memory: Memory, gold: Tensor, mask: Tensor) -> Canvas:
        """Build the canvas for gold (B, T), which ends in the end symbol; mask (B, T)."""
        ...


def rows(tree: T, index: Tensor) -> T:
    """Select batch rows `index` (N,) of a memory or state: any tree of dataclasses, sequences, dicts and tensors."""
    return _rows(tree, index)  # type: ignore[no-any-return]


def _rows(tree: Any, index: Tensor) -> Any:
    if isinstance(tree, Tensor):
        return tree.index_select(0, index)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return dataclasses.replace(
            tree, **{f.name: _rows(getattr(tree, f.name), index) for f in dataclasses.fields(tree)}
        )
    if isinstance(tree, (tuple, list)):
        return type(tree)(_rows(item, index) for item in tree)
    if isinstance(tree, dict):
        return {key: _rows(item, index) for key, item in tree.items()}
    return tree  # a number, a string or None, shared by all rows


class evaluating:
    """`with evaluating(model):` disables dropout, and restores the mode after."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = self.model.training
        if self.before:  # else skipped: `eval()` takes as long as a decoding step
            self.model.eval()

    def __exit__(self, *error: object) -> None:
        if self.before:
            self.model.train()
