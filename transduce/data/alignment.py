"""Where two files stop being translations of each other, judged by the lengths of their lines alone.

The lengths of a sentence and of its translation go together, so the log ratio of the two varies little. Where one side
lacks a stretch of lines, the ratios behind it vary as little once that side is moved by as many lines as it lacks: the
place is the one that makes the ratios most likely. Where no such place is clear (lines may be missing on both sides),
it is the split of the series into two parts, each with its own spread, that does, if the second is wider.
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
    gap = None if max(counts) > LINES_JUDGED else place_of_gap(*(np.array(side, np.float64) for side in lengths))
    place = place_of_parting(*sides) if gap is None else gap
    shorter = source_file if counts[0] < counts[1] else target_file
    if place is None and both == LINES_JUDGED and _related(*sides):
        where = f"Judged by line lengths, the first {both:,} lines do match; no more were looked at"
    elif gap == both + 1:
        where = f"Judged by line lengths, all the lines both have do match: the end of {shorter} seems to be missing"
    elif place is not None:
        where = (
            f"Judged by line lengths, the sides stop matching at about line {place}: look for a missing or extra line"
        )
    else:
        where = "Where they stop matching cannot be told from the line lengths"
    return (
        f"{source_file} has {counts[0]:,} lines but {target_file} has {counts[1]:,}: line-aligned files need as many "
        f"on each side. {where}."
    )


def place_of_gap(source: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> int | None:
    """The number (from 1) of the first line that no longer matches if one side lacks one stretch of lines.

    One more than the shorter side has lines if what is missing is the end; None if it cannot be told.
    """
    longer, shorter = (source, target) if len(source) > len(target) else (target, source)
    count, missing = len(shorter), len(longer) - len(shorter)
    if count < 2 * FEWEST_LINES:
        return None
    unmoved, moved = (np.log1p(longer[first : first + count]) - np.log1p(shorter) for first in (0, missing))
    usual = unmoved.mean()
    before = np.concatenate(([0.0], np.cumsum((unmoved - usual) ** 2)))  # of the first 0, 1, 2 ... lines
    after = np.concatenate((np.cumsum((moved - usual)[::-1] ** 2)[::-1], [0.0]))  # of all but these
    cost = before + after
    best = int(np.argmin(cost))
    nats = (cost - cost[best]) / (2 * cost[best] / count + 1e-4)  # by which it is likelier than others
    clear = nats[np.abs(np.arange(count + 1) - best) > FEWEST_LINES].min() > CLEARLY_LIKELIER
    best = count if nats[count] < CLEARLY_LIKELIER else best  # an end is cut off sooner than a few lines before it
    matched = np.concatenate((longer[:best], longer[best + missing :]))
    return best + 1 if clear and _related(matched, shorter) else None


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
