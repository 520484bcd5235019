"""The learning rate of a run that steps or minutes end, whichever comes first."""

from __future__ import annotations

import pytest

from transduce.training.optimizer import Constant, Cosine
from transduce.training.rate import Rate, steps_within


def test_of_steps_and_minutes_the_one_that_ends_first_decides() -> None:
    assert steps_within(100, 10, 5.0, 0.0) == 100  # no limit
    assert steps_within(100, 0, 0.0, 60.0) == 100  # no pace yet
    assert steps_within(100, 10, 5.0, 60.0) == 100  # there is time for 120
    assert steps_within(100, 10, 5.0, 30.0) == 60
    assert steps_within(100, 10, 60.0, 30.0) == 5


def test_a_schedule_anneals_by_the_share_of_the_time() -> None:
    """Half of the minutes are over: as half of the steps that fit into them, whatever the pace was."""
    cosine = Cosine(peak=1.0, warmup=10)
    for pace in (0.1, 2.0):
        rate = Rate(cosine, 8, steps=100_000, minutes=1000 * pace / 60)
        assert rate(499, 499 * pace) == pytest.approx(cosine.build(8, 1000)(500))
        assert rate.last == rate(499, 499 * pace)
        assert rate(1000, 1000 * pace) == pytest.approx(0)
    assert Rate(cosine, 8, 1000, 0.0)(499, 1e9) == cosine.build(8, 1000)(500)
    assert Rate(Constant(0.5), 8, 1000, 1.0)(499, 59.0) == 0.5
