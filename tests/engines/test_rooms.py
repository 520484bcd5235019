"""Searches in rooms find what the plain ones find: ragged ends, slots taken over, limits, prefixes, threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import pytest
import torch

from transduce.data.symbols import Symbols
from transduce.engines import slots as slots_module
from transduce.engines.graphs import Recorder
from transduce.engines.rooms import ALL, MOST_PLACES, MOST_ROOMS, SPARE, most_places
from transduce.engines.slots import UNFINISHED, Job, Report, Run, Shape, Slots, crowd, jobs_of, reached, rounded
from transduce.engines.torch_engine import TorchEngine, with_precision
from transduce.model import stepping
from transduce.model.attention import Attention
from transduce.model.contract import Room
from transduce.model.positions import Learned, Positions, Rotary, Sinusoidal
from transduce.model.recurrent import RecurrentDecoder
from transduce.model.seq2seq import Model
from transduce.model.sublayers import PreNorm
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search import fixed
from transduce.search.ensemble import Ensemble
from transduce.search.fixed import Plan
from transduce.search.hypothesis import Hypothesis
from transduce.search.limits import Limits
from transduce.search.minimum_bayes_risk import MinimumBayesRisk, Samples
from transduce.search.settings import Beam, Greedy, Sample
from transduce.search.wishes import NOTHING, Stop, Wishes

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
CPU = torch.device("cpu")
CUDA = torch.device("cuda")
V = 90
SHORT = Limits(longest=14, longest_extra=6)
VARIED = Limits(longest=14, no_repeat=1)  # else random models fall into loops and do not end


def engine_of(device: torch.device = CPU, **parts: Any) -> TorchEngine:
    """A random model whose sentences end at all lengths, in rooms too small for a test's sentences."""
    torch.manual_seed(5)
    shared = {"layers": 2, "attention": Attention(2), "d_ff": 24, **parts}
    config = Model(16, 0.1, "none", TransformerEncoder(**shared), TransformerDecoder(**shared))
    model = config.build(V, V, shared=True).to(device).eval()
    with torch.no_grad():
        model.output_embedding.weight.mul_(2)[SYMBOLS.eos] *= 1.5
    engine = TorchEngine(model, SYMBOLS, SYMBOLS, device, graphs="on")
    assert engine.rooms
    engine.rooms.places = 300
    return engine


def sentences(count: int, seed: int = 3, longest: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest, (count,), generator=generator).tolist()
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]


def plainly(engine: TorchEngine, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes] = ()) -> Any:
    plain = TorchEngine(engine.model, SYMBOLS, SYMBOLS, engine.device)
    return plain.search(sources, search, wishes or [NOTHING] * len(sources), list(range(len(sources))))


def assert_alike(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    assert [[h.tokens for h in own] for own in found] == [[h.tokens for h in own] for own in expected]
    for own, others in zip(found, expected, strict=True):
        for one, other in zip(own, others, strict=True):
            assert one.finished == other.finished
            assert one.score == pytest.approx(other.score, abs=1e-4, rel=1e-5)
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


def visits(engine: TorchEngine) -> int:
    assert engine.rooms
    return sum(slots.visits for slots in engine.rooms.rooms.values())


def in_room(
    engine: TorchEngine, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes] = ()
) -> list[list[Hypothesis]]:
    """Found in a room, and nowhere else."""
    assert engine.rooms
    with torch.inference_mode():
        found = engine.rooms.search(sources, search, wishes or [NOTHING] * len(sources), list(range(len(sources))))
    assert found is not None
    return found


