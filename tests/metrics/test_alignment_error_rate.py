"""The alignment error rate, on links small enough to count by hand."""

from __future__ import annotations

import pytest

from transduce.core.errors import DataError
from transduce.metrics.corpus import alignment_error_rate


def test_counted_by_hand() -> None:
    found = [{(0, 0), (1, 1), (2, 1)}, {(0, 1)}]
    sure = [{(0, 0), (1, 1)}, {(0, 0)}]
    possible = [{(2, 1)}, set[tuple[int, int]]()]
    # A and S share 2 links, A and P 3 (sure links are possible ones); A has 4, S 3.
    assert alignment_error_rate(found, sure, possible) == pytest.approx(1 - 5 / 7)
    assert alignment_error_rate(found, sure) == pytest.approx(1 - 4 / 7)


def test_the_best_and_the_worst() -> None:
    sure = [[(0, 0), (1, 2)], [(3, 3)]]
    assert alignment_error_rate(sure, sure) == 0
    assert alignment_error_rate([[(5, 5)], []], sure) == 1
    # Links that are only possible may be found or not.
    assert alignment_error_rate([[(0, 0), (9, 9)]], [[(0, 0)]], [[(9, 9), (8, 8)]]) == 0
    assert alignment_error_rate([[]], [[]]) == 0


def test_links_of_the_same_sentences() -> None:
    with pytest.raises(DataError, match="links found, sure and possible cover 1, 2 and 2 sentences"):
        alignment_error_rate([[]], [[], []])
