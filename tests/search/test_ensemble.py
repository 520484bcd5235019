"""Ensembles: the mean of probabilities worked out by hand, under every search, over models of any shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from markov_model import EOS, SYMBOLS, Markov, enumerate_all, markov, memory
from torch import Tensor, nn

from transduce.core.errors import ConfigError
from transduce.model.attention import Attention
from transduce.model.contract import DecoderState, Memory, rows
from transduce.model.positions import Positions, Rotary, Sinusoidal
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.ensemble import Ensemble
from transduce.search.settings import Beam, Greedy, Limits, Sample

Trace = dict[str, Tensor] | None


class Chain(nn.Module):
    """A Markov chain as a module; the source's first token is the number of the sentence."""

    def __init__(self, chain: Markov) -> None:
        super().__init__()
        self.chain = chain

    def encode(self, source: Tensor, mask: Tensor, trace: Trace = None) -> Memory:
        return memory(source[:, 0].tolist(), mask.sum(1).tolist(), mask.shape[1])

    def start(self, memory: Memory) -> DecoderState:
        return self.chain.start(memory)

    def advance(self, tokens: Tensor, state: DecoderState, trace: Trace = None, mask: Tensor | None = None) -> Any:
        if trace is not None:
            trace["decoder.0.cross"] = torch.full((len(tokens), 1, 1, 3), float(self.chain.tables[0, 0, 0, 0]))
        return self.chain.advance(tokens, state)


@dataclass
class Mean:
    """What the fakes' oracles ask of a model, with the mean taken by hand in double precision."""

    chains: list[Markov]
    shares: list[float]

    def log_probs(self, number: int, tokens: tuple[int, ...]) -> list[float]:
        each = [torch.tensor(chain.log_probs(number, tokens)).double().exp() for chain in self.chains]
        mixed = sum(share * one for share, one in zip(self.shares, each, strict=True))
        assert isinstance(mixed, Tensor)
        return mixed.log().tolist()  # type: ignore[no-any-return]


CHAINS = [markov(3, seed=1), markov(3, seed=2, spread=3.0)]
SOURCE = torch.tensor([[0, 9, 9], [1, 9, 9], [2, 9, 9]])


def encoded(ensemble: Ensemble) -> Memory:
    return ensemble.encode(SOURCE, torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.parametrize("weights", [(), (1.0, 1.0), (0.5, 1.5), (3.0, 1.0)])
def test_a_wide_beam_finds_the_best_of_all_under_the_mean(weights: tuple[float, ...]) -> None:
    total = sum(weights) or 2
    oracle: Any = Mean(CHAINS, [weight / total for weight in weights or (1.0, 1.0)])
    ensemble = Ensemble([Chain(chain) for chain in CHAINS], weights)
    limits = Limits(longest_ratio=0, longest_extra=5)
    found = Beam(size=200, n_best=20, length_penalty=0.6, limits=limits).build()(ensemble, encoded(ensemble), SYMBOLS)
    for number in range(3):
        expected = enumerate_all(oracle, number, 5, 0.6)[:20]
        assert [one.tokens for one in found[number]] == [tokens for _, tokens in expected]
        assert [one.score for one in found[number]] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("search", [Greedy(), Sample(samples=4), Beam(size=3, n_best=2)])
def test_a_model_with_itself_is_that_model(search: Any) -> None:
    one, twice = Ensemble([Chain(CHAINS[0])]), Ensemble([Chain(CHAINS[0])] * 3, (1, 2, 3))
    alone = search.build()(Chain(CHAINS[0]), memory([0, 1, 2]), SYMBOLS, None, [7, 8, 9])
    for ensemble in (one, twice):
        found = search.build()(ensemble, encoded(ensemble), SYMBOLS, None, [7, 8, 9])
        assert [[h.tokens for h in hypotheses] for hypotheses in found] == [[h.tokens for h in hs] for hs in alone]
        for ours, theirs in zip(found, alone, strict=True):
            assert [h.log_prob for h in ours] == pytest.approx([h.log_prob for h in theirs], abs=1e-4)


def transformer(d_model: int, layers: int, positions: Positions) -> Seq2Seq:
    torch.manual_seed(layers)
    encoder = TransformerEncoder(layers, Attention(2), 16, positions=positions)
    decoder = TransformerDecoder(layers, Attention(2), 16, positions=positions)
    return Model(d_model=d_model, encoder=encoder, decoder=decoder).build(12, 12, shared=True).eval()


def test_members_of_other_depth_and_width() -> None:
    members = [transformer(16, 1, Sinusoidal()), transformer(24, 3, Rotary())]
    ensemble = Ensemble(members)
    source, mask = torch.randint(4, 12, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    tokens = torch.randint(4, 12, (2, 6))
    trace: dict[str, Tensor] = {}
    with torch.no_grad():
        logits, state = ensemble.advance(tokens, ensemble.start(ensemble.encode(source, mask, trace)), trace)
        each = [m.advance(tokens, m.start(m.encode(source, mask)))[0].double().softmax(-1) for m in members]
        torch.testing.assert_close(logits.double().exp(), (each[0] + each[1]) / 2, rtol=1e-5, atol=1e-6)
        assert state.length == 6
        assert trace["member.0.decoder.0.cross"].shape == (2, 2, 6, 5)
        assert {"member.1.decoder.2.cross", "member.1.encoder.2.out"} <= trace.keys()
        # The same state for other rows goes on as those rows do.
        index = torch.tensor([1, 0, 1])
        further, _ = ensemble.advance(tokens[index, :1], rows(state, index))
        plain, _ = ensemble.advance(tokens[:, :1], state)
        torch.testing.assert_close(further, plain[index])
        assert rows(ensemble.encode(source, mask), index).mask.shape == (3, 5)


def test_nothing_underflows() -> None:
    """A token that both members find impossible to the last bit still has a finite logarithm."""

    class Sure(Chain):
        def advance(self, tokens: Tensor, state: DecoderState, trace: Trace = None, mask: Tensor | None = None) -> Any:
            return torch.tensor([[[0.0, 500.0, 0.0, 0.0, 0.0]]]), state

    ensemble = Ensemble([Sure(CHAINS[0]), Sure(CHAINS[1])])
    logits, _ = ensemble.advance(torch.tensor([[0]]), DecoderState((None, None), (None, None), 0))
    assert logits[0, 0, EOS] == pytest.approx(0)
    assert logits[0, 0, 2].item() == pytest.approx(-500)


def test_what_is_refused() -> None:
    members = [Chain(chain) for chain in CHAINS]
    with pytest.raises(ConfigError, match="weights: expected one for each of 2 models, got 3"):
        Ensemble(members, (1, 2, 3))
    for weights in ((1.0, 0.0), (1.0, -1.0), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match=r"weights: expected numbers above 0, got \["):
            Ensemble(members, weights)
