"""The reference engine: scores are teacher forcing's, dropout is off and comes back, devices are named in words."""

from __future__ import annotations

import pytest
import torch

from transduce.data.symbols import Symbols
from transduce.engines.torch_engine import TorchEngine, pick_device
from transduce.errors import ConfigError
from transduce.model.attention import Attention
from transduce.model.contract import evaluating
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Beam, Greedy, Sample
from transduce.search.wishes import NOTHING, Wishes

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
SOURCES = [(5, 6, 7), (8,), (), (9, 9, 9, 9, 9, 9)]


@pytest.fixture
def engine() -> TorchEngine:
    torch.manual_seed(4)
    sizes = {"layers": 1, "attention": Attention(2), "d_ff": 16}
    model = Model(d_model=16, dropout=0.5, encoder=TransformerEncoder(**sizes), decoder=TransformerDecoder(**sizes))  # type: ignore[arg-type]
    return TorchEngine(model.build(12, 12, shared=True), SYMBOLS, SYMBOLS, torch.device("cpu"))


SEARCHES = [Greedy(), Beam(size=3, n_best=2), Sample(samples=2), Beam(size=4, n_best=3, groups=2, coverage=0.3)]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_sentence_is_searched_alike_alone_and_in_a_batch(engine: TorchEngine, search: object) -> None:
    wishes = [NOTHING, Wishes((4, 5)), NOTHING, Wishes((6,))]
    keys = [11, 12, 13, 14]
    together = engine.search(SOURCES, search, wishes, keys)
    for i, source in enumerate(SOURCES):
        (alone,) = engine.search([source], search, [wishes[i]], [keys[i]])
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
        assert alone[0].tokens[: len(wishes[i].prefix)] == wishes[i].prefix
        assert alone[0].log_prob == pytest.approx(together[i][0].log_prob, abs=1e-4)


def test_a_real_decoder_is_covered_by_its_last_layer(engine: TorchEngine) -> None:
    covering = Beam(size=3, coverage=0.5)
    for source in SOURCES:
        ((found,),) = engine.search([source], covering, [NOTHING], [0])
        row, written = torch.tensor([[*source, SYMBOLS.eos]]), [SYMBOLS.bos, *found.tokens]
        trace: dict[str, torch.Tensor] = {}
        with evaluating(engine.model), torch.no_grad():
            memory = engine.model.encode(row, torch.ones_like(row, dtype=torch.bool))
            read = written[: len(found.token_log_probs)]
            engine.model.advance(torch.tensor([read]), engine.model.start(memory), trace)
        received = trace["decoder.0.cross"][0].mean(0).sum(0)
        penalty = 0.5 * received.clamp(max=1).log().sum().item()
        length = len(found.token_log_probs)
        assert found.score == pytest.approx(found.log_prob / ((5 + length) / 6) ** 0.6 + penalty, abs=1e-4)


def test_the_score_of_what_was_found_is_what_the_search_said(engine: TorchEngine) -> None:
    found = [hypotheses[0] for hypotheses in engine.search(SOURCES, Greedy(), [NOTHING] * 4, [0] * 4)]
    scores = engine.score(SOURCES, [hypothesis.tokens for hypothesis in found])
    for hypothesis, log_probs in zip(found, scores, strict=True):
        assert len(log_probs) == len(hypothesis.tokens) + 1
        written = len(hypothesis.token_log_probs)  # without the end symbol where the limit cut it
        assert log_probs[:written] == pytest.approx(hypothesis.token_log_probs, abs=1e-4)


def test_scores_are_those_of_teacher_forcing_one_by_one(engine: TorchEngine) -> None:
    targets = [(4, 5), (), (6, 6, 6, 6, 6), (7,)]
    model = engine.model.eval()
    for source, target, scored in zip(SOURCES, targets, engine.score(SOURCES, targets), strict=True):
        row = torch.tensor([[*source, SYMBOLS.eos]])
        memory = model.encode(row, torch.ones_like(row, dtype=torch.bool))
        logits, _ = model.advance(torch.tensor([[SYMBOLS.bos, *target]]), model.start(memory))
        expected = logits.log_softmax(-1)[0].gather(1, torch.tensor([*target, SYMBOLS.eos])[:, None])[:, 0]
        assert scored == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_model_in_training_translates_without_dropout_and_is_in_training_again(engine: TorchEngine) -> None:
    engine.model.train()
    first, second = engine.score(SOURCES, SOURCES), engine.score(SOURCES, SOURCES)
    assert first == second
    assert engine.model.training
    engine.model.eval()
    assert engine.score(SOURCES, SOURCES) == first
    assert not engine.model.training


def test_the_mode_comes_back_after_an_error(engine: TorchEngine) -> None:
    engine.model.train()

    def fail() -> None:
        with evaluating(engine.model):
            assert not engine.model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert engine.model.training


def test_no_gradients_are_kept(engine: TorchEngine) -> None:
    engine.score(SOURCES, SOURCES)
    assert all(parameter.grad is None for parameter in engine.model.parameters())


def test_devices_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="device: 'cuda' was asked for, and torch finds no GPU here; use device=cpu"):
        pick_device("cuda")
    with pytest.raises(ConfigError, match="device: 'gpu' is not a device; use auto, cpu, cuda or cuda:0"):
        pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")
