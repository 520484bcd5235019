"""Position schemes against independent formulas: complex rotation, ALiBi's and T5's printed rules."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from transduce.model import positions
from transduce.model.positions import (
    Alibi,
    PositionScheme,
    RelativeBias,
    RelativeBiasPositions,
    Rotary,
    Sinusoidal,
    Unordered,
    alibi_slopes,
)

K = 8


@pytest.mark.parametrize("choice", [Sinusoidal(), Rotary()])
def test_tables_without_numbers_are_not_worked_out(
    choice: Sinusoidal | Rotary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are compared with files by their shapes, for which torch would load its compiler."""
    whole = choice.build(2 * K, 2, K, causal=True)
    monkeypatch.delattr(positions, "angles")
    with torch.device("meta"):
        alone = choice.build(2 * K, 2, K, causal=True)
    assert {name: table.shape for name, table in alone.named_buffers()} == {
        name: table.shape for name, table in whole.named_buffers()
    }


def test_rotary_is_multiplication_by_a_unit_complex_number() -> None:
    heads = torch.randn(1, 2, 5, K, dtype=torch.float64)
    scheme = Rotary(base=100.0).build(2 * K, 2, K, causal=True).double()
    turned = scheme.rotate(heads, start=3)
    for head in range(2):
        for place in range(5):
            for pair in range(K // 2):
                point = complex(*heads[0, head, place, 2 * pair : 2 * pair + 2].tolist())
                expected = point * cmath.exp(1j * (place + 3) * 100.0 ** (-2 * pair / K))
                found = complex(*turned[0, head, place, 2 * pair : 2 * pair + 2].tolist())
                assert found == pytest.approx(expected, abs=1e-6)


def test_rotary_products_depend_on_the_distance_alone_and_keep_their_size() -> None:
    scheme = Rotary().build(K, 1, K, causal=True)
    query, key = torch.randn(1, 1, 1, K), torch.randn(1, 1, 1, K)

    def product(at: int, of: int) -> float:
        return float((scheme.rotate(query, at) * scheme.rotate(key, of)).sum())

    assert product(7, 4) == pytest.approx(product(1003, 1000), abs=1e-3)
    assert product(7, 4) != pytest.approx(product(7, 5), abs=1e-3)
    assert scheme.rotate(query, 5000).norm().item() == pytest.approx(query.norm().item(), rel=1e-5)


def test_slopes_of_alibi_as_printed() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(16) == pytest.approx([2 ** (-n / 2) for n in range(1, 17)])
    twelve = alibi_slopes(12)
    assert twelve[:8] == alibi_slopes(8)
    assert twelve[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert alibi_slopes(1) == [2.0**-8]


def test_alibi_falls_in_a_line_with_the_distance() -> None:
    bias = Alibi().build(16, 2, 8, causal=True).bias(3, 5)
    assert bias is not None
    slopes = alibi_slopes(2)
    for head in range(2):
        for t in range(3):
            for s in range(5):
                assert bias[0, head, t, s].item() == pytest.approx(-slopes[head] * abs(t + 2 - s))


def t5_bucket(distance: int, causal: bool, buckets: int, farthest: int) -> int:
    """The rule of Raffel et al. in plain numbers; `distance` is how far the key stands behind the query."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return first + min(exact + int(far + 1e-6), buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_bias_looks_up_the_bucket_of_the_distance(causal: bool) -> None:
    scheme = RelativeBias(buckets=8, farthest=20).build(16, 2, 8, causal)
    assert isinstance(scheme, RelativeBiasPositions)
    with torch.no_grad():
        scheme.table.copy_(torch.arange(16.0).view(8, 2))
        bias = scheme.bias(30, 40)
    for t in range(30):
        for s in range(40):
            if causal and s > t + 10:
                continue  # ahead: never looked at
            bucket = t5_bucket(t + 10 - s, causal, 8, 20)
            assert bias[0, :, t, s].tolist() == [2 * bucket, 2 * bucket + 1]


@pytest.mark.parametrize("config", [Rotary(), Alibi(), RelativeBias()])
def test_what_acts_on_attention_adds_nothing_to_the_embeddings(config: Rotary | Alibi | RelativeBias) -> None:
    x = torch.randn(2, 3, 16)
    assert config.build(16, 2, 8, causal=False).add(x, 4) is x


def test_without_positions_nothing_happens_anywhere() -> None:
    scheme = Unordered().build(16, 2, 8, causal=True)
    assert type(scheme) is PositionScheme
    heads = torch.randn(1, 2, 3, 8)
    assert scheme.rotate(heads, 9) is heads
    assert scheme.bias(3, 5) is None
