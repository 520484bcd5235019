"""Kernels against numpy and each other: integers bit for bit, for every instruction set."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_engines import KERNELS, SMALL, assert_same, needs_core, opened, runs, search, sources
from numpy.typing import NDArray

from transduce.core.errors import RunError
from transduce.engines.native.library import library
from transduce.engines.native.weight_file import byte_panels, floats, matrix, quantized
from transduce.engines.native.weight_format import padded
from transduce.model.attention import Attention
from transduce.model.positions import Rotary
from transduce.model.scores import Cosine, ScaledDot
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam

pytestmark = needs_core
here = pytest.mark.parametrize(
    "kernels", [pytest.param(k, marks=pytest.mark.skipif(not runs(k), reason="not on this machine")) for k in KERNELS]
)


def multiply(kernels: str, values: NDArray[np.int8], x: NDArray[np.float32], **given: Any) -> NDArray[np.float32]:
    """Rows x (R, K), quantized by the core, times values (N, K)."""

    def pointer(array: NDArray[np.float32]) -> Any:
        return np.ascontiguousarray(array, dtype=np.float32).ctypes.data_as(POINTER(c_float))

    outputs, inputs = values.shape
    panels, x = byte_panels(values), np.ascontiguousarray(x, dtype=np.float32)
    # As malloc gives it the memory need not be aligned as the weight file's is.
    room = np.zeros(panels.size + 64, np.uint8)
    aligned = room[-room.ctypes.data % 64 :][: panels.size]
    aligned[:] = panels.reshape(-1)
    out, error = np.zeros((len(x), outputs), np.float32), ctypes.create_string_buffer(200)
    scales, bias = given.get("scales", np.ones(outputs)), given.get("bias", np.zeros(outputs))
    scales, bias = (np.ascontiguousarray(a, dtype=np.float32) for a in (scales, bias))
    failed = library().transduce_multiply(
        kernels.encode(), aligned.ctypes.data, pointer(scales), pointer(bias), outputs, inputs, pointer(x), len(x),
        pointer(out), error, 200,
    )  # fmt: skip
    assert not failed, error.value
    return out


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the kernel tells no flags of the processor here")
def test_the_instruction_sets_are_those_the_kernel_reports(tmp_path: Path) -> None:
    """The core asks the processor itself; Linux lists what it found and what it allows."""
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    flags = set(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())
    both = {"avx2", "fma"} <= flags
    avx512 = {f"avx512{part}" for part in ("f", "bw", "dq", "vl", "_vnni")} <= flags
    expected = {"avx512": both and avx512, "avxvnni": both and "avx_vnni" in flags, "avx2": both, "portable": True}
    for kernels, there in expected.items():
        if there:
            assert opened(SMALL, tmp_path, kernels=kernels).native.core.kernels == kernels
        else:
            with pytest.raises(RunError, match=f"kernels '{kernels}' cannot run on this machine"):
                opened(SMALL, tmp_path, kernels=kernels)
    best = next(kernels for kernels in KERNELS if expected[kernels])
    assert opened(SMALL, tmp_path).native.core.kernels == best


@here
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 33])
def test_whole_numbers_are_exact(kernels: str, rows: int) -> None:
    draw = np.random.default_rng(rows)
    for inputs, outputs in ((64, 64), (512, 128), (192, 320)):
        values = draw.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        x = draw.integers(-127, 128, (rows, inputs)).astype(np.float32)
        x[:, 0] = 127  # then the scale is 1 and rounding changes nothing
        exact = x.astype(np.int64) @ values.T.astype(np.int64)
        assert np.abs(exact).max() < 2**24
        assert (multiply(kernels, values, x) == exact).all()


@here
def test_rows_of_huge_numbers_and_of_none_are_quantized_alike(kernels: str) -> None:
    """What grows past the largest float in one layer is read by the next: 0 is taken for it, on every processor."""
    values = np.random.default_rng(1).integers(-127, 128, (64, 256)).astype(np.int8)
    x = np.random.default_rng(2).standard_normal((8, 256)).astype(np.float32)
    x[0, 3], x[1, 200], x[2, 255], x[3, 0] = 1e38, np.inf, np.nan, -np.inf
    x[4], x[5], x[6, ::2] = 3e38, np.nan, np.inf
    found = multiply(kernels, values, x)
    np.testing.assert_array_equal(found, multiply("portable", values, x))
    assert np.isfinite(found[[2, 5, 7]]).all()
    x[2, 255] = 0
    np.testing.assert_array_equal(found[2], multiply(kernels, values, x)[2])


@here
def test_as_many_inputs_as_a_matrix_may_have_add_up_within_32_bits(kernels: str) -> None:
    """Weights are stored plus 128: the sum is at its greatest before the offset is taken off again."""
    values = np.full((64, 1 << 16), 127, np.int8)
    x = np.ones((1, 1 << 16), np.float32)
    np.testing.assert_allclose(multiply(kernels, values, x), 127 * 2.0**16, rtol=1e-6)


@here
def test_the_largest_products_do_not_saturate(kernels: str) -> None:
    values = np.full((64, 512), -127, np.int8)
    values[::2] = 127
    x = np.full((3, 512), 127, np.float32)
    x[1] = -127
    assert (multiply(kernels, values, x) == x.astype(np.int64) @ values.T.astype(np.int64)).all()


@here
def test_pairs_on_either_side_of_what_sixteen_bits_hold_are_exact(kernels: str) -> None:
    """Two products of weights plus 128 fit where the pair's sum is 128 at most; larger pairs are added in two parts."""
    up = [(64, 64), (64, 65), (127, 1), (127, 2), (127, 127), (-127, 127), (1, 0)]
    edges = [*up, *((-a, -b) for a, b in up)]
    draw = np.random.default_rng(7)
    chosen = draw.integers(len(edges), size=(11, 96))
    x = np.array(edges, np.float32)[chosen].reshape(11, 192)
    x[:, 0] = 127
    values = draw.choice(np.array([-127, -126, 0, 1, 126, 127], np.int8), size=(64, 192))
    assert (multiply(kernels, values, x) == x.astype(np.int64) @ values.T.astype(np.int64)).all()
    for row in range(11):
        assert (multiply(kernels, values, x[row : row + 1]) == multiply(kernels, values, x)[row]).all()


