"""Samples by frequency and by what must not change them; rows of greedy search that leave the batch."""

from __future__ import annotations

import pytest
import torch
from markov_model import EOS, SYMBOLS, Markov, V, check_sound, markov, memory
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.core.errors import ConfigError
from transduce.search.beam import BeamSearch
from transduce.search.constraints import DecodingConstraints
from transduce.search.sampling import invert, keep_top_k, keep_top_p, make_streams, uniform
from transduce.search.settings import Beam, Greedy, Limits, Sample

SHORT = Limits(longest=12)
TEMPERATURE = "expected a number of at least 0.0001 (for the most probable token use kind 'greedy')"


def test_rows_leave_when_they_are_done():
    model = markov(sentences=30, seed=5)
    found = Greedy(SHORT).build()(model, memory(list(range(30))), SYMBOLS)
    lengths = [len(hypothesis.token_log_probs) for (hypothesis,) in found]
    assert model.sizes == [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert model.sizes[0] == 30 > model.sizes[-1]


def test_samples_differ_by_key_by_number_and_by_seed():
    model = markov(seed=7, spread=0.3)
    limits = Limits(longest=30, longest_extra=30, forbid=(EOS,))
    batch = memory([0] * 50)
    found = Sample(samples=4, limits=limits).build()(model, batch, SYMBOLS)
    everything = [hypothesis.tokens for sentence in found for hypothesis in sentence]
    assert len(everything) == 200
    assert len(set(everything)) == 200
    again = Sample(samples=4, limits=limits).build()(model, batch, SYMBOLS, keys=list(range(50)))
    assert again == found
    other = Sample(samples=4, limits=limits, seed=2).build()(model, batch, SYMBOLS)
    assert not set(everything) & {hypothesis.tokens for sentence in other for hypothesis in sentence}


def test_samples_are_sorted_and_fewer_are_the_first_of_more():
    model = markov(seed=8)
    nine = Sample(samples=9, limits=SHORT).build()(model, memory([0]), SYMBOLS)[0]
    four = Sample(samples=4, limits=SHORT).build()(model, memory([0]), SYMBOLS)[0]
    scores = [hypothesis.score for hypothesis in nine]
    assert scores == sorted(scores, reverse=True)
    assert all(hypothesis in nine for hypothesis in four)
    for hypothesis in nine:
        check_sound(model, 0, hypothesis)


def draw(config: Sample, logits: list[float], count: int = 4000) -> torch.Tensor:
    """How often each token is the first one drawn."""
    table = torch.tensor(logits).expand(1, len(logits), len(logits), -1)
    config = Sample(config.temperature, config.top_k, config.top_p, limits=Limits(longest=1))
    found = config.build()(Markov(table), memory([0] * count), SYMBOLS)
    first = [hypothesis.tokens[0] if hypothesis.tokens else EOS for (hypothesis,) in found]
    return torch.bincount(torch.tensor(first), minlength=len(logits)).double()


def check_frequencies(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    assert (counts[probabilities == 0] == 0).all()
    expected = probabilities[probabilities > 0] * counts.sum()
    chi_square = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 22  # four degrees of freedom or fewer: passed by chance once in 5000


LOGITS = [5.0, 0.3, 1.5, -0.5, 0.9]  # token 0 is the most probable and forbidden


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies(temperature):
    probabilities = (torch.tensor([-torch.inf, *LOGITS[1:]]).double() / temperature).softmax(-1)
    check_frequencies(draw(Sample(temperature), LOGITS), probabilities)


@pytest.mark.parametrize(("top_k", "kept"), [(1, [2]), (2, [2, 4]), (3, [1, 2, 4]), (9, [1, 2, 3, 4])])
def test_top_k(top_k, kept):
    only = torch.full((V,), -torch.inf).double()
    only[kept] = torch.tensor(LOGITS).double()[kept]
    check_frequencies(draw(Sample(top_k=top_k), LOGITS), only.softmax(-1))


@pytest.mark.parametrize(("top_p", "kept"), [(0.01, [2]), (0.6, [2, 4]), (0.8, [1, 2, 4]), (0.99, [1, 2, 3, 4])])
def test_top_p(top_p, kept):
    # Without token 0 the probabilities are 0.504 (token 2), 0.276 (4), 0.152 (1) and 0.068 (3).
    only = torch.full((V,), -torch.inf).double()
    only[kept] = torch.tensor(LOGITS).double()[kept]
    check_frequencies(draw(Sample(top_p=top_p), LOGITS), only.softmax(-1))


def test_top_p_counts_what_top_k_and_temperature_left():
    # Of two tokens at temperature 1 the first holds 0.65: enough for 0.6. At temperature 4 it holds 0.54: not enough.
    assert (draw(Sample(top_k=2, top_p=0.6), LOGITS, 200) > 0).nonzero().flatten().tolist() == [2]
    assert (draw(Sample(4.0, top_k=2, top_p=0.6), LOGITS, 200) > 0).nonzero().flatten().tolist() == [2, 4]


def test_equals_of_the_last_one_kept_stay():
    row = torch.tensor([[0.1, 0.3, 0.3, 0.2, 0.1]]).log()
    assert keep_top_k(row, 1).isfinite().tolist() == [[False, True, True, False, False]]
    assert keep_top_p(row, 0.2).isfinite().tolist() == [[False, True, True, False, False]]
    assert keep_top_p(row, 0.7).isfinite().tolist() == [[False, True, True, True, False]]


def test_the_coldest_sample_is_greedy():
    model = markov(sentences=20, seed=9)
    batch = memory(list(range(20)))
    assert Sample(temperature=1e-4, limits=SHORT).build()(model, batch, SYMBOLS) == Greedy(SHORT).build()(
        model, batch, SYMBOLS
    )


def test_inversion_never_meets_an_impossible_token():
    row = torch.tensor([-torch.inf, 0.2, -torch.inf, 0.8, -torch.inf]).log_softmax(-1)
    draws = torch.tensor([0.0, 0.3, 0.999, 1 - 2**-53], dtype=torch.float64)
    assert invert(row.expand(4, -1), draws).tolist() == [1, 1, 3, 3]


def splitmix64(state: int) -> int:
    bits = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


def test_draws_are_those_of_splitmix64():
    keys = [0, 1, 2**64 - 1, 2**63]
    found = uniform(make_streams(5, keys, 2, 4), 6).tolist()
    expected = []
    for key in keys:
        for sample in range(2):
            stream = splitmix64(splitmix64(splitmix64(5) ^ key) ^ sample)
            expected.append((splitmix64((stream + 7 * 0x9E3779B97F4A7C15) % 2**64) >> 11) / 2**53)
    assert found == expected


def test_draws_are_spread_evenly():
    streams = make_streams(1, range(2000), 1, 2000)
    draws = torch.stack([uniform(streams, step) for step in range(10)])
    assert ((draws >= 0) & (draws < 1)).all()
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(torch.corrcoef(draws)[0, 1]) < 0.08  # one step says nothing of the next
    check = torch.histc(draws.float(), 20, 0, 1)
    assert ((check - 1000) ** 2 / 1000).sum() < 50


class Waits(TorchDispatchMode):
    """Counts what would wait for an accelerator: values read by Python, shapes that depend on values."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "make",
    [
        Greedy,
        lambda limits: Sample(top_k=3, top_p=0.9, limits=limits),
        lambda limits: Beam(limits=limits),
        lambda limits: Beam(limits=limits, groups=2, coverage=0.3),
    ],
)
def test_one_wait_a_step(make):
    model = markov(sentences=8, seed=5, source=3)
    search = make(Limits(longest=12, no_repeat=3, shortest=2)).build()
    include = (((3, 4),), ((4, 4),)) if isinstance(search, BeamSearch) else ()
    for constraint in (DecodingConstraints((2,)), DecodingConstraints((2,), include, ((3, 3), (4, 2)))):
        model.sizes.clear()
        with Waits() as waits:
            search(model, memory(list(range(8))), SYMBOLS, [constraint] * 8)
        assert len(model.sizes) > 3
        assert waits.count <= len(model.sizes) + 1  # one more to begin with


def test_the_models_gradients_are_left_alone():
    model = markov()
    model.tables.requires_grad_()
    assert Greedy(SHORT).build()(model, memory([0]), SYMBOLS)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"temperature": 0.0}, f"temperature: {TEMPERATURE}, got 0.0"),
        ({"temperature": float("inf")}, f"temperature: {TEMPERATURE}, got inf"),
        ({"top_k": -1}, "top_k: expected a number of tokens, or 0 for all, got -1"),
        ({"top_p": 0.0}, "top_p: expected a probability above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p: expected a probability above 0 and at most 1, got 1.5"),
        ({"samples": 0}, "samples: expected an integer of at least 1, got 0"),
    ],
)
def test_refused_settings_of_sampling(settings, text):
    with pytest.raises(ConfigError) as error:
        Sample(**settings)
    assert str(error.value) == text


def test_keys_must_fit():
    with pytest.raises(ValueError) as error:
        Sample().build()(markov(), memory([0]), SYMBOLS, keys=[1, 2])
    assert str(error.value) == "keys: expected one a sentence, 1 in all, got 2"
