"""What search, objectives and inspection know of a model: memory, state, and the same state for other rows.

    memory = model.encode(source, mask)            every encoder layer's states
    state = model.start(memory)                    the decoder before its first token
    logits, state = model.advance(tokens, state)   any number of tokens further

Teacher forcing is `advance(all tokens)`, decoding is `advance(one token)`, a forced prefix is `advance(prefix)`.
Shapes: B batch, S source length, D d_model, V vocabulary, t tokens read in one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class Memory:
    """What the encoder leaves: the states (B, S, D) of each of its layers, and where the source is real (B, S)."""

    layers: tuple[Tensor, ...]
    mask: Tensor


@dataclass(frozen=True)
class State:
    """Where a decoder stands. Every tensor inside is batch first.

    `fixed` never changes within a sentence (keys and values of the source, masks), so a beam search that reorders
    hypotheses of one sentence gathers only `grown`. `length` counts the tokens read so far.
    """

    fixed: Any
    grown: Any
    length: int


class Stepwise(Protocol):
    """A model that can be read and advanced token by token."""

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory: ...

    def start(self, memory: Memory) -> State: ...

    def advance(
        self, tokens: Tensor, state: State, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """`mask` (B, t) is True at real tokens; None means all. Padding comes last, and nothing before it sees it."""
        ...


class Headed(Protocol):
    """A model with outputs beside the decoder's: functions of the memory, by their names."""

    @property
    def heads(self) -> Mapping[str, Callable[[Memory], Tensor]]: ...


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
        self.model.eval()

    def __exit__(self, *error: object) -> None:
        self.model.train(self.before)
