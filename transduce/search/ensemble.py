"""Several models that search and score like one: their next-token probabilities are averaged at every step.

Members may be of any architecture; they share vocabularies and read the same tokens. The mean is of probabilities, not
of logits (Sutskever et al., 2014), taken over log-softmaxes by log-add-exp so that nothing underflows.
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
    """The memory of each member. The mask is the first one's; `layers` is empty, since the members' differ in width."""

    members: tuple[Memory, ...]


class Ensemble(nn.Module):
    """The contract of model/contract.py over several models; `weights` are relative, and equal when not given.

    A trace holds what the members trace, each name behind `member.{number}.`.
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
        """This ensemble, if all its members can work in memory set aside once."""
        return self if all(member.static_cache_model() is not None for member in self.models) else None  # type: ignore[operator]

    @property
    def vocabulary(self) -> int:
        """The number of target tokens, the same for all."""
        return cast("SupportsStaticCache", self.models[0]).vocabulary

    def allocate_cache(self, room: CacheShape) -> StaticDecoderState | None:
        """`static` and `cache` are tuples of the members' own."""
        found = [cast("SupportsStaticCache", model).allocate_cache(room) for model in self.models]
        held = [one for one in found if one is not None]
        if len(held) < len(found):
            return None
        return dataclasses.replace(
            held[0], static=tuple(one.static for one in held), cache=tuple(one.cache for one in held)
        )

    def prefill(self, held: StaticDecoderState, slots: Tensor, source: Tensor, mask: Tensor) -> None:
        """Each member's part where it belongs."""
        for number, model in enumerate(self.models):
            own = dataclasses.replace(held, static=held.static[number], cache=held.cache[number])
            cast("SupportsStaticCache", model).prefill(own, slots, source, mask)

    def encode(self, source: Tensor, mask: Tensor, trace: Trace | None = None) -> Memory:
        """Source (B, S) tokens, mask (B, S) True at real ones."""
        found = []
        for number, member in enumerate(self.members):
            own: Trace | None = None if trace is None else {}
            found.append(member.encode(source, mask, own))
            _add(trace, own, number)
        return Memories((), found[0].mask, tuple(found))

    def start(self, memory: Memory) -> DecoderState:
        """`static` and `cache` are tuples of the members' own, so that searches reorder them as one."""
        memories = cast("Memories", memory).members
        states = [member.start(own) for member, own in zip(self.members, memories, strict=True)]
        return DecoderState(
            tuple(state.static for state in states), tuple(state.cache for state in states), states[0].length
        )

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens (B, t); the logarithm of the mean probability (B, t, V) of what follows each, and the state."""
        mixed: Tensor | None = None
        static, cache, after = [], [], state
        for number, member in enumerate(self.members):
            own: Trace | None = None if trace is None else {}
            before = dataclasses.replace(state, static=state.static[number], cache=state.cache[number])
            logits, after = member.advance(tokens, before, own, mask)
            weighted = logits.log_softmax(-1, dtype=torch.float32) + self.log_shares[number]
            mixed = weighted if mixed is None else torch.logaddexp(mixed, weighted)
            static.append(after.static)
            cache.append(after.cache)
            _add(trace, own, number)
        return cast("Tensor", mixed), dataclasses.replace(after, static=tuple(static), cache=tuple(cache))

    def token_log_probs(self, memory: Memory, target: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        """Log p (B, T) of each token of a given translation, as of one model."""
        return teacher_forced_log_probs(self, memory, target, mask, trace)


def _add(trace: Trace | None, own: Trace | None, number: int) -> None:
    if trace is not None:
        trace.update({f"member.{number}.{name}": tensor for name, tensor in (own or {}).items()})
