"""Decoding is cancelled from another thread, and a cancelled translation is not finished.

That the other sentences of a batch stay is a law of every driver: search/test_decoding_laws.py.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from both_engines import SMALL, needs_core, opened

from transduce.core.errors import DataError
from transduce.search import Hypothesis
from transduce.search.constraints import CancelToken, DecodingConstraints
from transduce.search.settings import Beam, Limits


def find(engine: Any, texts: list[list[int]], search: Any, stops: list[CancelToken]) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = engine.search(
        texts, search, [DecodingConstraints(cancel_token=stop) for stop in stops], range(len(texts))
    )
    return found


@needs_core
def test_another_thread_stops_a_search_under_way(tmp_path: Path) -> None:
    torch.manual_seed(0)
    engine = opened(SMALL, tmp_path).native
    forever = Beam(64, limits=Limits(longest=2048, shortest=2047))
    stop, seen = CancelToken(), []
    worker = threading.Thread(target=lambda: seen.append(find(engine, [[5, 6, 7]] * 9, forever, [stop] * 9)))
    worker.start()
    clock = time.pthread_getcpuclockid(worker.ident or 0)
    while time.clock_gettime(clock) < 0.1:  # of its own processor time: opening a call takes far less
        assert worker.is_alive(), "the search ended by itself"
        time.sleep(0.001)
    assert not seen
    stop.cancel()
    worker.join()
    assert seen == [[[]] * 9]


def test_a_translation_that_was_stopped_is_not_finished(toy: Any) -> None:
    stop = CancelToken()
    stop.cancel()
    first, second = toy.translator.translate(["five", "six"], to="de", cancel_tokens=[stop, CancelToken()])
    assert not first.finished
    assert second.text == toy.translator("six", to="de")
    with pytest.raises(DataError, match="cancel_tokens: 1 were given for at least 2 texts"):
        toy.translator.translate(["five", "six"], to="de", cancel_tokens=[stop])
