"""The native engine as its callers see it: bit-identical in any batch and from any thread, with clear errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from both_engines import SMALL, Pair, needs_core, opened, search, sources
from model_variants import SYMBOLS, V

from transduce.core.errors import ConfigError, EngineRefusal, RunError
from transduce.engines.native import engine as native
from transduce.engines.native import library
from transduce.engines.native.engine import NativeEngine
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, MaskPredict, MinimumBayesRisk, Sample

pytestmark = needs_core
SEARCHES = [Greedy(), Beam(size=4, n_best=3), Sample(samples=3, top_p=0.9)]


@pytest.fixture(scope="module", params=[False, True], ids=["float", "int8"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return opened(SMALL, tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> NativeEngine:
    return opened(SMALL, tmp_path_factory.mktemp("model")).native


@pytest.mark.parametrize("how", SEARCHES, ids=str)
def test_the_same_bits_alone_and_in_any_batch(pair: Pair, how: Any) -> None:
    texts = sources(150, V, longest=30)
    together = search(pair.native, texts, how)
    for count in (1, 7, 60):
        for begin in range(0, 150, count * 7):
            part = range(begin, min(begin + count, 150))
            found = pair.native.search([texts[i] for i in part], how, [DecodingConstraints()] * len(part), part)
            assert found == [together[i] for i in part]


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_same_bits_with_any_number_of_threads(pair: Pair, threads: int) -> None:
    texts = sources(40, V, longest=30)
    other = NativeEngine(pair.path, SYMBOLS, SYMBOLS, threads)
    for how in SEARCHES:
        assert search(other, texts, how) == search(pair.native, texts, how)
        assert search(other, texts[:2], how) == search(pair.native, texts[:2], how)
    assert other.score(texts, texts) == pair.native.score(texts, texts)


def test_many_callers_at_once_get_their_own_answers(pair: Pair) -> None:
    texts = sources(80, V, longest=20)
    expected = [search(pair.native, texts, how) for how in SEARCHES]
    wrong: list[object] = []

    def call(number: int) -> None:
        try:
            for turn in range(6):
                which = (number + turn) % len(SEARCHES)
                if search(pair.native, texts, SEARCHES[which]) != expected[which]:
                    wrong.append((number, turn))
        except Exception as error:
            wrong.append(error)

    callers = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(8)]
    for caller in callers:
        caller.start()
    end = time.monotonic() + 60
    for caller in callers:
        caller.join(max(0.0, end - time.monotonic()))
    assert not [caller for caller in callers if caller.is_alive()], "a deadlock"
    assert not wrong


def test_a_forked_process_has_threads_of_its_own(pair: Pair) -> None:
    other = NativeEngine(pair.path, SYMBOLS, SYMBOLS, 3)
    texts = sources(30, V)
    expected = search(other, texts, Greedy())  # now the engine has threads
    child = os.fork()
    if child == 0:
        os._exit(search(other, texts, Greedy()) != expected or search(other, texts[:1], Greedy()) != expected[:1])
    assert ended(child)
    assert search(other, texts, Greedy()) == expected


def ended(child: int) -> bool:
    """Whether a forked process ends with code 0, within half a minute."""
    end = time.monotonic() + 30
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.001)
    if found == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return found == (child, 0)


FORKING = """
import os, sys, threading
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from both_engines import search, sources
from model_variants import SYMBOLS, V
from test_native_engine import ended
from transduce.engines.native.engine import NativeEngine
from transduce.search.settings import Greedy

other = NativeEngine(Path(sys.argv[1]), SYMBOLS, SYMBOLS, 2)
texts = sources(2, V)
expected, over = search(other, texts, Greedy()), threading.Event()

def call():
    while not over.is_set():
        search(other, texts, Greedy())

callers = [threading.Thread(target=call, daemon=True) for _ in range(4)]
for caller in callers:
    caller.start()
for number in range(60):
    child = os.fork()
    if child == 0:
        os._exit(search(other, texts, Greedy()) != expected)
    if not ended(child):
        sys.exit(f"child {number}")
over.set()
for caller in callers:
    caller.join()
sys.exit(search(other, texts, Greedy()) != expected)
"""


def test_children_forked_while_other_threads_translate(pair: Pair) -> None:
    """A lock that another thread holds at a fork has no owner in the child: there it must be free all the same.

    In a process of its own: what traces coverage in this one has locks too, which children of it inherit.
    """
    command = [sys.executable, "-c", FORKING, str(pair.path), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_engines_come_and_go(pair: Pair) -> None:
    for _ in range(20):
        other = NativeEngine(pair.path, SYMBOLS, SYMBOLS, 4)
        search(other, sources(3, V), Greedy())
        del other


def test_no_torch_is_imported(pair: Pair) -> None:
    code = f"""