SEARCHES = [
    Greedy(SHORT),
    Greedy(VARIED),
    Greedy(Limits(longest=14, shortest=4, no_repeat=2, forbid=(9, 10))),
    Sample(limits=SHORT, samples=3, seed=5),
    Sample(0.7, 8, 0.9, 2, limits=Limits(longest=14, shortest=2, no_repeat=2)),
    MinimumBayesRisk(Samples(samples=4, temperature=2.0, seed=2, limits=SHORT)),
    Beam(1, limits=SHORT),
    Beam(4, limits=VARIED),
    Beam(3, n_best=3, length_penalty=0.0, limits=SHORT),
    Beam(4, n_best=4, length_penalty=-1.5, limits=Limits(longest=11, no_repeat=1)),
    Beam(5, n_best=2, length_penalty=2.0, limits=Limits(longest=9, shortest=3, no_repeat=3)),
    Beam(2, n_best=2, limits=Limits(longest=1)),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("wished", [False, True])
def test_rooms_find_what_is_found_without(search: Any, wished: bool) -> None:
    engine, sources = engine_of(), sentences(30)
    prefixes = [(), (5,), (1, 6, 7), tuple(range(20, 37))]  # 1 is never written unless it is asked for
    wishes = [Wishes(prefix=prefixes[i % 4]) if wished else NOTHING for i in range(30)]
    found = in_room(engine, sources, search, wishes)
    assert_alike(found, plainly(engine, sources, search, wishes))
    (slots,) = engine.rooms.rooms.values()  # type: ignore[union-attr]
    assert slots.shape.room.sentences < 30


@pytest.mark.parametrize("search", [Greedy(VARIED), Greedy(SHORT), Beam(4, n_best=3, limits=SHORT)], ids=str)
def test_phrases_to_exclude(search: Any) -> None:
    """Those that come up most, of one token, two and three; some sentences have none, and one may write nothing."""
    engine, sources = engine_of(), sentences(30)
    written = [hypotheses[0].tokens for hypotheses in in_room(engine, sources, search)]
    pairs = tuple(tokens[:2] for tokens in written if len(tokens) >= 2)
    triples = tuple(tokens[1:4] for tokens in written if len(tokens) >= 4)
    every = tuple((token,) for token in range(V))
    kinds = [(), pairs[:3], triples, (*pairs[3:], pairs[0][:1]), every]
    wishes = [Wishes(prefix=pairs[0][:1] if i % 3 else (), exclude=kinds[i % 5]) for i in range(30)]
    found = in_room(engine, sources, search, wishes)
    assert_alike(found, plainly(engine, sources, search, wishes))
    assert [own[0].tokens for own in found] != written


def test_a_seed_is_no_reason_for_another_room() -> None:
    engine = engine_of()
    first, second = (in_room(engine, sentences(5), Sample(samples=2, seed=seed, limits=SHORT)) for seed in (1, 2))
    assert [own[0].tokens for own in first] != [own[0].tokens for own in second]
    assert engine.rooms
    assert len(engine.rooms.rooms) == 1


def test_members_of_an_ensemble_have_their_places_in_one_room() -> None:
    models = [engine_of(positions=positions).model for positions in (Sinusoidal(), Rotary())]
    engine = TorchEngine(Ensemble(models, (2.0, 1.0)).eval(), SYMBOLS, SYMBOLS, CPU, graphs="on")
    assert engine.rooms
    engine.rooms.places = 300
    for search in (Greedy(VARIED), Beam(3, n_best=2, limits=SHORT)):
        assert_alike(in_room(engine, sentences(20), search), plainly(engine, sentences(20), search))
    other = Model(d_model=16, decoder=RecurrentDecoder(1)).build(V, V, shared=True)
    assert Ensemble([*models, other]).holding() is None
    assert Ensemble([engine_of(positions=Learned(9)).model, models[0]]).reserve(Room(1, 1, 4, 10)) is None


def test_sentences_end_at_many_places_by_themselves_and_at_limits() -> None:
    """So that the tests above see all of it."""
    engine = engine_of()
    for search in (Greedy(VARIED), Beam(4, n_best=4, limits=VARIED)):
        found = [hypothesis for own in in_room(engine, sentences(30), search) for hypothesis in own]
        assert len({len(one.tokens) for one in found if one.finished}) >= 4
        assert any(not one.finished for one in found)


@pytest.mark.parametrize("positions", [Sinusoidal(), Learned(64), Rotary()], ids=str)
def test_long_and_short_in_one_room(positions: Any) -> None:
    """Memory is looked at farther as paths grow: past 32 places."""
    engine = engine_of(positions=positions, residual=PreNorm())
    sources = [*sentences(6, longest=40), *sentences(6, seed=4, longest=3)]
    limits = Limits(longest=50, longest_extra=40)
    for search in (Greedy(limits), Beam(2, limits=limits)):
        assert_alike(in_room(engine, sources, search), plainly(engine, sources, search))


def test_a_room_is_used_again_with_nothing_left_of_those_before() -> None:
    engine, search = engine_of(), Beam(3, n_best=2, limits=SHORT)
    for seed in range(4):
        sources = sentences(7, seed)
        assert_alike(in_room(engine, sources, search), plainly(engine, sources, search))
    assert engine.rooms
    assert len(engine.rooms.rooms) == 1


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_few_at_a_time_come_in_and_are_read_while_the_host_is_ahead_as_of_a_gpu(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "AT_ONCE", 2)
    monkeypatch.setattr(slots_module, "LUMP", 2)
    engine, sources = engine_of(), sentences(30)
    in_room(engine, sources[:9], search)  # makes the room
    (slots,) = engine.rooms.rooms.values()  # type: ignore[union-attr]
    shapes, read, taking, reading = [], [], slots.take_in, Run.read
    slots.ahead = 1
    monkeypatch.setattr(slots, "take_in", lambda jobs, taken: shapes.append(len(jobs)) or taking(jobs, taken))
    monkeypatch.setattr(Run, "read", lambda run: read.append(len(run.inside)) or reading(run))
    with torch.inference_mode():
        found = slots.run(
            jobs_of(sources, slots.shape.plan, [NOTHING] * 30, slots.shape.plan.streams(search, range(30)))
        )
    assert_alike(found, plainly(engine, sources, search))
    assert max(shapes) == 2
    assert sum(shapes) == 30
    assert max(read) > 0 or search.limits.longest == 1  # read while others were inside


def test_sentences_at_their_limit_leave_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look waits for the device."""
    limits = Limits(longest=9, shortest=8)
    engine, sources, looks, done = engine_of(), sentences(8, longest=5), [], Report.done
    monkeypatch.setattr(Report, "done", lambda report: looks.append(report) or done(report))
    found = in_room(engine, sources, Greedy(limits))
    assert_alike(found, plainly(engine, sources, Greedy(limits)))
    assert {len(own[0].token_log_probs) for own in found} == {9}
    assert len(looks) == 8


def test_another_room_leaves_the_weights_where_recorded_work_reads_them() -> None:
    """On a GPU sentences came back without any hypothesis: the first room's graphs read memory that was given back."""
    engine = engine_of()
    in_room(engine, sentences(3), Greedy(SHORT))
    before = [parameter.data_ptr() for parameter in engine.model.parameters()]
    in_room(engine, sentences(30), Beam(3, limits=SHORT))
    assert engine.rooms
    assert len(engine.rooms.rooms) == 2
    assert [parameter.data_ptr() for parameter in engine.model.parameters()] == before
    with_precision(engine.model, "bf16")
    rounded_ones = TorchEngine(engine.model, SYMBOLS, SYMBOLS, CPU, graphs="on")
    in_room(rounded_ones, sentences(3), Greedy(SHORT))  # joined anew
    after = [parameter.data_ptr() for parameter in engine.model.parameters()]
    assert not {*after} & {*before}


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter")
@pytest.mark.parametrize("search", [Greedy(SHORT), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_kernels_for_a_gpu_find_what_is_found_without(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sources = engine_of(attention=Attention(1)), sentences(5)
    expected = plainly(engine, sources, search)
    for user in ("norms", "transformer", "linear", "whole", "positions"):
        monkeypatch.setattr(f"transduce.model.{user}.kernels_for", lambda x: stepping.decoding_on_gpu)
    monkeypatch.setattr(fixed, "kernels_for", lambda logits, plan: fixed.choice_on_gpu)
    assert_alike(in_room(engine, sources, search), expected)


def test_what_no_room_can_do_is_done_without() -> None:
    engine, sources = engine_of(), sentences(5)
    including = [Wishes(include=(((5,),),))] * 5
    covering = Beam(4, coverage=0.1, limits=SHORT)
    for search, wishes in ((covering, ()), (Beam(4, groups=2, limits=SHORT), ()), (Beam(4), including)):
        found = engine.search(sources, search, wishes or [NOTHING] * 5, list(range(5)))
        assert found == plainly(engine, sources, search, wishes)
    learned = engine_of(positions=Learned(20))
    wide = Greedy(Limits(longest=30, longest_extra=30))
    assert wide.limits.lengths([1], [NOTHING]) == [30]
    assert learned.rooms
    assert learned.rooms.search([[5]], wide, [NOTHING], [0]) is None  # positions are learned for 20 places
    assert visits(engine) == visits(learned) == 0


def test_models_of_other_kinds_have_no_rooms() -> None:
    model = Model(d_model=16, decoder=RecurrentDecoder(1)).build(V, V, shared=True)
    engine = TorchEngine(model, SYMBOLS, SYMBOLS, CPU, graphs="on")
    assert engine.rooms is None
    assert engine.search([[5, 6]], Greedy(SHORT), [NOTHING], [0])


def test_no_more_rooms_are_kept_than_there_should_be() -> None:
    engine = engine_of()
    assert engine.rooms
    engine.rooms.places = MOST_PLACES
    for size in range(1, MOST_ROOMS + 3):
        in_room(engine, [[5]], Beam(size, limits=SHORT))
    assert len(engine.rooms.rooms) == MOST_ROOMS
    assert min(shape.plan.paths for shape in engine.rooms.rooms) == 3  # the last used stay


def test_no_more_places_are_kept_than_there_should_be() -> None:
    engine = engine_of()
    assert engine.rooms
    engine.rooms.places = 64
    for size in range(1, 11):
        in_room(engine, [[5]], Beam(size, limits=SHORT))
        assert sum(shape.places for shape in engine.rooms.rooms) <= ALL * 64
    assert [shape.plan.paths for shape in engine.rooms.rooms] == [8, 9, 10]  # the last used stay; 16 places a path
    engine.rooms.places = 8
    in_room(engine, [[5]], Beam(11, limits=SHORT))
    assert [shape.plan.paths for shape in engine.rooms.rooms] == [11]  # one is kept, however large


def test_fewer_and_shorter_sentences_are_searched_in_a_room_that_is_there() -> None:
    """Batches of a server are of all sizes, and a room for each would be recorded again and again."""
    engine, search = engine_of(), Beam(2, n_best=2, limits=SHORT)
    assert engine.rooms
    engine.rooms.places = MOST_PLACES
    many = sentences(60, longest=9)
    for sources in (many, many[:30], sentences(7, longest=3), many[:4]):
        assert_alike(in_room(engine, sources, search), plainly(engine, sources, search))
    (shape,) = engine.rooms.rooms
    assert (shape.room.sentences, visits(engine)) == (64, 4)
    in_room(engine, many[:1], search)
    in_room(engine, many[:2], search)
    small = [one.room.sentences for one in engine.rooms.rooms]
    assert small == [64, 1, 2]  # in 64 places of a sentence one or two would be too slow
    assert SPARE < 64 / 2


def test_a_room_for_other_searches_or_shorter_sentences_will_not_do() -> None:
    engine, short, long = engine_of(), Limits(longest=14), Limits(longest=40, longest_extra=40)
    assert engine.rooms
    engine.rooms.places = MOST_PLACES
    for number, search in enumerate((Beam(2, limits=short), Beam(3, limits=short), Beam(2, limits=long)), start=1):
        assert_alike(in_room(engine, sentences(5), search), plainly(engine, sentences(5), search))
        assert len(engine.rooms.rooms) == number
    for wishes in ([Wishes(prefix=(5,))] * 5, [Wishes(exclude=((5,),))] * 5):
        in_room(engine, sentences(5), Beam(2, limits=short), wishes)
    in_room(engine, [[7] * 30], Beam(2, limits=short))
    assert len(engine.rooms.rooms) == 6


def test_without_memory_for_a_room_the_search_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sources = engine_of(), sentences(5)

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Slots, "of", full)
    found = engine.search(sources, Greedy(SHORT), [NOTHING] * 5, [0] * 5)
    assert_alike(found, plainly(engine, sources, Greedy(SHORT)))


@pytest.mark.parametrize("search", [Greedy(VARIED), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_sentences_that_nobody_waits_for_leave_and_the_others_stay(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sources, stop = engine_of(), sentences(30), Stop()
    wishes = [Wishes(stop=stop) if i % 3 == 0 else NOTHING for i in range(30)]
    expected, steps, advance = plainly(engine, sources, search), 0, Slots.advance

    def advanced(slots: Slots, written: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:  # some are inside by now, others wait
            stop.ask()
        advance(slots, written)

    monkeypatch.setattr(Slots, "advance", advanced)
    found = in_room(engine, sources, search, wishes)
    assert_alike([found[i] for i in range(30) if i % 3], [expected[i] for i in range(30) if i % 3])
    left = [own for i, own in enumerate(found) if i % 3 == 0 and not own[0].finished]
    assert len(left) > 5  # but for those that ended before
    everyone = [Wishes(stop=stop)] * 30
    steps = 2
    assert all(own == [UNFINISHED] for own in in_room(engine, sources, search, everyone))
    assert steps == 2


def test_what_no_room_can_do_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    engine, sources = engine_of(), sentences(3)
    for _ in range(2):
        found = engine.search(sources, Beam(4, groups=2, limits=SHORT), [NOTHING] * 3, [0] * 3)
        assert len(found) == 3
    told = "graphs: there are none for this search, or what is wished of it; searching as it is written\n"
    assert capsys.readouterr().err == told


def test_many_threads_get_their_own_answers() -> None:
    engine, search = engine_of(), Beam(3, limits=SHORT)
    tasks = [sentences(4, seed) for seed in range(8)]
    expected = [plainly(engine, sources, search) for sources in tasks]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(3):
            found[number] = engine.search(tasks[number], search, [NOTHING] * 4, [0] * 4)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert_alike(found[number], expected[number])


@pytest.mark.parametrize("positions", [kind() for kind in get_args(Positions)], ids=str)
@pytest.mark.parametrize("search", [Greedy(VARIED), Sample(), Beam(4, n_best=2, limits=Limits(shortest=3))], ids=str)
def test_nothing_in_a_step_waits_for_a_number(positions: Any, search: Any) -> None:
    """On the meta device there are no numbers: whoever reads one, or mixes devices, fails. A graph cannot either."""
    shared: Any = {"layers": 1, "attention": Attention(2), "d_ff": 24, "positions": positions}
    with torch.device("meta"):
        config = Model(16, 0.1, encoder=TransformerEncoder(**shared), decoder=TransformerDecoder(**shared))
        model = config.build(V, V, shared=True).eval()
    wishes = [Wishes(prefix=(5,), exclude=((6, 7),))] * 3
    plan = Plan.of(search, wishes, SYMBOLS, V)
    holding = model.holding()
    assert plan
    assert holding
    jobs = jobs_of(sentences(3), plan, wishes, plan.streams(search, range(3)))
    with torch.inference_mode():
        slots = Slots.of(holding, SYMBOLS, Shape.of(jobs, plan, 1000), torch.device("meta"), compiled=False)
        assert slots
        slots.take_in(jobs, [0, 1, 2])
        slots.advance(0)
    with pytest.raises(RuntimeError):
        slots.stepper.board.place[0].item()


@pytest.mark.slow
@pytest.mark.parametrize("search", [Greedy(SHORT), Beam(3, n_best=2, limits=SHORT)], ids=str)
def test_a_step_is_one_program_for_the_compiler(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole, without a break, for every room; run as traced, since making code takes a minute."""
    whole = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", whole)
    engine = engine_of()
    assert engine.rooms
    engine.rooms.compiled = True
    for count in (2, 9):
        sources = sentences(count)
        assert_alike(in_room(engine, sources, search), plainly(engine, sources, search))
    assert len(engine.rooms.rooms) == 2


def test_sizes_are_few() -> None:
    assert [rounded(length) for length in (1, 16, 17, 33, 65, 129, 500, 513, 769)] == [
        16, 16, 32, 48, 96, 192, 512, 768, 1024,
    ]  # fmt: skip
    assert [crowd(count) for count in (1, 2, 3, 5, 9, 16, 17, 40, 100)] == [1, 2, 4, 8, 16, 16, 32, 48, 128]
    assert [reached(length) for length in (1, 32, 33, 64, 65, 500)] == [32, 32, 64, 64, 128, 512]
    assert len({(rounded(a), crowd(b)) for a in range(1, 513) for b in range(1, 513)}) < 150


def test_a_room_holds_as_many_sentences_as_fit() -> None:
    plan = Plan.of(Beam(4, limits=Limits(longest=30)), [NOTHING], SYMBOLS, V)
    assert plan
    jobs = jobs_of(sentences(100), plan, [NOTHING] * 100, [[0] * 4] * 100)
    assert [len(job.source) for job in jobs] == sorted((len(job.source) for job in jobs), reverse=True)
    assert Shape.of(jobs, plan, 4 * 32 * 1000).room == Room(128, 4, 16, 32)
    assert Shape.of(jobs, plan, 4 * 32 * 70).room == Room(64, 4, 16, 32)
    assert Shape.of(jobs, plan, 1).room == Room(1, 4, 16, 32)


def test_lists_too_long_for_a_room_share_one_whatever_their_size() -> None:
    plan = Plan.of(Beam(4, limits=Limits(longest_ratio=0, longest_extra=30)), [], SYMBOLS, V)
    assert plan
    shapes = set()
    for count in (300, 437, 901, 5000):
        sources = [[7] * 9] * count
        shapes.add(Shape.of(jobs_of(sources, plan, [NOTHING] * count, [[0] * 4] * count), plan, 4 * 32 * 290))
    assert [shape.room for shape in shapes] == [Room(256, 4, 16, 32)]


def test_who_waits_is_asked_only_where_somebody_may_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Job, "wanted", property(lambda job: asked.append(job.number) or True))
    engine, sources = engine_of(), sentences(40)
    in_room(engine, sources, Greedy(SHORT))
    assert not asked
    in_room(engine, sources, Greedy(SHORT), [Wishes(stop=Stop() if number == 7 else None) for number in range(40)])
    assert set(asked) == set(range(40))


def test_work_on_a_cpu_is_never_recorded() -> None:
    recorder, done = Recorder(CPU), []
    recorder.recording = True
    for number in range(3):
        recorder.run("work", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0, 1, 2]
    assert not recorder.graphs


class Unrecordable:
    """What torch.cuda.graph raises on entering, as if the work could not be recorded."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *parts: object, **options: object) -> Unrecordable:
        return self

    def __enter__(self) -> None:
        raise self.error

    def __exit__(self, *error: object) -> None: ...


def test_what_cannot_be_recorded_is_done_as_written_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, done = Recorder(CPU), []
    recorder.able = recorder.recording = True
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Unrecordable(RuntimeError("a wait in it\nand more")))
    recorder.run("work", lambda: done.append(1))
    with pytest.warns(match=r"graphs: this model's steps cannot be recorded \(a wait in it\); going on without"):
        recorder.run("work", lambda: done.append(2))
    recorder.run("work", lambda: done.append(3))
    assert done == [1, 2, 3]
    recorder.able = True
    monkeypatch.setattr(torch.cuda, "graph", Unrecordable(torch.OutOfMemoryError("full")))
    with pytest.raises(torch.OutOfMemoryError):
        recorder.run("work", lambda: done.append(4))


def test_rooms_are_as_large_as_a_gpu_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 16 * 1000 * 2 * 2 * 16 * 4  # of a sixteenth, 1000 places: 2 layers, keys and values of 16

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    engine = engine_of()
    assert engine.rooms
    assert most_places(engine.rooms.model, CUDA) == 1000
    assert most_places(engine.rooms.model, CPU) == MOST_PLACES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("heads", [1, 2])  # 16 and 8 wide: with kernels of ours for attention, and with torch's
def test_graphs_find_what_is_found_without(search: Any, heads: int) -> None:
    engine = engine_of(CUDA, attention=Attention(heads))
    for seed in range(4):  # as it is written, then recorded, then replayed
        sources = sentences(30, seed)
        wishes = [Wishes(prefix=(5, 6)) if i % 3 == 0 else NOTHING for i in range(30)]
        assert_alike(in_room(engine, sources, search, wishes), plainly(engine, sources, search, wishes))
    assert engine.rooms
    assert any(slots.recorder.graphs for slots in engine.rooms.rooms.values())
