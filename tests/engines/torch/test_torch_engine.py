"""The reference engine: scores are teacher forcing's, dropout is off and comes back, devices are named in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transduce.core.errors import ConfigError, RunError
from transduce.engines.torch.engine import TorchEngine, pick_device, with_precision
from transduce.model.attention import Attention
from transduce.model.contract import evaluating
from transduce.model.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.model.norms import BatchNorm, RMSNorm
from transduce.model.positions import Alibi, Learned, RelativeBias, Rotary
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.scores import Additive, Cosine, Relu
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Sample
from transduce.text.vocabulary import Symbols

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
    constraints = [UNCONSTRAINED, DecodingConstraints((4, 5)), UNCONSTRAINED, DecodingConstraints((6,))]
    keys = [11, 12, 13, 14]
    together = engine.search(SOURCES, search, constraints, keys)
    for i, source in enumerate(SOURCES):
        (alone,) = engine.search([source], search, [constraints[i]], [keys[i]])
        assert [h.tokens for h in alone] == [h.tokens for h in together[i]]
        assert alone[0].tokens[: len(constraints[i].prefix)] == constraints[i].prefix
        assert alone[0].log_prob == pytest.approx(together[i][0].log_prob, abs=1e-4)


def test_out_of_memory_says_what_to_lower(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model, "encode", lambda *_, **__: torch.empty(1 << 60))
    with pytest.raises(RunError) as caught:
        engine.search(SOURCES, Beam(size=4096), [UNCONSTRAINED] * 4, [0] * 4)
    assert str(caught.value) == (
        "out of memory with 4 texts at once, the longest of 6 tokens, 4,096 hypotheses for each: lower the"
        " beam or the number of samples, or give the translator fewer batch_tokens, or shorter texts"
    )


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_so_it_does_where_pairs_are_scored(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def encode(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine.model, "encode", encode)
    with pytest.raises(RunError, match="at once, the longest of 6 tokens: give the translator fewer batch_tokens"):
        engine.score(SOURCES, [(4,)] * 4)
    monkeypatch.setattr(engine.model, "encode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.score(SOURCES, [(4,)] * 4)


def test_a_real_decoder_is_covered_by_its_last_layer(engine: TorchEngine) -> None:
    covering = Beam(size=3, coverage=0.5)
    for source in SOURCES:
        ((found,),) = engine.search([source], covering, [UNCONSTRAINED], [0])
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
    found = [hypotheses[0] for hypotheses in engine.search(SOURCES, Greedy(), [UNCONSTRAINED] * 4, [0] * 4)]
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
    with pytest.raises(ConfigError, match="device: 'cuda' was requested, and torch finds no GPU here; use device=cpu"):
        pick_device("cuda")
    with pytest.raises(ConfigError, match="device: 'gpu' is not a device; use auto, cpu, cuda or cuda:0"):
        pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")


VARIANTS = [
    (TransformerEncoder(1, Attention(2), 16), TransformerDecoder(1, Attention(2), 16)),
    (
        TransformerEncoder(1, Attention(2, score=Cosine()), 16, norm=BatchNorm(), positions=Alibi()),
        TransformerDecoder(1, Attention(2, key_heads=1), 16, norm=RMSNorm(), positions=RelativeBias()),
    ),
    (
        TransformerEncoder(1, Attention(2, score=Additive()), 16, positions=Learned()),
        TransformerDecoder(1, Attention(2, weights=Relu(), query_key_norm=True), 16, positions=Rotary()),
    ),
    (RecurrentEncoder(1), RecurrentDecoder(1)),
    (ConvolutionalEncoder(1), ConvolutionalDecoder(1)),
]


@pytest.mark.parametrize(("encoder", "decoder"), VARIANTS)
@pytest.mark.parametrize("graphs", ["off", "on"])
def test_weights_of_16_bits_find_much_the_same(encoder: Any, decoder: Any, graphs: str) -> None:
    torch.manual_seed(4)
    model = Model(d_model=16, encoder=encoder, decoder=decoder).build(12, 12, shared=True)
    exact = TorchEngine(model, SYMBOLS, SYMBOLS, torch.device("cpu")).score(SOURCES, SOURCES)
    rounded = TorchEngine(with_precision(model, "bf16"), SYMBOLS, SYMBOLS, torch.device("cpu"), graphs)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    for one, other in zip(exact, rounded.score(SOURCES, SOURCES), strict=True):
        assert one != other
        assert one == pytest.approx(other, abs=0.15)
    for search in (Greedy(), Beam(2)):
        found = rounded.search(SOURCES, search, [UNCONSTRAINED] * 4, [0] * 4)
        scored = rounded.score(SOURCES, [own[0].tokens for own in found])
        for (best,), log_probs in zip(found, scored, strict=True):
            written = len(best.token_log_probs)
            assert log_probs[:written] == pytest.approx(best.token_log_probs, abs=0.15)


def test_full_precision_is_left_as_it_is(engine: TorchEngine) -> None:
    assert with_precision(engine.model, "fp32") is engine.model
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.float32}


def test_what_no_static_cache_can_hold_is_decoded_in_batches_of_usual_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    sizes = {"layers": 1, "attention": Attention(2), "d_ff": 16}
    model = Model(d_model=16, encoder=TransformerEncoder(**sizes), decoder=TransformerDecoder(**sizes)).build(  # type: ignore[arg-type]
        12, 12, shared=True
    )
    engine = TorchEngine(model, SYMBOLS, SYMBOLS, torch.device("cpu"), "on")
    search = Beam(4, groups=2)
    expected = TorchEngine(model, SYMBOLS, SYMBOLS, torch.device("cpu")).search(
        SOURCES, search, [UNCONSTRAINED] * 4, [1, 2, 3, 4]
    )
    monkeypatch.setattr("transduce.engines.torch.engine.PLAIN_TOKENS", 7)
    batches: list[int] = []
    plain = engine._search
    monkeypatch.setattr(engine, "_search", lambda *given: batches.append(len(given[0])) or plain(*given))  # type: ignore[func-returns-value]
    found = engine.search(SOURCES, search, [UNCONSTRAINED] * 4, [1, 2, 3, 4])
    assert batches == [1, 1, 2]
    assert [[h.tokens for h in own] for own in found] == [[h.tokens for h in own] for own in expected]
    assert engine.search_tokens > 0
    assert TorchEngine(model, SYMBOLS, SYMBOLS, torch.device("cpu")).search_tokens == 0
