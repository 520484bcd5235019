"""Packed, a batch gives the numbers it gives padded: loss, gradients, running statistics; empty rows add nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.kernels.packing import PackedLayout, VarlenLayout
from transduce.model.attention import Attention
from transduce.model.norms import BatchNorm, LayerNorm, Norm
from transduce.model.positions import Alibi, Learned, Positions, RelativeBias, Rotary, Sinusoidal
from transduce.model.scores import Additive, Cosine, Relu, ScaledDot, Score
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import Mixed, Top, TransformerDecoder, TransformerEncoder, Wiring
from transduce.objectives import ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 19
GROUPED = Attention(2, key_heads=1)


def lines(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]


def build(norm: Norm, positions: Positions, wiring: Wiring, attention: Attention = GROUPED) -> Seq2Seq:
    torch.manual_seed(3)
    stacks = {"attention": attention, "d_ff": 24, "positions": positions, "norm": norm}
    encoder, decoder = TransformerEncoder(2, **stacks), TransformerDecoder(2, wiring=wiring, **stacks)  # type: ignore[arg-type]
    return Model(32, 0.0, "all", encoder, decoder).build(V, V, shared=True).train().double()


def numbers(model: Seq2Seq, batch: Batch) -> list[Tensor]:
    loss = ObjectiveStep(model, CrossEntropy(0.1).build())(batch, 0)
    loss.total.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [loss.total.detach(), loss.count.double(), loss.metrics["nll"], *gradients, *model.buffers()]


def row_by_row(
    parts: Sequence[Tensor], starts: tuple[Tensor, Tensor], scale: float, causal: bool, longest: int
) -> Tensor:
    """What the kernel of varlen_attention.py does, as a sum over rows; beyond the last, nothing."""
    query, key, value = (one for part in parts for one in (part.unbind(1) if part.dim() == 4 else (part,)))
    found = []
    for begin, end, other, last in zip(*(side[i:].tolist() for side in starts for i in (0, 1)), strict=False):
        assert max(end - begin, last - other) <= longest
        scores = torch.einsum("thk,shk->hts", query[begin:end], key[other:last]) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        found.append(torch.einsum("hts,shv->thv", scores.softmax(-1), value[other:last]))
    made = torch.cat(found)
    return torch.cat((made, made.new_zeros(len(query) - len(made), *made.shape[1:])))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU."""
    kernels = SimpleNamespace(attend_rows=row_by_row)
    monkeypatch.setattr("transduce.kernels.dispatch.varlen_kernels", lambda x, longest: kernels)


