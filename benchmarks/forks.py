"""Test that children forked while other threads translate can translate, with correct results.

    python benchmarks/forks.py --children 200 --threads 4 [FOLDER]

Without a folder the shipped model is used. A child that has not ended after --patience seconds counts as hanging and
is killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import transduce
from transduce.text.languages import Detector
from transduce.translate.translator import Translator

TEXTS = ("Good morning!", "The train leaves at nine.", "one two three", "Where is the station?")


@dataclass
class Forks:
    """Results of the children."""

    children: int = 0
    right: int = 0
    wrong: int = 0
    hanging: int = 0
    seconds: list[float] = field(default_factory=list)


def translate(translator: Translator, detector: Detector, texts: Sequence[str]) -> list[str]:
    """The work of each child: detect a language and translate the texts."""
    detector.detect(texts[0])
    return list(translator(list(texts), beam=2))


def fork_under_load(
    translator: Translator, children: int, threads: int, patience: float, texts: Sequence[str]
) -> Forks:
    """Fork so many children, one after the other at random moments, while threads translate."""
    detector, found, over, draw = Detector(("de", "en", "fr")), Forks(), threading.Event(), random.Random(1)
    expected = translate(translator, detector, texts)

    def call() -> None:
        while not over.is_set():
            translate(translator, detector, texts[:1])

    callers = [threading.Thread(target=call, daemon=True) for _ in range(threads)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(children):
            time.sleep(draw.uniform(0, 0.02))
            began, child = time.monotonic(), os.fork()
            if child == 0:
                os._exit(translate(translator, detector, texts) != expected)
            code = ended(child, patience)
            found.children += 1
            found.seconds.append(time.monotonic() - began)
            found.right += code == 0
            found.hanging += code is None
            found.wrong += code not in (0, None)
    finally:
        over.set()
        for caller in callers:
            caller.join()
    return found


def ended(child: int, patience: float) -> int | None:
    """The exit code of a child, or None if it had to be killed."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--children", type=int, default=200)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--engine", default="native")
    given = parser.parse_args()
    translator = transduce.load(given.folder, engine=given.engine, device="cpu")
    found = fork_under_load(translator, given.children, given.threads, given.patience, TEXTS)
    slowest = max(found.seconds, default=0.0)
    print(
        f"{found.right} of {found.children} children translated correctly, {found.wrong} wrongly, {found.hanging} hung;"
        f" the slowest took {slowest:.1f} s ({given.threads} threads translating meanwhile)"
    )
    sys.exit(found.right != found.children)


if __name__ == "__main__":
    main()
