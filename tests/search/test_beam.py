"""What only the eager beam search promises: rows that leave the batch, ties, impossible models, refused settings.

What every driver must hold is in test_decoding_laws.py.
"""

from __future__ import annotations

import pytest
import torch
from markov_model import EOS, SYMBOLS, Markov, V, markov, memory

from transduce.core.errors import ConfigError
from transduce.search.beam_state import greatest
from transduce.search.settings import Beam, Limits


def test_sentences_leave_when_they_are_decided():
    model = markov(sentences=20, seed=12)
    model.tables[..., EOS] += 1
    Beam(4, limits=Limits(longest=15)).build()(model, memory(list(range(20))), SYMBOLS)
    assert model.sizes == sorted(model.sizes, reverse=True)
    assert model.sizes[0] == 80 > model.sizes[-1]
    assert all(size % 4 == 0 for size in model.sizes)


def test_without_a_penalty_a_certain_end_stops_at_once():
    table = torch.full((1, V, V, V), -9.0)
    table[..., EOS] = 9.0
    model = Markov(table)
    (best,) = Beam(length_penalty=0.0).build()(model, memory([0]), SYMBOLS)[0]
    assert (best.tokens, best.finished, model.sizes) == ((), True, [4])


def test_greatest_agrees_with_a_stable_sort():
    generator = torch.Generator().manual_seed(1)
    totals = -torch.rand(40, 300, generator=generator).mul(20).round().div(4)  # many equals, zeros among them
    totals[:, ::7] = -torch.inf
    totals[0, 5:9] = torch.tensor([0.0, -0.0, -1e-42, -3e38])
    assert torch.equal(greatest(totals, 12), totals.argsort(dim=1, descending=True, stable=True)[:, :12])


def test_an_impossible_model_still_gives_one_hypothesis():
    table = torch.zeros(1, V, V, V)
    table[..., EOS] = -torch.inf
    (best,) = Beam(limits=Limits(forbid=(2, 3, 4))).build()(Markov(table), memory([0]), SYMBOLS)[0]
    assert (best.tokens, best.finished) == ((), True)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 0}, "size: expected an integer of at least 1, got 0"),
        ({"length_normalization": "wu"}, "length_normalization: expected 'gnmt' or 'power', got 'wu'"),
        ({"length_penalty": 7.0}, "length_penalty: expected a number from -5 to 5, got 7.0"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a number from -5 to 5, got nan"),
        ({"n_best": 0}, "n_best: expected an integer from 1 to the beam's size (4); raise size for more, got 0"),
        ({"n_best": 5}, "n_best: expected an integer from 1 to the beam's size (4); raise size for more, got 5"),
    ],
)
def test_refused_settings_of_the_beam(settings, text):
    with pytest.raises(ConfigError) as error:
        Beam(**settings)
    assert str(error.value) == text
