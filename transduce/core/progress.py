"""Progress with rate and remaining time: a live bar on a terminal, else a plain line every few seconds.

The bar is rich's, which is slow to import: only on a terminal.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from transduce.core.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as LiveProgress

QUIET_SECONDS = 2.0  # work that ends sooner shows nothing when there is no terminal
LINE_SECONDS = 10.0  # between two plain lines


def seconds_as_text(seconds: float) -> str:
    """Format a duration: '42 s', '3 min 05 s' or '2 h 10 min'."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def rate_as_text(rate: float) -> str:
    """Format a rate: '12,345', or '0.06' for something slow."""
    return f"{rate:,.0f}" if rate >= 1 or rate == 0 else f"{rate:.2g}"


def live_bar(unit: str) -> LiveProgress | None:
    """Return a progress bar on standard error, not yet shown; None unless that is a terminal, or forced to be one."""
    if not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE")):
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{rate_as_text(task.speed)} {unit}/s" if task.speed else "", style="progress.data.speed")

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
    return Progress(*columns, console=console)


def say(text: str) -> None:
    """Print a line on standard error, at once, with what would move a terminal's cursor written out."""
    print(printable(text), file=sys.stderr, flush=True)


class Progress:
    """`with Progress("Tokenizing", total=len(lines), unit="lines") as progress: ... progress.advance(1000)`.

    Units may finish `burst` at a time but be reported one by one: they are then shown together, since otherwise all the
    time would seem to have gone into the first.
    """

    def __init__(self, title: str, total: int | None, unit: str, burst: int = 1) -> None:
        self.title, self.total, self.unit, self.burst = title, total, unit, burst
        self.done = self._shown = 0
        self._printed = -1  # the count on the last plain line
        self._live: LiveProgress | None = None

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._next_line = self._started + QUIET_SECONDS
        self._live = live_bar(self.unit)
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task(self.title, total=self.total)
        return self

    def advance(self, count: int = 1) -> None:
        """Report that `count` more units are done."""
        self.done += count
        if self.done - self._shown < self.burst and self.done != self.total:
            return
        self._shown = self.done
        if self._live is not None:
            self._live.update(self._task, completed=self.done)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self._print_line()

    def say(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)

    def _print_line(self) -> None:
        self._printed = self.done
        elapsed = time.monotonic() - self._started
        rate = self.done / max(elapsed, 1e-9)
        line = f"{self.title}: {self.done:,}"
        if self.total:
            line += f" of {self.total:,} ({self.done / self.total:.0%})"
        unit = self.unit.removesuffix("s") if (self.total or self.done) == 1 else self.unit
        line += f" {unit}, {rate_as_text(rate)} {self.unit}/s"
        if self.total and rate > 0:
            line += f", {seconds_as_text((self.total - self.done) / rate)} left"
        say(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._task, completed=self.done)
            self._live.stop()
        elif kind is None and self._printed != self.done and time.monotonic() - self._started >= QUIET_SECONDS:
            self._print_line()
