"""Heads: they change nothing of a model that has none, read the memory's real places only, and are saved with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transduce.core.errors import ConfigError
from transduce.model.attention import Attention
from transduce.model.contract import Memory
from transduce.model.seq2seq import CTCHead, Head, LengthHead, Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder

V, D = 13, 8


def build(*heads: Head, seed: int = 3) -> Seq2Seq:
    torch.manual_seed(seed)
    encoder, decoder = TransformerEncoder(1, Attention(2), 16), TransformerDecoder(1, Attention(2), 16)
    return Model(D, 0.0, "all", encoder, decoder, heads=heads).build(V, V, True).eval()


def memory(model: Seq2Seq, padded: int = 5) -> Memory:
    source = torch.full((2, padded), 0)
    source[0, :5], source[1, :2] = torch.tensor([4, 5, 6, 7, 3]), torch.tensor([8, 3])
    return model.encode(source, torch.arange(padded) < torch.tensor([[5], [2]]))


def test_a_model_without_heads_has_nothing_of_them() -> None:
    bare = build()
    assert not bare.heads
    assert not [name for name in bare.weights() if "heads" in name]


def test_heads_change_no_other_weight_of_a_new_model() -> None:
    bare, headed = build().weights(), build(CTCHead(), LengthHead(20)).weights()
    assert {name for name in headed if name not in bare} == {
        f"heads.{name}.{kind}" for name in ("ctc.split", "ctc.output", "length.output") for kind in ("weight", "bias")
    }
    for name, tensor in bare.items():
        assert torch.equal(headed[name], tensor), name
    assert headed["heads.ctc.output.weight"].std() > 0.1


def test_shapes() -> None:
    model = build(CTCHead(upsample=3), LengthHead(longest=20))
    assert model.heads["ctc"](memory(model)).shape == (2, 5 * 3, V + 1)
    assert model.heads["length"](memory(model)).shape == (2, 21)


def test_frames_of_a_state_stand_side_by_side_and_see_no_other() -> None:
    model = build(CTCHead(upsample=2))
    states = torch.randn(1, 4, D)
    mask = torch.ones(1, 4, dtype=torch.bool)
    whole = model.heads["ctc"](Memory((states,), mask))
    alone = model.heads["ctc"](Memory((states[:, 2:3],), mask[:, :1]))
    torch.testing.assert_close(whole[:, 4:6], alone)


def test_the_length_is_read_from_the_mean_of_real_states() -> None:
    model = build(LengthHead(6))
    states = torch.randn(2, 3, D)
    states[1, 1:] = 1e6  # padding
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = model.heads["length"](Memory((states * 7, states), mask))
    head = model.heads["length"].output

    def linear(mean: Tensor) -> Tensor:
        return head.weight @ mean + head.bias  # type: ignore[operator, union-attr, no-any-return]

    torch.testing.assert_close(found[0], linear((states[0, 0] + states[0, 1] + states[0, 2]) / 3))
    torch.testing.assert_close(found[1], linear(states[1, 0]))


@pytest.mark.parametrize("kind", ["ctc", "length"])
def test_padding_is_not_seen(kind: str) -> None:
    model = build(CTCHead(2), LengthHead(9))
    tight, loose = (model.heads[kind](memory(model, padded)) for padded in (5, 11))
    torch.testing.assert_close(loose[:, : tight.size(1)], tight)


def test_heads_are_saved_and_come_back() -> None:
    first, second = (build(CTCHead(), LengthHead(9), seed=seed) for seed in (1, 2))
    assert not torch.equal(first.heads["ctc"](memory(first)), second.heads["ctc"](memory(second)))
    second.load_weights({name: tensor.clone() for name, tensor in first.weights().items()})
    for kind in ("ctc", "length"):
        assert torch.equal(first.heads[kind](memory(first)), second.heads[kind](memory(second)))


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="upsample: expected at least 1, got 0"):
        CTCHead(upsample=0)
    with pytest.raises(ConfigError, match="longest: expected at least 1, got 0"):
        LengthHead(longest=0)
    with pytest.raises(ConfigError, match="heads: expected each kind at most once, got ctc, length, ctc"):
        Model(heads=(CTCHead(2), LengthHead(), CTCHead(3)))
