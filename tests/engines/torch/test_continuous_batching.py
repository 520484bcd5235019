"""Continuous batching finds what eager search finds: ragged ends, slots reused, limits, prefixes."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, get_args

import pytest
import torch
from static_and_eager import (
    CPU,
    CUDA,
    SEARCHES,
    SHORT,
    SYMBOLS,
    VARIED,
    V,
    assert_alike,
    decode_eagerly,
    decode_static,
    engine_of,
    sentences,
)

from transduce.engines.torch import continuous_batching
from transduce.engines.torch.continuous_batching import (
    UNFINISHED,
    BatchRun,
    ContinuousBatcher,
    PendingFlags,
    QueuedSentence,
    Shape,
    crowd,
    jobs_of,
    reached,
    rounded,
)
from transduce.engines.torch.engine import TorchEngine
from transduce.kernels import dispatch
from transduce.model.attention import Attention
from transduce.model.blocks import PreNorm
from transduce.model.contract import CacheShape
from transduce.model.positions import Learned, Positions, Rotary, Sinusoidal
from transduce.model.recurrent import RecurrentDecoder
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.constraints import UNCONSTRAINED, CancelToken, DecodingConstraints
from transduce.search.ensemble import Ensemble
from transduce.search.settings import Beam, Greedy, Limits, Sample
from transduce.search.static_search import StaticSearchConfig


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("constrained", [False, True])
def test_a_static_cache_finds_what_eager_search_finds(search: Any, constrained: bool) -> None:
    engine, sources = engine_of(), sentences(30)
    prefixes = [(), (5,), (1, 6, 7), tuple(range(20, 37))]  # 1 is never written unless it is asked for
    constraints = [DecodingConstraints(prefix=prefixes[i % 4]) if constrained else UNCONSTRAINED for i in range(30)]
    found = decode_static(engine, sources, search, constraints)
    assert_alike(found, decode_eagerly(engine, sources, search, constraints))
    (slots,) = engine.cache_pool.batchers.values()  # type: ignore[union-attr]
    assert slots.shape.cache_shape.sentences < 30


@pytest.mark.parametrize("search", [Greedy(VARIED), Greedy(SHORT), Beam(4, n_best=3, limits=SHORT)], ids=str)
def test_phrases_to_exclude(search: Any) -> None:
    """Those that come up most, of one token, two and three; some sentences have none, and one may write nothing."""
    engine, sources = engine_of(), sentences(30)
    written = [hypotheses[0].tokens for hypotheses in decode_static(engine, sources, search)]
    pairs = tuple(tokens[:2] for tokens in written if len(tokens) >= 2)
    triples = tuple(tokens[1:4] for tokens in written if len(tokens) >= 4)
    every = tuple((token,) for token in range(V))
    kinds = [(), pairs[:3], triples, (*pairs[3:], pairs[0][:1]), every]
    constraints = [DecodingConstraints(prefix=pairs[0][:1] if i % 3 else (), exclude=kinds[i % 5]) for i in range(30)]
    found = decode_static(engine, sources, search, constraints)
    assert_alike(found, decode_eagerly(engine, sources, search, constraints))
    assert [own[0].tokens for own in found] != written


def test_members_of_an_ensemble_share_one_static_cache() -> None:
    models = [engine_of(positions=positions).model for positions in (Sinusoidal(), Rotary())]
    engine = TorchEngine(Ensemble(models, (2.0, 1.0)).eval(), SYMBOLS, SYMBOLS, CPU, graphs="on")
    assert engine.cache_pool
    engine.cache_pool.places = 300
    for search in (Greedy(VARIED), Beam(3, n_best=2, limits=SHORT)):
        assert_alike(decode_static(engine, sentences(20), search), decode_eagerly(engine, sentences(20), search))
    other = Model(d_model=16, decoder=RecurrentDecoder(1)).build(V, V, shared=True)
    assert Ensemble([*models, other]).static_cache_model() is None
    assert Ensemble([engine_of(positions=Learned(9)).model, models[0]]).allocate_cache(CacheShape(1, 1, 4, 10)) is None


def test_sentences_end_at_many_places_by_themselves_and_at_limits() -> None:
    """So that the tests above see all of it."""
    engine = engine_of()
    for search in (Greedy(VARIED), Beam(4, n_best=4, limits=VARIED)):
        found = [hypothesis for own in decode_static(engine, sentences(30), search) for hypothesis in own]
        assert len({len(one.tokens) for one in found if one.finished}) >= 4
        assert any(not one.finished for one in found)


@pytest.mark.parametrize("positions", [Sinusoidal(), Learned(64), Rotary()], ids=str)
def test_long_and_short_sentences_in_one_cache(positions: Any) -> None:
    """Memory is looked at farther as paths grow: past 32 places."""
    engine = engine_of(positions=positions, residual=PreNorm())
    sources = [*sentences(6, longest=40), *sentences(6, seed=4, longest=3)]
    limits = Limits(longest=50, longest_extra=40)
    for search in (Greedy(limits), Beam(2, limits=limits)):
        assert_alike(decode_static(engine, sources, search), decode_eagerly(engine, sources, search))


def test_a_cache_is_reused_with_nothing_left_of_those_before() -> None:
    engine, search = engine_of(), Beam(3, n_best=2, limits=SHORT)
    for seed in range(4):
        sources = sentences(7, seed)
        assert_alike(decode_static(engine, sources, search), decode_eagerly(engine, sources, search))
    assert engine.cache_pool
    assert len(engine.cache_pool.batchers) == 1


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_prefill_in_small_batches_while_the_host_runs_ahead_as_of_a_gpu(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous_batching, "AT_ONCE", 2)
    monkeypatch.setattr(continuous_batching, "LUMP", 2)
    engine, sources = engine_of(), sentences(30)
    decode_static(engine, sources[:9], search)  # makes the cache
    (slots,) = engine.cache_pool.batchers.values()  # type: ignore[union-attr]
    shapes, read, taking, reading = [], [], slots.admit, BatchRun.read
    slots.ahead = 1
    monkeypatch.setattr(slots, "admit", lambda jobs, taken: shapes.append(len(jobs)) or taking(jobs, taken))
    monkeypatch.setattr(BatchRun, "read", lambda run: read.append(len(run.in_flight)) or reading(run))
    with torch.inference_mode():
        found = slots.run(
            jobs_of(sources, slots.shape.plan, [UNCONSTRAINED] * 30, slots.shape.plan.streams(search, range(30)))
        )
    assert_alike(found, decode_eagerly(engine, sources, search))
    assert max(shapes) == 2
    assert sum(shapes) == 30
    assert max(read) > 0 or search.limits.longest == 1  # read while others were inside


def test_sentences_at_their_limit_leave_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look waits for the device."""
    limits = Limits(longest=9, shortest=8)
    engine, sources, looks, done = engine_of(), sentences(8, longest=5), [], PendingFlags.done
    monkeypatch.setattr(PendingFlags, "done", lambda report: looks.append(report) or done(report))
    found = decode_static(engine, sources, Greedy(limits))
    assert_alike(found, decode_eagerly(engine, sources, Greedy(limits)))
    assert {len(own[0].token_log_probs) for own in found} == {9}
    assert len(looks) == 8


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter")
@pytest.mark.parametrize("search", [Greedy(SHORT), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_kernels_for_a_gpu_find_what_eager_search_finds(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sources = engine_of(attention=Attention(1)), sentences(5)
    expected = decode_eagerly(engine, sources, search)
    monkeypatch.setattr(dispatch, "decoding_kernels", lambda x: dispatch.decoding)
    monkeypatch.setattr(dispatch, "search_kernels", lambda logits, paths, vocabulary: dispatch.decoding)
    assert_alike(decode_static(engine, sources, search), expected)


@pytest.mark.parametrize("search", [Greedy(VARIED), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_cancelled_sentences_leave_and_the_others_stay(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sources, stop = engine_of(), sentences(30), CancelToken()
    constraints = [DecodingConstraints(cancel_token=stop) if i % 3 == 0 else UNCONSTRAINED for i in range(30)]
    expected, steps, advance = decode_eagerly(engine, sources, search), 0, ContinuousBatcher.advance

    def advanced(slots: ContinuousBatcher, written: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:  # some are inside by now, others wait
            stop.cancel()
        advance(slots, written)

    monkeypatch.setattr(ContinuousBatcher, "advance", advanced)
    found = decode_static(engine, sources, search, constraints)
    assert_alike([found[i] for i in range(30) if i % 3], [expected[i] for i in range(30) if i % 3])
    left = [own for i, own in enumerate(found) if i % 3 == 0 and not own[0].finished]
    assert len(left) > 5  # but for those that ended before
    everyone = [DecodingConstraints(cancel_token=stop)] * 30
    steps = 2
    assert all(own == [UNFINISHED] for own in decode_static(engine, sources, search, everyone))
    assert steps == 2


@pytest.mark.parametrize("positions", [kind() for kind in get_args(Positions)], ids=str)
@pytest.mark.parametrize("search", [Greedy(VARIED), Sample(), Beam(4, n_best=2, limits=Limits(shortest=3))], ids=str)
def test_nothing_in_a_step_waits_for_a_number(positions: Any, search: Any) -> None:
    """On the meta device there are no numbers: whoever reads one, or mixes devices, fails. A graph cannot either."""
    shared: Any = {"layers": 1, "attention": Attention(2), "d_ff": 24, "positions": positions}
    with torch.device("meta"):
        config = Model(16, 0.1, encoder=TransformerEncoder(**shared), decoder=TransformerDecoder(**shared))
        model = config.build(V, V, shared=True).eval()
    constraints = [DecodingConstraints(prefix=(5,), exclude=((6, 7),))] * 3
    plan = StaticSearchConfig.of(search, constraints, SYMBOLS, V)
    holding = model.static_cache_model()
    assert plan
    assert holding
    jobs = jobs_of(sentences(3), plan, constraints, plan.streams(search, range(3)))
    with torch.inference_mode():
        slots = ContinuousBatcher.of(holding, SYMBOLS, Shape.of(jobs, plan, 1000), torch.device("meta"), compiled=False)
        assert slots
        slots.admit(jobs, [0, 1, 2])
        slots.advance(0)
    with pytest.raises(RuntimeError):
        slots.stepper.state.position[0].item()


@pytest.mark.slow
@pytest.mark.parametrize("search", [Greedy(SHORT), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_a_step_is_one_program_for_the_compiler(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole, without a break, for every cache; run as traced, since making code takes a minute."""
    whole = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", whole)
    engine = engine_of()
    assert engine.cache_pool
    engine.cache_pool.compiled = True
    for count in (2, 9):
        sources = sentences(count)
        assert_alike(decode_static(engine, sources, search), decode_eagerly(engine, sources, search))
    assert len(engine.cache_pool.batchers) == 2


def test_sizes_are_few() -> None:
    assert [rounded(length) for length in (1, 16, 17, 33, 65, 129, 500, 513, 769)] == [
        16, 16, 32, 48, 96, 192, 512, 768, 1024,
    ]  # fmt: skip
    assert [crowd(count) for count in (1, 2, 3, 5, 9, 16, 17, 40, 100)] == [1, 2, 4, 8, 16, 16, 32, 48, 128]
    assert [reached(length) for length in (1, 32, 33, 64, 65, 500)] == [32, 32, 64, 64, 128, 512]
    assert len({(rounded(a), crowd(b)) for a in range(1, 513) for b in range(1, 513)}) < 150


def test_a_cache_holds_as_many_sentences_as_fit() -> None:
    plan = StaticSearchConfig.of(Beam(4, limits=Limits(longest=30)), [UNCONSTRAINED], SYMBOLS, V)
    assert plan
    jobs = jobs_of(sentences(100), plan, [UNCONSTRAINED] * 100, [[0] * 4] * 100)
    assert [len(job.source) for job in jobs] == sorted((len(job.source) for job in jobs), reverse=True)
    assert Shape.of(jobs, plan, 4 * 32 * 1000).cache_shape == CacheShape(128, 4, 16, 32)
    assert Shape.of(jobs, plan, 4 * 32 * 70).cache_shape == CacheShape(64, 4, 16, 32)
    assert Shape.of(jobs, plan, 1).cache_shape == CacheShape(1, 4, 16, 32)


def test_lists_too_long_for_a_cache_share_one_whatever_their_size() -> None:
    plan = StaticSearchConfig.of(Beam(4, limits=Limits(longest_ratio=0, longest_extra=30)), [], SYMBOLS, V)
    assert plan
    shapes = set()
    for count in (300, 437, 901, 5000):
        sources = [[7] * 9] * count
        shapes.add(Shape.of(jobs_of(sources, plan, [UNCONSTRAINED] * count, [[0] * 4] * count), plan, 4 * 32 * 290))
    assert [shape.cache_shape for shape in shapes] == [CacheShape(256, 4, 16, 32)]


def test_cancellation_is_polled_only_where_a_token_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(QueuedSentence, "wanted", property(lambda job: asked.append(job.number) or True))
    engine, sources = engine_of(), sentences(40)
    decode_static(engine, sources, Greedy(SHORT))
    assert not asked
    decode_static(
        engine,
        sources,
        Greedy(SHORT),
        [DecodingConstraints(cancel_token=CancelToken() if number == 7 else None) for number in range(40)],
    )
    assert set(asked) == set(range(40))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("heads", [1, 2])  # 16 and 8 wide: with kernels of ours for attention, and with torch's
def test_cuda_graphs_find_what_eager_search_finds(search: Any, heads: int) -> None:
    engine = engine_of(CUDA, attention=Attention(heads))
    for seed in range(4):  # as it is written, then recorded, then replayed
        sources = sentences(30, seed)
        constraints = [DecodingConstraints(prefix=(5, 6)) if i % 3 == 0 else UNCONSTRAINED for i in range(30)]
        assert_alike(
            decode_static(engine, sources, search, constraints), decode_eagerly(engine, sources, search, constraints)
        )
    assert engine.cache_pool
    assert any(slots.recorder.graphs for slots in engine.cache_pool.batchers.values())