@pytest.mark.parametrize("positions", [Sinusoidal(), Rotary(), Alibi()], ids=["sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("score", [ScaledDot(), Cosine()], ids=["dot", "cosine"])
@pytest.mark.usefixtures("kernel")
def test_looked_at_where_they_lie_tokens_are_the_same(positions: Positions, score: Score) -> None:
    sources, targets = lines(3, 7, 1, 5, 2), lines(4, 6, 2, 5, 3)
    batch = collate(sources, targets, SYMBOLS, SYMBOLS, 16, 16, rows=9)
    attention = Attention(2, key_heads=1, score=score, query_key_norm=True)
    models = [build(LayerNorm(), positions, Mixed(), attention) for _ in range(2)]
    lying = not isinstance(positions, Alibi)  # whose bias is between places of a padded row
    assert models[0].encoder.support.whole_rows is models[0].decoder.support.whole_rows is lying
    expected, found = numbers(models[0], batch), numbers(models[1], replace(batch, capacity=(30, 40)))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("kernel")
def test_heads_side_by_side_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collate(lines(3, 7, 1, 5, 2), lines(4, 6, 2, 5, 3), SYMBOLS, SYMBOLS, 16, 16, rows=9)
    models = [build(LayerNorm(), Sinusoidal(), Mixed(), Attention(2)) for _ in range(2)]
    assert models[0].encoder.support.unchanged is models[0].decoder.support.unchanged is True
    expected = numbers(models[0], batch)
    made = []

    def always_packed_qkv(real: Tensor, count: int, longest: int, kernels: Any, packed_qkv: bool) -> VarlenLayout:
        assert not packed_qkv  # it is for compiled code
        made.append(VarlenLayout(real, count, longest, kernels, packed_qkv=True))
        return made[-1]

    monkeypatch.setattr("transduce.model.encoder_decoder.VarlenLayout", always_packed_qkv)
    found = numbers(models[1], replace(batch, capacity=(30, 40)))
    assert len(made) == 2
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "attention",
    [
        Attention(2, key_heads=1),
        Attention(2, key_width=32),
        Attention(2, score=Cosine()),
        Attention(2, query_key_norm=True),
    ],
    ids=["grouped", "narrow keys", "cosine", "normed"],
)
def test_heads_that_are_not_alike_stay_apart(attention: Attention) -> None:
    assert not build(LayerNorm(), Sinusoidal(), Top(), attention).decoder.support.unchanged
    assert not build(LayerNorm(), Rotary(), Top(), Attention(2)).decoder.support.unchanged


@pytest.mark.parametrize(
    "attention",
    [Attention(2, dropout=0.1), Attention(2, score=Additive()), Attention(2, weights=Relu()), Attention(4)],
    ids=["dropout", "additive", "relu", "narrow"],
)
def test_what_the_kernel_cannot_do_is_spread(attention: Attention) -> None:
    assert not build(LayerNorm(), Sinusoidal(), Top(), attention).encoder.support.whole_rows


@pytest.mark.parametrize("norm", [LayerNorm(), BatchNorm()], ids=["layer_norm", "batch_norm"])
@pytest.mark.parametrize(
    "positions",
    [Sinusoidal(), Learned(), Rotary(), Alibi(), RelativeBias()],
    ids=["sinusoidal", "learned", "rotary", "alibi", "relative"],
)
@pytest.mark.parametrize("wiring", [Top(), Mixed()], ids=["top", "mixed"])
def test_padded_wider_with_empty_rows_and_packed_are_one(norm: Norm, positions: Positions, wiring: Wiring) -> None:
    sources, targets = lines(3, 7, 1, 5, 2), lines(4, 6, 2, 5, 3)
    padded = collate(sources, targets, SYMBOLS, SYMBOLS)
    wider = collate(sources, targets, SYMBOLS, SYMBOLS, 16, 16, rows=9)
    exact = int(wider.source_mask.sum()), int(wider.target_mask.sum())
    batches = [wider, replace(wider, capacity=(30, 40)), replace(padded, capacity=exact)]
    expected = numbers(build(norm, positions, wiring), padded)
    for batch in batches:
        found = numbers(build(norm, positions, wiring), batch)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_batch_of_nothing_gives_nothing() -> None:
    batch = collate([], [], SYMBOLS, SYMBOLS, 8, 8, rows=4)
    for capacity in ((0, 0), (16, 16)):
        model = build(LayerNorm(), Sinusoidal(), Top())
        total, count, nll, *_ = numbers(model, replace(batch, capacity=capacity))
        assert total == count == nll == 0
        assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_what_is_collected_is_spread_to_where_it_was() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    layout = PackedLayout(mask, capacity=5)
    x = torch.arange(9.0).view(3, 3)
    assert layout.pack(x)[0, :3].tolist() == [0, 1, 6]
    assert layout.real(mask).tolist() == [[True, True, True, False, False]]
    assert torch.equal(layout.pad(layout.pack(x))[mask], x[mask])


def test_gradients_come_from_real_tokens_only() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    layout = PackedLayout(mask, capacity=4)
    x = torch.randn(2, 3, 5, requires_grad=True)
    layout.pack(x)[:, :3].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, mask.unsqueeze(-1).expand(2, 3, 5).float())
    packed = torch.randn(1, 4, 5, requires_grad=True)
    (layout.pad(packed) * mask.unsqueeze(-1)).sum().backward()
    assert packed.grad is not None
    assert torch.equal(packed.grad[0, :, 0], torch.tensor([1.0, 1, 1, 0]))
