"""The learning rate of each update: a schedule, built for as many steps as the run will have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transduce.training.optimizer import Constant, Cosine, InverseRoot, LearningRate, Paper, Schedule

PACE_IS_KNOWN = 0.05  # of the time: before, the pace is that of the first steps, which are slow


def steps_within(steps: int, done: int, seconds: float, limit: float) -> int:
    """How many steps a run will have: `steps`, or fewer where `limit` seconds end it first (0 = no limit).

    By the pace so far, `done` steps in `seconds`. A schedule that is built for this number at every step anneals by the
    share of the time that is used.
    """
    if limit <= 0 or done < 1 or seconds <= 0:
        return steps
    return max(1, round(min(steps, done * limit / seconds)))


def anneals(schedule: LearningRate) -> bool:
    """Whether rates depend on how many steps there will be; those of a class of the user's own may."""
    return not isinstance(schedule, (Paper, InverseRoot, Constant))


def within_time(schedule: LearningRate, steps: int) -> LearningRate:
    """The schedule of a run that the clock ends after `steps`: a cosine's warm-up takes half of them at most.

    Where the warm-up is longer, the rate rises along its line until then, never faster, and anneals from where it is.
    """
    if not isinstance(schedule, Cosine):
        return schedule
    warmup = min(schedule.warmup, max(1, steps // 2))
    peak = schedule.peak * (warmup / schedule.warmup)
    return replace(schedule, peak=peak, warmup=warmup, floor=min(schedule.floor, peak))


class LearningRateByBudget:
    """Schedules anneal by the budget that ends first, steps or minutes; `last` is the rate of the last update.

    What the person watching should know is given to `say`.
    """

    def __init__(
        self, schedule: LearningRate, d_model: int, steps: int, minutes: float, say: Callable[[str], None]
    ) -> None:
        self.settings, self.d_model, self.steps, self.seconds = schedule, d_model, steps, 60 * minutes
        self.last = 0.0
        self._say, self._warned = say, False
        self._built_for = steps
        self._schedule: Schedule = schedule.build(d_model, steps)

    def __call__(self, done: int, seconds: float) -> float:
        """Of the update after `done` ones, which took `seconds`."""
        steps = steps_within(self.steps, done, seconds, self.seconds)
        if not self._warned and steps < self.steps and seconds >= PACE_IS_KNOWN * self.seconds:
            self._warn(done, steps)
        if steps != self._built_for:
            settings = within_time(self.settings, steps) if steps < self.steps else self.settings
            self._built_for, self._schedule = steps, settings.build(self.d_model, steps)
        self.last = self._schedule(done + 1)
        return self.last

    def _warn(self, done: int, steps: int) -> None:
        """Say, once, that a cosine's peak lies beyond the half of the time that its warm-up may take.

        A run that got more minutes may be past that half already: its rate will not rise again.
        """
        reached = within_time(self.settings, steps)
        if not isinstance(self.settings, Cosine) or not isinstance(reached, Cosine):
            return
        if done >= self.settings.warmup or reached.warmup >= self.settings.warmup:
            return
        self._warned = True
        if done < reached.warmup:
            outcome = f"the rate will rise to about {reached.peak:.2e}, not to its peak of {self.settings.peak:.2e}"
        else:
            outcome = (
                f"these are over, and the rate falls along a curve from about {reached.peak:.2e}, not from its peak of"
                f" {self.settings.peak:.2e}"
            )
        self._say(
            f"training.learning_rate.warmup: {self.settings.warmup:,} steps, but at this pace training.minutes ends the"
            f" run after some {steps:,}, and a warm-up takes half of these at most: {outcome}. To reach the peak, begin"
            f" anew with training.learning_rate.warmup={reached.warmup} or less, or raise training.minutes"
        )
