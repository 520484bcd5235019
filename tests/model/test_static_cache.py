"""Static KV cache against plain advance: beams that cross, sentences at their own positions, slots reused.

The oracle reads every path's tokens anew, all at once and alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from model_variants import CACHE, PARTS, SYMBOLS, V, close, covering, prefill, randomised, transformer
from torch import Tensor

from transduce.data.batch import pad_sources
from transduce.model.attention import additive_mask, attend
from transduce.model.contract import StaticDecoderState
from transduce.model.positions import Learned
from transduce.model.recurrent import RecurrentDecoder
from transduce.model.seq2seq import Model

PICKS = list(covering(PARTS, 2))


class Oracle:
    """What each path of each slot has read, as lists; logits by reading all of it at once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sources: dict[int, list[int]] = {}
        self.paths: dict[int, list[list[int]]] = {}

    def logits(self, slot: int, path: int) -> Tensor:
        tokens, mask = pad_sources([self.sources[slot]], SYMBOLS)
        state = self.model.start(self.model.encode(tokens, mask))
        logits: Tensor = self.model.advance(torch.tensor([self.paths[slot][path]]), state)[0][0, -1]
        return logits


@pytest.mark.parametrize("pick", PICKS, ids=lambda pick: "-".join(map(str, pick.values())))
@torch.no_grad()
def test_paths_in_a_static_cache_see_their_own_past(pick: dict[str, int]) -> None:
    model = randomised(transformer(pick))
    held = model.allocate_cache(CACHE)
    assert held is not None
    oracle, chooser = Oracle(model), torch.Generator().manual_seed(sum(pick.values()))
    place, ancestors = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2, 6, dtype=torch.int64)
    # slot 1 comes later than 0 and 2, and slot 2 is taken over by a shorter source
    arrivals = {0: {0: [5, 6, 7], 2: [8, 9, 4, 4, 5, 6]}, 1: {1: []}, 3: {2: [11]}}
    for step in range(5):
        come = arrivals.get(step, {})
        if come:
            prefill(model, held, list(come), list(come.values()))
        for slot, source in come.items():
            oracle.sources[slot], oracle.paths[slot] = source, [[], []]
            place[slot], ancestors[slot] = 0, torch.arange(2)[:, None]
        newest = torch.randint(4, V, (3, 2), generator=chooser)
        state = replace(held, position=place.clone(), ancestors=ancestors.clone(), length=5 if step < 4 else 6)
        logits, after = model.advance(newest, state)
        assert torch.equal(after.position, place + 1)
        parents = torch.randint(0, 2, (3, 2), generator=chooser)
        for slot, paths in oracle.paths.items():
            for path in range(2):
                paths[path] = [*paths[path], int(newest[slot, path])]
                close(logits[slot, path], oracle.logits(slot, path))
            oracle.paths[slot] = [paths[parent] for parent in parents[slot].tolist()]
            followed = ancestors[slot][parents[slot]]
            ancestors[slot, :, : place[slot] + 1] = followed[:, : place[slot] + 1]
            place[slot] += 1


def test_what_a_path_sees() -> None:
    place, ancestors = torch.tensor([2]), torch.tensor([[[1, 1, 0, 0], [0, 1, 1, 1]]])
    held = StaticDecoderState(None, None, 3, place, ancestors)  # one place further is not looked at
    seen = held.visible(0)[0, 0].view(2, 3, 2)
    assert seen[0].tolist() == [[False, True], [False, True], [True, False]]
    assert seen[1].tolist() == [[True, False], [False, True], [False, True]]
    greedy = StaticDecoderState(None, None, 4, torch.tensor([0, 2]), torch.zeros(2, 1, 4))
    assert greedy.visible(0)[:, 0, 0].tolist() == [[True, False, False, False], [True, True, True, False]]


def test_learned_positions_end_where_they_were_learned() -> None:
    pick = dict.fromkeys(PARTS, 0) | {
        "positions": next(i for i, p in enumerate(PARTS["positions"]) if p == Learned(40))
    }
    model = randomised(transformer(pick))
    assert model.allocate_cache(replace(CACHE, length=40)) is not None
    assert model.allocate_cache(replace(CACHE, length=41)) is None


def test_other_positions_go_as_far_as_requested() -> None:
    for number, positions in enumerate(PARTS["positions"]):
        if positions != Learned(40):
            model = randomised(transformer(dict.fromkeys(PARTS, 0) | {"positions": number}))
            held = model.allocate_cache(replace(CACHE, length=1100))  # tables begin with 1024 places
            prefill(model, held, [0, 1, 2], [[5], [6], [7]])
            state = replace(held, position=torch.tensor([1099] * 3), ancestors=held.ancestors)
            with torch.no_grad():
                assert model.advance(torch.tensor([[5, 5]] * 3), state)[0].isfinite().all()


def test_decoders_without_keys_hold_nothing() -> None:
    assert Model(d_model=16, decoder=RecurrentDecoder(2)).build(V, V, shared=True).static_cache_model() is None


def test_a_mask_to_add_hides_as_a_mask_does() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 2, 5, 8).unbind(0)
    mask = torch.rand(2, 1, 5, 5) > 0.4
    mask[..., 0] = True
    torch.testing.assert_close(
        attend(query, key, value, additive_mask(mask, query.dtype)), attend(query, key, value, mask)
    )


def test_gradients_are_there_after_memory_was_set_aside() -> None:
    """Joined maps are no parameters: a backward pass in eval mode goes through those that are."""
    model = randomised(transformer(dict.fromkeys(PARTS, 0)))
    tokens, mask = pad_sources([[5, 6, 7], [8, 9]], SYMBOLS)

    def gradients() -> dict[str, Tensor | None]:
        model.zero_grad()
        state = model.start(model.encode(tokens, mask))
        model.advance(torch.tensor([[2, 5, 6], [2, 7, 8]]), state)[0].square().sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    expected = gradients()
    assert model.allocate_cache(CACHE) is not None
    assert not model.training
    found = gradients()
    assert [name for name, gradient in found.items() if gradient is None] == []
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