import sys
from pathlib import Path
from transduce.text.vocabulary import Symbols
from transduce.engines.native.engine import NativeEngine
from transduce.search.settings import Beam
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
symbols = Symbols({SYMBOLS.pad}, {SYMBOLS.bos}, {SYMBOLS.eos}, {SYMBOLS.unk}, {SYMBOLS.never})
NativeEngine(Path({str(pair.path)!r}), symbols, symbols).search([[5, 6]], Beam(), [DecodingConstraints()], [0])
sys.exit('torch' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def refusal(
    engine: NativeEngine, how: Any, constraints: DecodingConstraints = UNCONSTRAINED, text: tuple[int, ...] = (5,)
) -> str:
    with pytest.raises((EngineRefusal, ConfigError, ValueError)) as caught:
        engine.search([text], how, [constraints], [0])
    return str(caught.value)


def test_a_limit_that_it_does_not_know_is_refused(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "KNOWN_LIMITS", ("longest", "shortest"))
    engine.search([(5,)], Greedy(Limits(longest=9, shortest=2)), [UNCONSTRAINED], [0])
    text = "native engine: it has no limits.no_repeat; use engine=torch"
    assert refusal(engine, Beam(limits=Limits(no_repeat=2))) == text


def test_what_it_does_not_have_is_refused_by_name(engine: NativeEngine) -> None:
    assert refusal(engine, MaskPredict()) == "native engine: it has no search 'MaskPredict'; use engine=torch"
    assert "its beam search has no 'groups'" in refusal(engine, Beam(size=4, groups=2))
    assert "its beam search has no 'coverage'" in refusal(engine, Beam(coverage=0.2))
    many = DecodingConstraints(include=tuple(((4 + i % 9, 4 + i // 9),) for i in range(65)))
    assert "it includes 64 words at most, not 65" in refusal(engine, Beam(), many)
    assert "include: words that must appear need a beam search" in refusal(
        engine, Greedy(), DecodingConstraints(include=(((4,),),))
    )
    assert "a source may have up to 2051 tokens, and this model's positions end at 2048" in refusal(
        engine, Greedy(), text=(4,) * 2050
    )
    assert "a translation may have up to 4000 tokens" in refusal(
        engine, Greedy(Limits(longest=4000, shortest=3999, longest_extra=4000))
    )


def test_tokens_outside_the_vocabulary_are_refused(engine: NativeEngine) -> None:
    assert "forbid: expected token numbers below the vocabulary's size (13), got 13" in refusal(
        engine, Greedy(Limits(forbid=(13,)))
    )
    for name, constraints in (
        ("prefix", DecodingConstraints(prefix=(13,))),
        ("exclude", DecodingConstraints(exclude=((4, 13),))),
        ("include", DecodingConstraints(include=(((13,),),))),
    ):
        assert f"{name}: expected tokens below the vocabulary's size (13), got 13" in refusal(
            engine, Beam(), constraints
        )
    assert "source: a token outside the vocabulary" in refusal(engine, Greedy(), text=(99,))
    with pytest.raises(ConfigError, match="layer: expected a decoder layer from 0 to 1 or back from -1, got 2"):
        engine.attend([[4]], [[4]], 2)
    with pytest.raises(ValueError, match="keys: expected one a sentence, 1 in all, got 2"):
        engine.search([[4]], Greedy(), [DecodingConstraints()], [1, 2])


def test_tokenizers_of_other_sizes_are_refused(engine: NativeEngine) -> None:
    engine.check_sizes(V, V)
    with pytest.raises(RunError, match=r"model.native: its weights have 13 source pieces, and the source tokenizer"):
        engine.check_sizes(V + 1, V)
    with pytest.raises(RunError, match=r"13 target pieces, and the target tokenizer beside them has 12; convert"):
        engine.check_sizes(V, V - 1)


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer dies where memory ends")
def test_a_shortage_of_memory_is_reported_with_what_to_lower(pair: Pair) -> None:
    """For real: a process that may have no more memory than it has, and a search that needs more."""
    code = f"""
import resource, sys
from pathlib import Path
from transduce.text.vocabulary import Symbols
from transduce.engines.native.engine import NativeEngine
from transduce.core.errors import RunError
from transduce.search.settings import Limits
from transduce.search.settings import Sample
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
symbols = Symbols({SYMBOLS.pad}, {SYMBOLS.bos}, {SYMBOLS.eos}, {SYMBOLS.unk}, {SYMBOLS.never})
engine = NativeEngine(Path({str(pair.path)!r}), symbols, symbols, 1)
text = [4] * 1000
engine.search([text], Sample(), [DecodingConstraints()], [0])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
try:
    engine.search([text] * 3, Sample(samples=4096, limits=Limits(shortest=500)), [DecodingConstraints()] * 3, [0] * 3)
except RunError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "out of memory with 3 texts at once, the longest of 1,001 tokens, 4,096 hypotheses for each" in done.stderr
    assert "give the translator fewer batch_tokens, or shorter texts" in done.stderr


def test_a_model_for_which_there_is_no_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise MemoryError("does not fit into memory")

    monkeypatch.setattr(library, "Core", full)
    with pytest.raises(RunError, match=r"out of memory while opening .*: free memory, or use a smaller model"):
        NativeEngine(pair.path, SYMBOLS, SYMBOLS)


def test_minimum_bayes_risk_takes_its_candidates_from_here(engine: NativeEngine) -> None:
    candidates = Beam(size=4, n_best=4)
    found = search(engine, [[5, 6]], MinimumBayesRisk(candidates))
    assert found == search(engine, [[5, 6]], candidates)


def test_nothing_to_do_is_nothing_done(engine: NativeEngine) -> None:
    assert engine.search([], Greedy(), [], []) == []
    assert engine.score([], []) == []
    assert engine.attend([], [], None) == []


def test_a_package_built_without_compiler_says_so(
    monkeypatch: pytest.MonkeyPatch, engine: NativeEngine, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "built", lambda: None)
    library.library.cache_clear()
    with pytest.raises(EngineRefusal, match=r"its C\+\+ core was not built when this package was installed"):
        NativeEngine(tmp_path / "model.native", SYMBOLS, SYMBOLS)
    library.library.cache_clear()
