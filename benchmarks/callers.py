"""Call one native translator from many Python threads: check the answers, and compare the speed with one caller's.

    python benchmarks/callers.py --models base small --callers 8

Random models that write 30 tokens a sentence, as in decoding.py. The same sentences go to the engine from one thread,
one call after another, and from several, each with its share; in alternating rounds, so that load affects both. A call
is one sentence, or a batch of them. The engine has every core either way. Exits with code 1 if a caller got the result
of another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from decoding import FORCED, Job, Setting, Tokens, made_up, translate_native

Call = Callable[[Sequence[Tokens]], list[Tokens]]


@dataclass(frozen=True)
class Raced:
    """Tokens a second of one caller and of several, by round, and whether all results were the same."""

    one: list[float]
    several: list[float]
    right: bool

    @property
    def ratio(self) -> float:
        """Several against one: the median of the rounds."""
        return statistics.median(b / a for a, b in zip(self.one, self.several, strict=True))


def race(call: Call, batches: Sequence[Sequence[Tokens]], callers: int, rounds: int) -> Raced:
    """Time one caller and several in alternating rounds."""

    def timed(work: Callable[[], list[list[Tokens]]]) -> tuple[float, list[list[Tokens]]]:
        begun = time.perf_counter()
        written = work()
        return sum(len(tokens) for batch in written for tokens in batch) / (time.perf_counter() - begun), written

    call(batches[0])
    one, several, right = [], [], True
    with ThreadPoolExecutor(callers) as pool:
        for _ in range(rounds):
            speed, expected = timed(lambda: [call(batch) for batch in batches])
            one.append(speed)
            speed, found = timed(lambda: list(pool.map(call, batches)))
            several.append(speed)
            right &= found == expected
    return Raced(one, several, right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["base", "small"])
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="of the engine")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    right = True
    print("| model, search, call | one caller, tokens/s | callers | their tokens/s | ratio | right |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            contest = made_up(name, Path(folder), options.sentences)
            sources: list[Tokens] = json.loads(contest.sources.read_text())
            for setting in (Setting(1, 1), Setting(4, 1), Setting(1, 8)):
                model = str(contest.models["native"])
                call = translate_native(Job("native", model, "", setting, (1, options.threads), FORCED, 1))
                batches = [sources[i : i + setting.batch] for i in range(0, len(sources), setting.batch)]
                raced = race(call, batches, options.callers, options.rounds)
                right &= raced.right
                print(
                    f"| {name}, {setting.name} | {statistics.median(raced.one):,.0f} | {options.callers}"
                    f" | {statistics.median(raced.several):,.0f} | **{raced.ratio:.2f}** |"
                    f" {'yes' if raced.right else 'NO'} |",
                    flush=True,
                )
    sys.exit(not right)


if __name__ == "__main__":
    main()
