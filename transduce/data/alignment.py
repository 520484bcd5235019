"""Where two files stop being translations of each other, judged by the lengths of their lines alone.

The lengths of a sentence and of its translation go together, so the log ratio of the two varies little. Once a line is
missing on one side, the ratio compares strangers and varies more. The place is the split of the series into two parts,
each normally distributed with its own spread, that makes the ratios most likely.
"""

from __future__ import annotations

from array import array
from itertools import islice, zip_longest

import numpy as np
import numpy.typing as npt

from transduce.data.lines import read_lines

LINES_JUDGED = 1_000_000  # keeps the memory of the estimate near 100 MB
FEWEST_LINES = 20  # on each side of the place; fewer ratios show no spread
CLEARLY_LIKELIER = 12.0  # nats by which two spreads must beat one
CLEARLY_WIDER = 1.5  # times as much variance after the place as before it
CLEARLY_RELATED = 0.3  # correlation of the log lengths of lines that match


def describe_mismatch(source_file: str, target_file: str) -> str:
    """The message for two files of different line counts, with the place where they part if that can be told."""
    lengths = array("i"), array("i")
    counts = [0, 0]
    for lines in islice(zip_longest(read_lines(source_file), read_lines(target_file)), LINES_JUDGED):
        for side, line in enumerate(lines):
            if line is not None:
                counts[side] += 1
                lengths[side].append(len(line))
    if max(counts) == LINES_JUDGED:  # count on, without keeping lengths
        counts = [sum(1 for _ in read_lines(path)) for path in (source_file, target_file)]
    both = min(len(lengths[0]), len(lengths[1]))
    sides = np.array(lengths[0][:both], np.float64), np.array(lengths[1][:both], np.float64)
    place = place_of_parting(*sides)
    shorter = source_file if counts[0] < counts[1] else target_file
    if place is None and both == LINES_JUDGED and _related(*sides):
        where = f"Judged by line lengths, the first {both:,} lines do match; no more were looked at"
    elif place is not None:
        where = (
            f"Judged by line lengths, the sides stop matching at about line {place}: look for a missing or extra line"
        )
    elif _related(*sides):
        where = f"Judged by line lengths, all the lines both have do match: the end of {shorter} seems to be missing"
    else:
        where = "Where they stop matching cannot be told from the line lengths"
    return (
        f"{source_file} has {counts[0]:,} lines but {target_file} has {counts[1]:,}: line-aligned files need as many "
        f"on each side. {where}."
    )


def place_of_parting(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches, or None if that cannot be told."""
    count = len(source)
    if count < 2 * FEWEST_LINES:
        return None
    ratios = np.log1p(source) - np.log1p(target)
    before = np.arange(1, count)  # how many lines the first part has
    total, squares = np.cumsum(ratios), np.cumsum(ratios**2)
    tiny = 1e-4  # a spread of exactly zero (copied text) has no logarithm
    first = squares[:-1] / before - (total[:-1] / before) ** 2 + tiny
    after = count - before
    second = (squares[-1] - squares[:-1]) / after - ((total[-1] - total[:-1]) / after) ** 2 + tiny
    gain = 0.5 * (count * np.log(ratios.var() + tiny) - before * np.log(first) - after * np.log(second))
    gain[: FEWEST_LINES - 1] = gain[count - FEWEST_LINES :] = -np.inf
    best = int(np.argmax(gain))
    if gain[best] < CLEARLY_LIKELIER or second[best] < CLEARLY_WIDER * first[best]:
        return None
    return best + 2 if _related(source[: best + 1], target[: best + 1]) else None


def _related(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> bool:
    if len(source) < FEWEST_LINES:
        return False
    left, right = np.log1p(source), np.log1p(target)
    if left.std() < 1e-9 or right.std() < 1e-9:
        return False
    return bool(np.corrcoef(left, right)[0, 1] > CLEARLY_RELATED)
