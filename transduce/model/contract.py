"""What search, objectives and inspection know of a model: memory, state, and the same state for other rows.

    memory = model.encode(source, mask)            every encoder layer's states
    state = model.start(memory)                    the decoder before its first token
    logits, state = model.advance(tokens, state)   any number of tokens further

Teacher forcing is `advance(all tokens)`, decoding is `advance(one token)`, a forced prefix is `advance(prefix)`. A
decoder that writes all tokens at once has a smaller contract, `Parallel`: `lengths` and `refine`.
Shapes: B batch, S source length, D d_model, V vocabulary, t tokens read in one call, C places of a canvas.
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
UNDECIDED = -1  # what a place of a canvas holds that is still to be written; no token of any vocabulary


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves: the states (B, S, D) of each of its layers, and where the source is real (B, S)."""

    layers: tuple[Tensor, ...]
    mask: Tensor


@dataclass(frozen=True)
class DecoderState:
    """Where a decoder stands. Every tensor inside is batch first.

    `static` never changes within a sentence (keys and values of the source, masks), so a beam search that reorders
    hypotheses of one sentence gathers only `cache`. `length` counts the tokens read so far.
    """

    static: Any
    cache: Any
    length: int

    @property
    def start(self) -> int | Tensor:
        """The position of the next token, which is the same in all rows."""
        return self.length

    @property
    def kernels(self) -> ModuleType | None:
        """Kernels for the steps from here on; None where torch's own way is taken."""
        return None

    def layout(self, given: PaddedLayout, support: KernelSupport, traced: bool) -> PaddedLayout:
        """How the next tokens lie for layers with such a support."""
        return given

    def layer_caches(self) -> Sequence[Any]:
        """What each layer remembers, to be appended to."""
        return self.cache  # type: ignore[no-any-return]

    def visible(self, window: int) -> Tensor | None:
        """Where the next tokens may look, (B, 1, K, L), if that is not simply what stands before them."""
        return None

    def bias(self, positions: Any, count: int) -> Tensor | None:
        """What a scheme of positions adds to the scores of the next `count` tokens."""
        return positions.bias(count, self.length + count)  # type: ignore[no-any-return]

    def advanced(self, cache: Any, count: int) -> DecoderState:
        """The state after `count` tokens, of which the layers keep `cache`."""
        return dataclasses.replace(self, cache=cache, length=self.length + count)


@dataclass(frozen=True)
class CacheShape:
    """Memory that a search sets aside: B `sentences` of up to `source` tokens, K `paths` of each, `length` (L) long."""

    sentences: int
    paths: int
    source: int
    length: int


