"""Ways to make the compiled step faster, before they are measured: the same numbers as what they would replace.

Those that are kernels need a GPU or Triton's interpreter: TRITON_INTERPRET=1 python -m pytest tests/test_candidates.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import candidates
import kernels as timing

from transduce.model import attention, dropout, packing, seq2seq, sublayers, whole
from transduce.model.attention import Attention, MultiHeadAttention
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import projected

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
kernels = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1, and triton")


def test_a_hash_of_places_is_even_and_knows_no_neighbours() -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 512)
    masks = [candidates.hashed_dropout(x, 0.1, True) for _ in range(3)]
    for mask in masks:
        assert mask.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
        dropped = mask == 0
        assert dropped.float().mean().item() == pytest.approx(0.1, abs=0.002)  # five deviations of 512,000 draws
        for axis in (0, 1):
            assert dropped.float().mean(axis).std().item() == pytest.approx((0.09 / x.size(axis)) ** 0.5, rel=0.15)
            both = (dropped & dropped.roll(1, axis)).float().mean().item()
            assert both == pytest.approx(0.01, abs=0.0008)
    for other in masks[1:]:
        assert ((masks[0] == 0) & (other == 0)).float().mean().item() == pytest.approx(0.01, abs=0.0008)


def test_a_hash_follows_the_seed_and_its_gradient_the_mask() -> None:
    x = torch.randn(40, 30, requires_grad=True)
    torch.manual_seed(3)
    first = candidates.hashed_dropout(x, 0.3, True)
    torch.manual_seed(3)
    assert torch.equal(candidates.hashed_dropout(x, 0.3, True), first)
    assert candidates.hashed_dropout(x, 0.3, False) is x
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, first != 0)
    torch.testing.assert_close(x.grad, (first != 0) / 0.7)


def test_all_bits_of_a_hash_are_as_often_1_as_0() -> None:
    places, seeds = torch.arange(1 << 16, dtype=torch.int32), torch.tensor([12345, 678], dtype=torch.int32)
    found = candidates.hashed(places, seeds[0], seeds[1])
    assert len(found.unique()) == len(found)  # it mixes without losing anything
    for bit in range(32):
        assert ((found >> bit) & 1).float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_gradients_added_at_once_are_those_of_backward() -> None:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    unused = torch.nn.Parameter(torch.ones(2))
    parameters = [*layers.parameters(), unused]
    found = []
    for way in (lambda total: total.backward(), lambda total: candidates.add_gradients(total, parameters)):
        for parameter in parameters:
            parameter.grad = None
        for seed in (1, 2):
            torch.manual_seed(seed)
            way(layers(torch.randn(6, 4)).square().sum())
        found.append([parameter.grad for parameter in parameters])
    assert found[0][-1] is found[1][-1] is None
    assert all(torch.equal(a, b) for a, b in zip(found[0][:-1], found[1][:-1], strict=True))


def test_a_product_that_cuts_off_is_the_feed_forward_network() -> None:
    torch.manual_seed(1)
    network = sublayers.FeedForward(16, 40)
    ways = []
    for way in (network.forward, lambda x: candidates.cut_off(network, x)):
        x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        out = way(x)
        ways.append([out, *torch.autograd.grad(out.square().sum(), [x, *network.parameters()])])
    torch.testing.assert_close(*ways)


@pytest.mark.parametrize("split", [False, True])
def test_gradients_of_weights_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch, split: bool) -> None:
    monkeypatch.setattr(candidates, "split_sums", split)
    torch.manual_seed(1)
    layer = torch.nn.Linear(16, 24)
    ways = []
    for way in (layer.forward, lambda x: candidates.split_mapped(x, layer.weight, layer.bias)):
        x = torch.randn(1, 1000, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        out = way(x)
        ways.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-3)


def test_time_is_told_by_kind_gap_and_shape() -> None:
    def event(name: str, begin: float, lasts: float, number: int = 0) -> dict[str, object]:
        return {"cat": "kernel", "name": name, "ts": begin, "dur": lasts, "args": {"External id": number}}

    ran = [event("nvjet_tst_128", 0, 400, 7), event("_look_back", 450, 100), event("triton_poi_fused_relu", 500, 100)]
    call = {"External id": 7, "Input Dims": [[512], [2000, 512], [512, 1000]]}
    calls = [{"cat": "cpu_op", "name": "aten::addmm", "ts": 0, "dur": 1, "args": call}]
    assert timing.idle(ran) == 50
    assert [timing.kind_of(str(one["name"])) for one in ran] == ["products", "attention back", "cutting off at zero"]
    told = timing.report(2, ran, [*calls, *ran])
    assert "0.300 ms each, of which 0.025 idle" in told
    assert "   5 TFLOP/s aten::addmm" in told  # 2 * 2000 * 512 * 1000 in 400 us


@kernels
@pytest.mark.parametrize("words", [50, 9000])
def test_losses_and_slopes_of_logits(words: int) -> None:
    from candidate_kernels import losses_and_slopes

    torch.manual_seed(1)
    logits = 3 * torch.randn(7, words)
    gold, mask = torch.randint(words, (7,)), torch.tensor([1, 1, 0, 1, 1, 1, 0], dtype=torch.bool)
    given = logits, gold, mask, 0.1
    torch.testing.assert_close(losses_and_slopes(*given), projected._losses_compiled(*given), rtol=1e-5, atol=1e-6)


def of_model(width: int) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of a small Transformer on packed tokens."""
    torch.manual_seed(1)
    attention = Attention(heads=2)
    encoder = TransformerEncoder(layers=2, d_ff=32, attention=attention)
    decoder = TransformerDecoder(layers=2, d_ff=32, attention=attention)
    model = seq2seq.Model(d_model=width, dropout=0.0, encoder=encoder, decoder=decoder).build(40, 40, shared=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    source, target = torch.randint(4, 40, (3, 9)), torch.randint(4, 40, (3, 7))
    source_mask = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    mask = torch.arange(7) < torch.tensor([3, 7, 5])[:, None]
    states, layout = model.packed(source, source_mask, target, mask, (24, 20))
    assert isinstance(layout, packing.Lying)
    real = layout.real(mask)
    total = (states.square() * states.new_tensor(range(width)))[real].sum()
    return total.detach(), list(torch.autograd.grad(total, [*model.parameters()]))


@kernels
def test_heads_side_by_side_are_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.model import attention_on_gpu

    monkeypatch.setattr(packing, "attention_on_gpu", attention_on_gpu)
    monkeypatch.setattr(whole, "on_gpu", lambda x: True)
    plain = of_model(32)
    for name in ("reflect", "remember", "look"):
        monkeypatch.setattr(MultiHeadAttention, name, getattr(MultiHeadAttention, name))
    candidates.join_heads()
    torch.testing.assert_close(of_model(32), plain, rtol=1e-4, atol=1e-4)


def test_each_candidate_takes_the_place_of_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that are replaced are those the package uses."""
    for module in (dropout, sublayers):
        monkeypatch.setattr(module, "dropout", module.dropout)
    monkeypatch.setattr(attention, "drop", attention.drop)
    candidates.hash_dropout()
    torch.manual_seed(1)
    expected = candidates.hashed_dropout(torch.ones(4, 4), 0.5, True)
    torch.manual_seed(1)
    assert torch.equal(dropout.Dropout(0.5)(torch.ones(4, 4)), expected)
