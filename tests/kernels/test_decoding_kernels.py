"""The kernels of a decoding step against equation 1 and torch's norms; and that the decoder's steps go through them.

With a GPU, or TRITON_INTERPRET=1, the kernels themselves; without, the same in plain torch in their place.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_variants import CACHE, prefill
from torch import Tensor
from torch.nn import functional as F

from transduce.kernels import dispatch
from transduce.kernels.packing import PADDED, StaticCacheLayout, StaticKernelLayout
from transduce.model.attention import Attention, additive_mask
from transduce.model.blocks import PostNorm, PreNorm, Residual
from transduce.model.contract import DecoderState, StaticDecoderState
from transduce.model.norms import LayerNorm, Norm, RMSNorm
from transduce.model.positions import Alibi, Positions, Rotary, Sinusoidal
from transduce.model.scores import Additive, Bilinear, Cosine, ScaledDot, Score
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder

ALL = dispatch.KernelSupport(True, True, True, True)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KERNELS: Any = dispatch.decoding if INTERPRETED or torch.cuda.is_available() else None
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
needs_kernels = pytest.mark.skipif(KERNELS is None, reason="needs triton, and a GPU or TRITON_INTERPRET=1")


def attend_cache(query: Tensor, newest: Any, memory: Any, place: Tensor, ancestors: Tensor, scale: float) -> Tensor:
    """Path by path, head by head."""
    sentences, heads, paths, _ = query.shape
    repeats, found = heads // newest[0].size(1), []
    for b in range(sentences):
        for held, new in zip(memory, newest, strict=True):
            held[b, place[b]] = new[b].transpose(0, 1)
        for k in range(paths):
            own = [*ancestors[b, k, : place[b]].tolist(), k]
            for h in range(heads):
                key, value = (torch.stack([held[b, i, p, h // repeats] for i, p in enumerate(own)]) for held in memory)
                found.append((key @ query[b, h, k] * scale).softmax(0) @ value)
    return torch.stack(found).view(sentences, paths, -1)


def attend_source(query: Tensor, key: Tensor, value: Tensor, hiding: Tensor, scale: float) -> Tensor:
    key, value = (heads.repeat_interleave(query.size(1) // key.size(1), dim=1) for heads in (key, value))
    seen = (hiding == 0).float()
    weights = (query @ key.mT * scale).exp() * seen
    found = weights @ value / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    return found.transpose(1, 2).flatten(2)


def normed_sum(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    if bias is None:
        return F.rms_norm(x + y, weight.shape, weight, epsilon)
    return F.layer_norm(x + y, weight.shape, weight, bias, epsilon)


def looked_up(table: Tensor, index: Tensor, factor: float, onto: Tensor | None = None) -> Tensor:
    return table[index] * factor if onto is None else onto + table[index][:, None] * factor


def linear_few_rows(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    y = x @ weight.T + bias
    return y.clamp(min=0) if relu else y


PLAIN = SimpleNamespace(
    FEW=4,
    WIDEST=4096,
    attend_cache=attend_cache,
    attend_source=attend_source,
    normed_sum=normed_sum,
    lookup=looked_up,
    linear_few_rows=linear_few_rows,
)
USERS = ("norms", "transformer", "linear", "whole", "positions")


@needs_kernels
@pytest.mark.parametrize(("paths", "groups", "deep"), [(1, 4, 16), (3, 4, 32), (4, 1, 16), (5, 2, 16)])
@pytest.mark.parametrize("length", [20, 150])
def test_paths_look_at_their_own_past(paths: int, groups: int, deep: int, length: int) -> None:
    torch.manual_seed(1)
    places = torch.tensor([0, length - 1, 7, length // 2], device=DEVICE)
    joined = torch.randn(4, paths, 4 * 16 + groups * (16 + deep), device=DEVICE)  # as one projection leaves them
    query, key, value = joined.split([4 * 16, groups * 16, groups * deep], dim=-1)
    query, key, value = (
        part.view(4, paths, -1, width).transpose(1, 2) for part, width in ((query, 16), (key, 16), (value, deep))
    )
    ancestors = torch.randint(0, paths, (4, paths, length), device=DEVICE)
    first = [torch.randn(4, length, paths, groups, width, device=DEVICE) for width in (16, deep)]
    ways = []
    for way in (KERNELS.attend_cache, attend_cache):
        memory = tuple(held.clone() for held in first)
        ways.append([way(query, (key, value), memory, places, ancestors, 0.3), *memory])
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)
    assert not torch.equal(ways[0][1], first[0])


@needs_kernels
@pytest.mark.parametrize(("paths", "groups", "deep"), [(1, 4, 16), (3, 2, 32), (20, 1, 16)])
@pytest.mark.parametrize("length", [9, 100])
def test_paths_look_at_the_source(paths: int, groups: int, deep: int, length: int) -> None:
    torch.manual_seed(1)
    query = torch.randn(3, paths, 4, 16, device=DEVICE).transpose(1, 2)
    key, value = (torch.randn(3, groups, length, width, device=DEVICE) for width in (16, deep))
    mask = torch.rand(3, 1, 1, length, device=DEVICE) > 0.3
    mask[0] = False  # a slot that nobody is in
    mask[1, ..., :70] = length < 70  # all of a tile
    mask[1, ..., -1] = True
    ways = [
        way(query, key, value, additive_mask(mask, key.dtype), 0.3) for way in (KERNELS.attend_source, attend_source)
    ]
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)
    assert not ways[0][0].any()


@needs_kernels
@pytest.mark.parametrize("width", [48, 512])
@pytest.mark.parametrize("centred", [True, False])
def test_sums_are_normed(width: int, centred: bool) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(2, 3, 2, width, device=DEVICE)
    weight, bias = torch.randn(2, width, device=DEVICE)
    given = x + 4, y, weight, bias if centred else None, 1e-5
    torch.testing.assert_close(KERNELS.normed_sum(*given), normed_sum(*given), rtol=1e-5, atol=1e-5)


@needs_kernels
def test_rows_are_looked_up() -> None:
    torch.manual_seed(1)
    table, index = torch.randn(9, 48, device=DEVICE), torch.tensor([[3, 8], [0, 3], [1, 1]], device=DEVICE)
    torch.testing.assert_close(KERNELS.lookup(table, index, 3.0), looked_up(table, index, 3.0))
    given = table, index[:, 0], 1.0, torch.randn(3, 2, 48, device=DEVICE)
    torch.testing.assert_close(KERNELS.lookup(*given), looked_up(*given))


@needs_kernels
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 48, 30), (4, 64, 16)])
def test_few_rows_are_multiplied(rows: int, inputs: int, outputs: int, relu: bool) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(rows, 2, inputs, device=DEVICE)[:, 1:], torch.randn(outputs, inputs, device=DEVICE)
    given = x, weight, torch.randn(outputs, device=DEVICE), relu
    torch.testing.assert_close(KERNELS.linear_few_rows(*given), linear_few_rows(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="for a GPU")
def test_in_bfloat16_they_are_the_same() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 8, 4, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    mask = torch.ones(8, 1, 1, 4, device=DEVICE, dtype=torch.bool)
    found = KERNELS.attend_source(query, key, value, additive_mask(mask, key.dtype), 0.125)
    plain = attend_source(query.float(), key.float(), value.float(), additive_mask(mask, torch.float32), 0.125)
    torch.testing.assert_close(found.float(), plain, rtol=2e-2, atol=2e-2)
    memory = torch.randn(2, 8, 6, 4, 4, 64, device=DEVICE, dtype=torch.bfloat16)
    place, ancestors = torch.arange(8, device=DEVICE) % 6, torch.randint(0, 4, (8, 4, 6), device=DEVICE)
    plain = attend_cache(query.float(), (key.float(), value.float()), memory.float().unbind(0), place, ancestors, 0.125)
    found = KERNELS.attend_cache(query, (key, value), memory.unbind(0), place, ancestors, 0.125)
    torch.testing.assert_close(found.float(), plain, rtol=2e-2, atol=2e-2)
    x, y, weight, bias = torch.randn(4, 512, device=DEVICE, dtype=torch.bfloat16)
    found = KERNELS.normed_sum(x, y, weight, bias, 1e-5)
    plain = normed_sum(x.float(), y.float(), weight.float(), bias.float(), 1e-5)
    torch.testing.assert_close(found.float(), plain, rtol=2e-2, atol=2e-2)


def model_of(positions: Positions, score: Score, norm: Norm, residual: Residual, window: int) -> Any:
    torch.manual_seed(2)
    stacks: Any = {
        "layers": 2, "attention": Attention(2, key_heads=1, score=score), "d_ff": 24,
        "positions": positions, "norm": norm, "residual": residual, "window": window,
    }  # fmt: skip
    config = Model(32, 0.1, "all", TransformerEncoder(**stacks), TransformerDecoder(**stacks))
    return config.build(20, 20, shared=True).eval().to(DEVICE)


@pytest.mark.parametrize(
    ("positions", "score", "norm", "residual", "window", "known"),
    [
        (Sinusoidal(), ScaledDot(), LayerNorm(), PostNorm(), 0, True),
        (Rotary(), Cosine(), RMSNorm(), PostNorm(), 0, True),
        (Rotary(), Bilinear(), LayerNorm(), PreNorm(), 0, True),
        (Alibi(), ScaledDot(), LayerNorm(), PostNorm(), 0, False),
        (Sinusoidal(), Additive(), LayerNorm(), PostNorm(), 0, False),
        (Sinusoidal(), ScaledDot(), LayerNorm(), PostNorm(), 2, False),
    ],
    ids=["plain", "cosine", "bilinear", "alibi", "additive", "window"],
)
@torch.inference_mode()
def test_steps_go_through_the_kernels_with_the_same_logits(
    positions: Positions,
    score: Score,
    norm: Norm,
    residual: Residual,
    window: int,
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = model_of(positions, score, norm, residual, window), []

    def counted(*arguments: Any) -> Tensor:
        asked.append(1)
        found: Tensor = (KERNELS or PLAIN).attend_cache(*arguments)
        return found

    kernels = SimpleNamespace(**vars(KERNELS or PLAIN))
    kernels.attend_cache = counted
    logits: list[list[Tensor]] = []
    for chosen in (None, kernels):
        monkeypatch.setattr(dispatch, "decoding_kernels", lambda x, chosen=chosen: chosen)
        held, chooser = model.allocate_cache(CACHE), torch.Generator().manual_seed(1)
        prefill(model, held, [0, 1, 2], [[5, 6, 7], [4], [8, 9, 4, 4, 5]])
        place, steps = torch.tensor([0, 2, 1], device=DEVICE), []
        for _ in range(4):
            ancestors = torch.randint(0, 2, (3, 2, 6), generator=chooser).to(DEVICE)
            newest = torch.randint(4, 20, (3, 2), generator=chooser).to(DEVICE)
            paths = torch.arange(2, device=DEVICE)[:, None]  # at its newest place each path is its own
            ancestors = torch.where(torch.arange(6, device=DEVICE) < place[:, None, None], ancestors, paths)
            found, after = model.advance(newest, replace(held, position=place, ancestors=ancestors, length=6))
            steps.append(found)
            place = after.position
        logits.append(steps)
    assert len(asked) == (8 if known else 0)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_only_steps_in_a_static_cache_may_use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's eager searches, and validation, stay torch's own."""

    class OnGpu:
        is_cuda = True

        def get_device(self) -> int:
            return 0

    kernels: Any = SimpleNamespace()
    monkeypatch.setattr(dispatch, "decoding", kernels)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    x: Any = OnGpu()
    eager, static = DecoderState(None, None, 0), StaticDecoderState(None, None, 1, x, x)
    unlike = dispatch.KernelSupport(True, False, True, True)
    with torch.no_grad():
        assert eager.kernels is None
        assert static.kernels is kernels
        assert eager.layout(PADDED, ALL, traced=False) is PADDED
        assert type(static.layout(PADDED, ALL, traced=False)) is StaticKernelLayout
        for own in (static.layout(PADDED, ALL, traced=True), static.layout(PADDED, unlike, traced=False)):
            assert type(own) is StaticCacheLayout
            assert own.kernels is kernels  # of all but attention
    assert static.kernels is None  # somebody wants a gradient
