"""The pool of static caches: which searches use it, which cache they get, how many are kept, many callers."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from static_and_eager import (
    CPU,
    CUDA,
    SHORT,
    SYMBOLS,
    V,
    assert_alike,
    decode_eagerly,
    decode_static,
    engine_of,
    sentences,
    visits,
)

from transduce.engines.torch.continuous_batching import ContinuousBatcher
from transduce.engines.torch.engine import (
    ALL,
    MOST_BATCHERS,
    MOST_PLACES,
    SPARE,
    TorchEngine,
    most_places,
    with_precision,
)
from transduce.model.positions import Learned
from transduce.model.recurrent import RecurrentDecoder
from transduce.model.seq2seq import Model
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, Sample


def test_another_seed_needs_no_other_cache() -> None:
    engine = engine_of()
    first, second = (decode_static(engine, sentences(5), Sample(samples=2, seed=seed, limits=SHORT)) for seed in (1, 2))
    assert [own[0].tokens for own in first] != [own[0].tokens for own in second]
    assert engine.cache_pool
    assert len(engine.cache_pool.batchers) == 1


def test_another_cache_leaves_the_weights_where_recorded_graphs_read_them() -> None:
    """On a GPU sentences came back without any hypothesis: the first cache's graphs read memory that was given back."""
    engine = engine_of()
    decode_static(engine, sentences(3), Greedy(SHORT))
    before = [parameter.data_ptr() for parameter in engine.model.parameters()]
    decode_static(engine, sentences(30), Beam(3, limits=SHORT))
    assert engine.cache_pool
    assert len(engine.cache_pool.batchers) == 2
    assert [parameter.data_ptr() for parameter in engine.model.parameters()] == before
    with_precision(engine.model, "bf16")
    rounded_ones = TorchEngine(engine.model, SYMBOLS, SYMBOLS, CPU, graphs="on")
    decode_static(rounded_ones, sentences(3), Greedy(SHORT))  # joined anew
    after = [parameter.data_ptr() for parameter in engine.model.parameters()]
    assert not {*after} & {*before}


def test_what_no_cache_can_hold_is_decoded_eagerly() -> None:
    engine, sources = engine_of(), sentences(5)
    including = [DecodingConstraints(include=(((5,),),))] * 5
    covering = Beam(4, coverage=0.1, limits=SHORT)
    for search, constraints in ((covering, ()), (Beam(4, groups=2, limits=SHORT), ()), (Beam(4), including)):
        found = engine.search(sources, search, constraints or [UNCONSTRAINED] * 5, list(range(5)))
        assert found == decode_eagerly(engine, sources, search, constraints)
    learned = engine_of(positions=Learned(20))
    wide = Greedy(Limits(longest=30, longest_extra=30))
    assert wide.limits.lengths([1], [UNCONSTRAINED]) == [30]
    assert learned.cache_pool
    assert learned.cache_pool.search([[5]], wide, [UNCONSTRAINED], [0]) is None  # positions are learned for 20 places
    assert visits(engine) == visits(learned) == 0


def test_models_of_other_kinds_have_no_static_cache() -> None:
    model = Model(d_model=16, decoder=RecurrentDecoder(1)).build(V, V, shared=True)
    engine = TorchEngine(model, SYMBOLS, SYMBOLS, CPU, graphs="on")
    assert engine.cache_pool is None
    assert engine.search([[5, 6]], Greedy(SHORT), [UNCONSTRAINED], [0])


def test_the_pool_keeps_a_bounded_number_of_caches() -> None:
    engine = engine_of()
    assert engine.cache_pool
    engine.cache_pool.places = MOST_PLACES
    for size in range(1, MOST_BATCHERS + 3):
        decode_static(engine, [[5]], Beam(size, limits=SHORT))
    assert len(engine.cache_pool.batchers) == MOST_BATCHERS
    assert min(shape.plan.paths for shape in engine.cache_pool.batchers) == 3  # the last used stay


