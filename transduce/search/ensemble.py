"""Ensembles: models whose next-token probabilities are averaged at every step.

Members may have any architecture; they share vocabularies and read the same tokens. The mean is of probabilities, not
of logits (Sutskever et al., 2014), computed from log-softmaxes by log-add-exp so that nothing underflows.
Shapes: B batch, S source length, t tokens read in one call, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from transduce.core.errors import ConfigError
from transduce.model.contract import (
    Autoregressive,
    CacheShape,
    DecoderState,
    Memory,
    StaticDecoderState,
    SupportsStaticCache,
    teacher_forced_log_probs,
)

Trace = dict[str, Tensor]


@dataclass(frozen=True)
class Memories(Memory):
    """Each member's memory. The mask is the first one's; `layers` is empty, since widths differ between members."""

    members: tuple[Memory, ...]


class Ensemble(nn.Module):
    """Several models behind the interface of model/contract.py; `weights` are relative, and equal if not given.

    A trace holds each member's tensors, with names prefixed by `member.{number}.`.
    """

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float] = ()) -> None:
        super().__init__()
        shares = list(weights) or [1.0] * len(members)
        if not members or len(shares) != len(members):
            raise ConfigError(f"weights: expected one for each of {len(members)} models, got {len(shares)}")
        if not all(math.isfinite(share) and share > 0 for share in shares):
            raise ConfigError(f"weights: expected numbers above 0, got {shares}")
        self.models = nn.ModuleList(members)
        self.log_shares = [math.log(share / sum(shares)) for share in shares]

    @property
    def members(self) -> list[Autoregressive]:
        return [cast("Autoregressive", model) for model in self.models]

    def static_cache_model(self) -> SupportsStaticCache | None:
        """Return the ensemble itself if all members support a static KV cache, else None."""
        return self if all(member.static_cache_model() is not None for member in self.models) else None  # type: ignore[operator]

    @property
    def vocabulary(self) -> int:
        """Size of the target vocabulary, shared by all members."""
        return cast("SupportsStaticCache", self.models[0]).vocabulary

    def allocate_cache(self, cache_shape: CacheShape) -> StaticDecoderState | None:
        """Allocate each member's static cache; `static` and `cache` are tuples over the members."""
        states = [cast("SupportsStaticCache", model).allocate_cache(cache_shape) for model in self.models]
        allocated = [state for state in states if state is not None]
        if len(allocated) < len(states):
            return None
        return dataclasses.replace(
            allocated[0],
            static=tuple(state.static for state in allocated),
            cache=tuple(state.cache for state in allocated),
        )

    def prefill(self, state: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """Encode b sentences into each member's static cache."""
        for number, model in enumerate(self.models):
            member_state = dataclasses.replace(state, static=state.static[number], cache=state.cache[number])
            cast("SupportsStaticCache", model).prefill(member_state, slots, source, mask)

    def encode(self, source: Tensor, mask: Tensor, trace: Trace | None = None) -> Memory:
        """Encode source (B, S) tokens, mask (B, S) True at real ones, with each member."""
        memories = []
        for number, member in enumerate(self.members):
            member_trace: Trace | None = None if trace is None else {}
            memories.append(member.encode(source, mask, member_trace))
            _add(trace, member_trace, number)
        return Memories((), memories[0].mask, tuple(memories))

    def start(self, memory: Memory) -> DecoderState:
        """Start each member; `static` and `cache` are tuples over the members, which searches reorder together."""
        memories = cast("Memories", memory).members
        states = [member.start(member_memory) for member, member_memory in zip(self.members, memories, strict=True)]
        return DecoderState(
            tuple(state.static for state in states), tuple(state.cache for state in states), states[0].length
        )

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens (B, t): log of the mean probability (B, t, V) of what follows each, and the new state."""
        mixed: Tensor | None = None
        static, cache, after = [], [], state
        for number, member in enumerate(self.members):
            member_trace: Trace | None = None if trace is None else {}
            before = dataclasses.replace(state, static=state.static[number], cache=state.cache[number])
            logits, after = member.advance(tokens, before, member_trace, mask)
            weighted = logits.log_softmax(-1, dtype=torch.float32) + self.log_shares[number]
            mixed = weighted if mixed is None else torch.logaddexp(mixed, weighted)
            static.append(after.static)
            cache.append(after.cache)
            _add(trace, member_trace, number)
        return cast("Tensor", mixed), dataclasses.replace(after, static=tuple(static), cache=tuple(cache))

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Log p (B, T) of each token of a given translation under the ensemble."""
        return teacher_forced_log_probs(self, memory, target, mask, trace)


def _add(trace: Trace | None, member_trace: Trace | None, number: int) -> None:
    if trace is not None:
        trace.update({f"member.{number}.{name}": tensor for name, tensor in (member_trace or {}).items()})
