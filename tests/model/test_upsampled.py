"""Probabilities of CTC against the sum over every path, and against torch's own loss."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.model.parallel import entry_log_probs

EOS = 2


def said(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """Equal neighbours are one, then blanks fall away."""
    return tuple(token for token, _ in itertools.groupby(path) if token != blank)


def by_hand(log_probs: Tensor, tokens: tuple[int, ...]) -> tuple[list[float], float]:
    """P(begins with each prefix of tokens), P(is tokens), by adding up all paths: log_probs (C, V + 1)."""
    frames, classes = log_probs.shape
    begins, whole = [0.0] * len(tokens), 0.0
    for path in itertools.product(range(classes), repeat=frames):
        probability = float(log_probs[range(frames), path].sum().exp())
        found = said(path, classes - 1)
        whole += probability * (found == tokens)
        for length in range(1, len(tokens) + 1):
            begins[length - 1] += probability * (found[:length] == tokens[:length])
    return begins, whole


@pytest.mark.parametrize("tokens", [(), (0,), (0, 1), (1, 1), (0, 0, 1), (1, 0, 1), (0, 0, 0)])
def test_prefixes_are_sums_over_paths(tokens: tuple[int, ...]) -> None:
    torch.manual_seed(len(tokens))
    log_probs = torch.randn(2, 5, 4).double().log_softmax(-1)  # tokens 0 to 2 and the blank
    real = torch.tensor([[True] * 5, [True] * 4 + [False]])
    gold = torch.tensor([[*tokens, EOS]] * 2)
    gold = F.pad(gold, (0, 2))
    mask = torch.arange(gold.size(1)) <= len(tokens)
    entered, whole = entry_log_probs(log_probs, real, gold, mask.expand(2, -1))
    begun = entered.logsumexp(-1)
    for row, frames in enumerate((5, 4)):
        begins, probability = by_hand(log_probs[row, :frames], tokens)
        assert begun[row, : len(tokens)].exp().tolist() == pytest.approx(begins)
        assert float(whole[row].exp()) == pytest.approx(probability, abs=1e-12)


def test_the_whole_is_torch_s_ctc() -> None:
    torch.manual_seed(1)
    log_probs = torch.randn(6, 30, 12).log_softmax(-1)
    frames = torch.tensor([30, 20, 8, 1, 5, 29])
    lengths = torch.tensor([9, 12, 0, 1, 3, 10])
    gold = torch.randint(0, 11, (6, 13))
    mask = torch.arange(13) <= lengths[:, None]
    _, whole = entry_log_probs(log_probs, torch.arange(30) < frames[:, None], gold, mask)
    expected = F.ctc_loss(log_probs.transpose(0, 1), gold, frames, lengths, blank=11, reduction="none")
    torch.testing.assert_close(-whole.float(), expected)