@here
def test_rows_are_quantized_as_numpy_would(kernels: str) -> None:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(9, 128)).astype(np.float32)
    x[4] = 0
    values, scales = quantized(draw.normal(size=(64, 128)).astype(np.float32))
    bias = draw.normal(size=64).astype(np.float32)
    highest = np.maximum(np.abs(x).max(1, keepdims=True), np.float32(1e-10))
    whole = np.rint(x * (np.float32(127) / highest)).astype(np.int64)
    expected = (whole @ values.T.astype(np.int64)) * (highest / 127 * scales).astype(np.float64) + bias
    np.testing.assert_allclose(multiply(kernels, values, x, scales=scales, bias=bias), expected, rtol=1e-5, atol=1e-5)
    assert (multiply(kernels, values, x, scales=scales, bias=bias)[4] == bias).all()


@here
@pytest.mark.parametrize("quantize", [False, True])
def test_models_say_the_same_by_all_kernels(kernels: str, quantize: bool, tmp_path: Path) -> None:
    both = opened(SMALL, tmp_path, quantize, kernels=kernels)
    assert both.native.core.kernels == kernels
    texts = sources(12, 13)
    if quantize:
        best = opened(SMALL, tmp_path, quantize).native
        assert_same(search(both.native, texts, Beam(size=3)), search(best, texts, Beam(size=3)))
    else:
        assert_same(search(both.native, texts, Beam(size=3)), search(both.torch, texts, Beam(size=3)))


@here
@pytest.mark.parametrize("width", [2, 16, 22, 38])
@pytest.mark.parametrize("score", [ScaledDot(), Cosine()], ids=lambda score: type(score).__name__)
def test_heads_of_any_width_are_normed_and_turned(kernels: str, width: int, score: Any, tmp_path: Path) -> None:
    attention = Attention(2, score=score, query_key_norm=True)
    config = Model(
        2 * width,
        dropout=0.0,
        encoder=TransformerEncoder(2, attention, 24, positions=Rotary()),
        decoder=TransformerDecoder(2, attention, 24, positions=Rotary()),
    )
    both = opened(config, tmp_path, kernels=kernels)
    texts = sources(12, 13)
    assert_same(search(both.native, texts, Beam(size=3)), search(both.torch, texts, Beam(size=3)))


def test_unknown_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="kernels 'mmx' cannot run on this machine"):
        opened(SMALL, tmp_path, kernels="mmx")


def test_quantized_weights_are_near_and_never_128() -> None:
    weight = np.random.default_rng(1).normal(size=(70, 30)).astype(np.float32)
    weight[3] = 0
    values, scales = quantized(weight)
    assert np.abs(values.astype(int)).max() == 127
    np.testing.assert_allclose(values * scales[:, None], weight, atol=float(scales.max()) / 2 * 1.001)
    packed = matrix("m", weight, None, quantize=True)
    assert (packed["m"].rows, packed["m"].columns) == (70, 30)
    assert len(packed["m"].data) == padded(70) * padded(30) == 128 * 64
    assert packed["m.bias"] == floats(np.zeros(128))
