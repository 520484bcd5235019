"""The learning rate of a run that steps or minutes end, whichever comes first."""

from __future__ import annotations

import pytest

from transduce.training.optimizer import (
    Constant,
    Cosine,
    InverseRoot,
    LearningRateByBudget,
    Paper,
    anneals,
    steps_within,
)


def test_of_steps_and_minutes_the_one_that_ends_first_decides() -> None:
    assert steps_within(100, 10, 5.0, 0.0) == 100  # no limit
    assert steps_within(100, 0, 0.0, 60.0) == 100  # no pace yet
    assert steps_within(100, 0, 5.0, 60.0) == 100
    assert steps_within(100, 1, 0.0, 60.0) == 100
    assert steps_within(100, 10, 5.0, 60.0) == 100  # there is time for 120
    assert steps_within(100, 10, 5.0, 30.0) == 60
    assert steps_within(100, 10, 60.0, 30.0) == 5
    assert steps_within(100, 10, 1e-3, 1e308) == 100  # more time than a number can say


def test_a_schedule_anneals_by_the_share_of_the_time() -> None:
    """Half of the minutes are over: as half of the steps that fit into them, whatever the pace was."""
    cosine = Cosine(peak=1.0, warmup=10)
    for pace in (0.1, 2.0):
        rate = LearningRateByBudget(cosine, 8, steps=100_000, minutes=1000 * pace / 60, say=print)
        assert rate(499, 499 * pace) == pytest.approx(cosine.build(8, 1000)(500))
        assert rate.last == rate(499, 499 * pace)
        assert rate(1000, 1000 * pace) == pytest.approx(0)
    assert LearningRateByBudget(cosine, 8, 1000, 0.0, say=print)(499, 1e9) == cosine.build(8, 1000)(500)
    assert LearningRateByBudget(Constant(0.5), 8, 1000, 1.0, say=print)(499, 59.0) == 0.5


@pytest.mark.parametrize("warmup", [501, 800, 1000, 4000, 10**6])
def test_the_clock_anneals_whatever_the_warm_up_is(warmup: int) -> None:
    """A thousand steps fit into the minutes: up the warm-up's own line for half of them, then down to the floor."""
    rate = LearningRateByBudget(Cosine(peak=1.0, warmup=warmup), 8, steps=100_000, minutes=100 / 60, say=print)
    rates = [rate(done, 0.1 * done) for done in range(1, 1001)]  # of steps 2 to 1001
    highest = max(rates)
    assert rates.index(highest) == 498  # step 500
    assert highest == pytest.approx(500 / warmup)
    assert rates[:499] == pytest.approx([step / warmup for step in range(2, 501)])
    assert rates[748] == pytest.approx(highest / 2)  # three quarters of the time
    assert rates[498:] == sorted(rates[498:], reverse=True)
    assert rates[-1] == pytest.approx(0)


def test_a_rate_that_stays_below_the_floor_in_the_warm_up_does_not_rise_to_it() -> None:
    rate = LearningRateByBudget(
        Cosine(peak=1.0, warmup=10_000, floor=0.5), 8, steps=100_000, minutes=100 / 60, say=print
    )
    assert rate(999, 99.9) == pytest.approx(0.05)


def test_steps_end_a_run_in_its_warm_up_as_before() -> None:
    """The budget in steps was chosen with the warm-up; that of the clock depends on the machine."""
    rate = LearningRateByBudget(Cosine(peak=1.0, warmup=1000), 8, steps=500, minutes=1000.0, say=print)
    assert rate(499, 49.9) == 0.5


def test_a_slow_first_step_makes_no_jump() -> None:
    """By its pace one more would fit; the rate is not above the warm-up's line for that."""
    rate = LearningRateByBudget(Cosine(peak=1.0, warmup=1000), 8, steps=100_000, minutes=1.0, say=print)
    assert 0 <= rate(1, 30.0) <= 2 / 1000
    assert 0 < rate(2, 30.1) <= 3 / 1000


def said(warmup: int, pace: float = 0.1, schedule: Cosine | Constant | None = None, steps: int = 100_000) -> list[str]:
    """What is said of a run of a thousand steps at that pace and 100 seconds."""
    heard: list[str] = []
    rate = LearningRateByBudget(
        schedule or Cosine(peak=1e-3, warmup=warmup), 8, steps, minutes=100 / 60, say=heard.append
    )
    for done in range(round(100 / pace)):
        rate(done, pace * done)
    return heard


def test_a_peak_that_is_out_of_reach_is_reported_once() -> None:
    (text,) = said(4000)
    assert "training.learning_rate.warmup: 4,000 steps, but at this pace" in text
    assert "run after some 1,000," in text
    assert "the rate will rise to about 1.25e-04, not to its peak of 1.00e-03" in text
    assert "training.learning_rate.warmup=500 or less, or raise training.minutes" in text


@pytest.mark.parametrize(("minutes", "falls"), [(1200 / 60, False), (120 / 60, True)])
def test_a_run_that_gets_more_time_reports_the_warm_up_it_has(minutes: float, falls: bool) -> None:
    """It had 100 seconds for a thousand steps, 500 of them up; with 120 it would have had 600, and they are over."""
    heard: list[str] = []
    rate = LearningRateByBudget(Cosine(peak=1e-3, warmup=10_000), 8, 100_000, minutes, heard.append)
    rates = [rate(done, 0.1 * done) for done in range(1000, 1100)]
    assert rates == sorted(rates, reverse=falls)
    (text,) = heard
    assert ("the rate will rise to about 6.00e-04, not to its peak" in text) is not falls
    assert ("these are over, and the rate falls along a curve from about 6.00e-05, not from its peak" in text) is falls


def test_which_schedules_anneal() -> None:
    assert anneals(Cosine())
    assert not any(anneals(schedule) for schedule in (Constant(), Paper(), InverseRoot()))


def test_nothing_is_said_of_a_peak_that_is_reached() -> None:
    assert said(500) == said(4000, schedule=Constant(0.5)) == said(4000, steps=1000) == []


def test_slow_first_steps_are_no_pace() -> None:
    heard: list[str] = []
    rate = LearningRateByBudget(Cosine(warmup=250), 8, 100_000, minutes=100 / 60, say=heard.append)
    for done in range(1000):
        rate(done, min(done, 2.0) + 0.097 * done)  # by the first two steps some 90 would fit
    assert heard == []
