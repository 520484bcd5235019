"""What is read off the layers of Table 1: counted, kept, waited for, connected; against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from transduce.lab.layers import CPU, HEAD, Kind, input_of, kept_bytes, kinds, operations, path_length, waiting_steps
from transduce.lab.pace import fitted, least_seconds

WINDOW, KERNEL = 4, 5
KINDS = {
    kind.name.split(",")[0] if "projected" not in kind.name else "projected": kind for kind in kinds(WINDOW, KERNEL)
}


def test_there_are_the_rows_of_the_table() -> None:
    assert list(KINDS) == ["self-attention", "recurrent", "convolutional", "restricted", "separable", "projected"]


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_gives_as_many_vectors_as_it_reads(name: str) -> None:
    layer, x = KINDS[name].build(HEAD), input_of(13, HEAD, 2, CPU)
    assert layer(x).shape == x.shape


def test_operations_are_those_of_the_formulas() -> None:
    """A multiplication and an addition each: 2 in front; two products in attention and recurrence, [a; b] in a gate."""
    n, d = 32, 64
    expected = {
        "self-attention": 4 * n * n * d,
        "recurrent": 4 * n * d * d,
        "convolutional": 4 * KERNEL * n * d * d,
        "restricted": 4 * 3 * WINDOW * n * d,
        "separable": 2 * KERNEL * n * d + 4 * n * d * d,
        "projected": 4 * n * n * d + 8 * n * d * d,
    }
    assert {name: operations(kind.build(d), n, d) for name, kind in KINDS.items()} == expected


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [2, 5, 6, 13])
def test_paths_are_exact(name: str, length: int) -> None:
    steps = {"self-attention": 1, "projected": 1, "recurrent": length, "restricted": math.ceil((length - 1) / WINDOW)}
    convolution = math.ceil((length - 1) / (KERNEL // 2))
    kind = KINDS[name]
    assert path_length(kind, length) == kind.path(length) == steps.get(name, convolution)


def test_only_recurrence_waits_longer_for_more() -> None:
    waits = {name: [waiting_steps(kind.build(8), n, 8) for n in (16, 32, 64)] for name, kind in KINDS.items()}
    growing = [name for name, (one, two, three) in waits.items() if one < two < three]
    assert growing == ["recurrent"]
    one, two, three = waits["recurrent"]
    assert three - two == 2 * (two - one)  # so many for every word
    assert all(len(set(found)) == 1 for name, found in waits.items() if name != "recurrent")


def test_what_is_kept_for_the_backward_pass() -> None:
    def kept(name: str, length: int) -> int:
        return kept_bytes(KINDS[name].build(HEAD), input_of(length, HEAD, 1, CPU))

    assert kept("self-attention", 64) == 64 * 64 * 4  # the weights, in single precision; x itself is not counted
    assert kept("self-attention", 128) == 4 * kept("self-attention", 64)
    for name in ("recurrent", "convolutional", "restricted", "separable"):
        assert kept(name, 256) == pytest.approx(2 * kept(name, 128), rel=0.05)


def test_a_layer_whose_ends_never_meet_is_no_layer() -> None:
    apart = Kind("apart", "", 1, 1, lambda n: 1, lambda d: nn.Identity())
    with pytest.raises(AssertionError, match="apart: the ends of 3 places never meet"):
        path_length(apart, 3)


def test_a_power_is_found_with_its_error() -> None:
    exact = fitted([2, 4, 8, 16], [3 * n**1.5 for n in (2, 4, 8, 16)])
    assert (exact.value, exact.factor) == (pytest.approx(1.5), pytest.approx(3))
    assert exact.error < 1e-9
    assert exact.at(4) == pytest.approx(24)
    bent = fitted([1, 2, 4], [1.0, 4.0, 8.0])  # slopes 2 and 1
    assert bent.value == pytest.approx(1.5)
    assert bent.error == pytest.approx(0.5 / 3**0.5)
    assert str(bent) == "1.50 ± 0.29"
    assert fitted([1, 2], [1.0, 8.0]).error == 0


def test_the_least_time_counts_and_all_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    took = {"a": iter([9.0, 5.0, 2.0, 4.0]), "b": iter([9.0, 1.0, 3.0, 6.0])}
    monkeypatch.setattr("time.process_time", lambda: clock[0])

    def task(name: str) -> None:
        order.append(name)
        clock[0] += next(took[name])

    found = least_seconds({name: lambda name=name: task(name) for name in "ab"}, 3, torch.device("cpu"))
    assert found == {"a": 2.0, "b": 1.0}
    assert order == list("abababab")