def test_the_pool_keeps_a_bounded_number_of_places() -> None:
    engine = engine_of()
    assert engine.cache_pool
    engine.cache_pool.places = 64
    for size in range(1, 11):
        decode_static(engine, [[5]], Beam(size, limits=SHORT))
        assert sum(shape.places for shape in engine.cache_pool.batchers) <= ALL * 64
    # The last used stay; 16 places a path.
    assert [shape.plan.paths for shape in engine.cache_pool.batchers] == [8, 9, 10]
    engine.cache_pool.places = 8
    decode_static(engine, [[5]], Beam(11, limits=SHORT))
    assert [shape.plan.paths for shape in engine.cache_pool.batchers] == [11]  # one is kept, however large


def test_fewer_and_shorter_sentences_reuse_a_cache_that_is_there() -> None:
    """Batches of a server are of all sizes, and a cache for each would be recorded again and again."""
    engine, search = engine_of(), Beam(2, n_best=2, limits=SHORT)
    assert engine.cache_pool
    engine.cache_pool.places = MOST_PLACES
    many = sentences(60, longest=9)
    for sources in (many, many[:30], sentences(7, longest=3), many[:4]):
        assert_alike(decode_static(engine, sources, search), decode_eagerly(engine, sources, search))
    (shape,) = engine.cache_pool.batchers
    assert (shape.cache_shape.sentences, visits(engine)) == (64, 4)
    decode_static(engine, many[:1], search)
    decode_static(engine, many[:2], search)
    small = [one.cache_shape.sentences for one in engine.cache_pool.batchers]
    assert small == [64, 1, 2]  # in 64 places of a sentence one or two would be too slow
    assert SPARE < 64 / 2


def test_a_cache_for_other_searches_or_shorter_sentences_will_not_do() -> None:
    engine, short, long = engine_of(), Limits(longest=14), Limits(longest=40, longest_extra=40)
    assert engine.cache_pool
    engine.cache_pool.places = MOST_PLACES
    for number, search in enumerate((Beam(2, limits=short), Beam(3, limits=short), Beam(2, limits=long)), start=1):
        assert_alike(decode_static(engine, sentences(5), search), decode_eagerly(engine, sentences(5), search))
        assert len(engine.cache_pool.batchers) == number
    for constraints in ([DecodingConstraints(prefix=(5,))] * 5, [DecodingConstraints(exclude=((5,),))] * 5):
        decode_static(engine, sentences(5), Beam(2, limits=short), constraints)
    decode_static(engine, [[7] * 30], Beam(2, limits=short))
    assert len(engine.cache_pool.batchers) == 6


def test_without_memory_for_a_cache_the_search_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sources = engine_of(), sentences(5)

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(ContinuousBatcher, "of", full)
    found = engine.search(sources, Greedy(SHORT), [UNCONSTRAINED] * 5, [0] * 5)
    assert_alike(found, decode_eagerly(engine, sources, Greedy(SHORT)))


def test_what_no_cache_can_hold_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    engine, sources = engine_of(), sentences(3)
    for _ in range(2):
        found = engine.search(sources, Beam(4, groups=2, limits=SHORT), [UNCONSTRAINED] * 3, [0] * 3)
        assert len(found) == 3
    told = "graphs: none for this search, or its constraints; decoding eagerly\n"
    assert capsys.readouterr().err == told


def test_many_threads_get_their_own_answers() -> None:
    engine, search = engine_of(), Beam(3, limits=SHORT)
    tasks = [sentences(4, seed) for seed in range(8)]
    expected = [decode_eagerly(engine, sources, search) for sources in tasks]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(3):
            found[number] = engine.search(tasks[number], search, [UNCONSTRAINED] * 4, [0] * 4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert_alike(found[number], expected[number])


def test_caches_are_as_large_as_a_gpu_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 16 * 1000 * 2 * 2 * 16 * 4  # of a sixteenth, 1000 places: 2 layers, keys and values of 16

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    engine = engine_of()
    assert engine.cache_pool
    assert most_places(engine.cache_pool.model, CUDA) == 1000
    assert most_places(engine.cache_pool.model, CPU) == MOST_PLACES