@dataclass(frozen=True)
class StaticDecoderState(DecoderState):
    """A state in memory that is set aside once, so that every step has the same shapes and addresses.

    `advance` then takes the newest tokens (B, K) of K paths of each sentence, all of them at the sentence's position
    (B,), and writes what it remembers into `cache` where it is. ancestors (B, K, L) says for each path and place which
    of the K wrote there what the path goes on from, so that paths are reordered without moving anything. `length` is as
    far as attention looks: above every place.
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
        """The ancestor mask: which of the places of a sentence, K beside each other, each path goes on from, its newest
        included: (B, 1, K, length * K). With a window none further back than that."""
        places = torch.arange(self.length, device=self.position.device)
        before = places <= self.position[:, None]  # (B, length)
        if window:
            before &= places >= self.position[:, None] - window
        paths = self.ancestors.size(1)
        if paths == 1:
            return before[:, None, None]
        own = self.ancestors[..., : self.length, None] == torch.arange(paths, device=places.device)
        return (own & before[:, None, :, None]).flatten(2)[:, None]  # of (B, K, length, K)

    def bias(self, positions: Any, count: int) -> Tensor | None:
        found: Tensor | None = positions.bias_at(self.position, self.length)
        # The K paths of a place stand together.
        return found if found is None else found.repeat_interleave(self.ancestors.size(1), dim=3)

    def advanced(self, cache: Any, count: int) -> StaticDecoderState:
        """One place further; what the layers remember was written where it stays."""
        return dataclasses.replace(self, position=self.position + 1)


class Autoregressive(Protocol):
    """A model that can be read and advanced token by token."""

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory: ...

    def start(self, memory: Memory) -> DecoderState: ...

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """`mask` (B, t) is True at real tokens; None means all. Padding comes last, and nothing before it sees it."""
        ...


class SupportsStaticCache(Autoregressive, Protocol):
    """A stepwise model that can work in memory set aside once."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are to choose from."""
        ...

    def allocate_cache(self, room: CacheShape) -> StaticDecoderState | None:
        """Memory for so much, with nothing in it; None where this model cannot have it."""
        ...

    def prefill(self, held: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """Encode b sentences, and put what the decoder knows of them in the places slots (b,) of the B there are."""
        ...


class TrainableSeq2Seq(Autoregressive, Protocol):
    """A stepwise model whose logits are `states @ output.T + output_bias`: a loss may project them as it sees fit."""

    output_bias: Tensor | None

    def states(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]: ...

    def packed(
        self, source: Tensor, source_mask: Tensor, tokens: Tensor, mask: Tensor, room: tuple[int, int]
    ) -> tuple[Tensor, PackedLayout]:
        """States of all tokens without work on padding, see encoder_decoder.py; asked for only where the stacks can."""
        ...

    @property
    def output(self) -> Tensor: ...


def teacher_forced_log_probs(
    model: Autoregressive, memory: Memory, target: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None
) -> Tensor:
    """log p (B, T) of each token of target (B, T + 1) after those before it; mask (B, T)."""
    logits, _ = model.advance(target[:, :-1], model.start(memory), trace, mask)
    return logits.float().log_softmax(-1).gather(-1, target[:, 1:, None]).squeeze(-1)


class HasHeads(Protocol):
    """A model with outputs beside the decoder's: functions of the memory, by their names."""

    @property
    def heads(self) -> Mapping[str, Callable[[Memory], Tensor]]: ...


class NonAutoregressive(Protocol):
    """A model that writes on a canvas: all undecided places at once, as often as one likes."""

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory: ...

    def lengths(self, memory: Memory) -> Tensor:
        """log p (B, L) that there are n places to write, for n from 0; -inf where a sentence cannot have so many."""
        ...

    def refine(self, canvas: Tensor, mask: Tensor, memory: Memory, trace: dict[str, Tensor] | None = None) -> Tensor:
        """Logits (B, C, V) for every place of canvas (B, C), which holds tokens or UNDECIDED; mask as elsewhere.

        (B, C, V + 1) for a model with CTC, whose last class is the blank.
        """
        ...

    def token_log_probs(
        self, memory: Memory, target: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None
    ) -> Tensor:
        """log p (B, T) of the tokens of a given translation, see encoder_decoder.py."""
        ...


@dataclass(frozen=True)
class Canvas:
    """Where a given translation would be written: gold (B, C), filled up with end symbols, and mask (B, C).

    `open` (B, C) are the places to write, all but the last real one. log_prob (B,) is that of their number.
    """

    gold: Tensor
    mask: Tensor
    open: Tensor
    log_prob: Tensor


class TokenCanvasModel(NonAutoregressive, Protocol):
    """A parallel model whose canvas holds the tokens themselves, as many as there are, and the end symbol."""

    def lay(self, memory: Memory, gold: Tensor, mask: Tensor) -> Canvas:
        """The canvas for gold (B, T), which ends in the end symbol; mask (B, T)."""
        ...


def rows(tree: T, index: Tensor) -> T:
    """The same memory or state for batch rows `index` (N,): any tree of dataclasses, sequences, dicts and tensors."""
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
    return tree  # a number, a word or nothing: the same for every row


class evaluating:
    """`with evaluating(model):` switches dropout off and back to what it was."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.before = self.model.training
        if self.before:  # else not even looked at: that would take as long as a step of decoding
            self.model.eval()

    def __exit__(self, *error: object) -> None:
        if self.before:
            self.model.train()
