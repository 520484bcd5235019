"""The one way in: admits work while what is admitted and not done stays below a number of tokens.

That number is a setting, and less where the model is slow: what is admitted should be done within `patience` seconds.
A request of more tokens than a quarter of it holds that quarter and feeds its sentences through it, so that a long
document neither waits for an empty server nor keeps everybody else out. While many are turned away, few requests are in
at a time: a longer queue would help nobody, and those who are in have their answers soon.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transduce.server.failures import Refused

CROWD = 96  # requests of the usual size that are let in however slow the model is,
CROWD_TOKENS = 4096  # but no more tokens than these
MEMORY = 5.0  # seconds of work that the estimate of its speed remembers
FEW = 16  # requests that are in at a time while many are turned away,
HASTE = 5  # or more where the model does them in this part of its patience
MANY = 0.1  # of all that came in the last second or so, if they were
SEVERAL = 8  # at least
RECENT = 1.0  # seconds


class Gate:
    """Counts tokens that are admitted and not done. All of it happens in the event loop's thread."""

    def __init__(self, most: int, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.patience, self._clock = most, patience, clock
        self.held = self.requests = self.admitted = self.refused = 0
        self.closed = False
        self._done = self._busy = 0.0  # tokens and seconds, both fading
        self._usual = 64.0  # tokens of a request, as they were lately
        self._came = self._turned = 0.0  # requests, and those turned away for want of room, both fading
        self._since = self._counted = clock()

    @property
    def rate(self) -> float:
        """Tokens a second that the model does while it has work; 0 as long as nobody knows."""
        return self._done / self._busy if self._busy > 0.05 else 0.0

    @property
    def capacity(self) -> int:
        """Tokens that may be held now."""
        if not self.rate:
            return self.most
        crowd = min(CROWD_TOKENS, CROWD * self._usual)
        return min(self.most, int(max(crowd, self.rate * self.patience)))

    @property
    def places(self) -> float:
        """Requests that may be in now, however few their tokens: any number where hardly any are turned away."""
        if self._turned < max(SEVERAL, MANY * self._came):
            return math.inf
        return max(FEW, self.rate * self.patience / HASTE / self._usual)

    def check(self, tokens: float = 0) -> None:
        """Refuse work for which there is no room now; without a number, work as it usually comes."""
        if self.closed:
            self.refused += 1
            raise Refused(503, "this server is shutting down; ask another, or again later", "draining", 1, close=True)
        if self.held and (self.requests >= self.places or self.held + (tokens or self._usual) > self.capacity):
            self.refused += 1
            self._count(1)
            wait = math.ceil(self.held / self.rate) if self.rate else 1
            raise Refused(503, "this server is busy; try again later", "busy", min(max(1, wait), 60))

    @contextmanager
    def admit(self, tokens: int) -> Iterator[int]:
        """Let work of so many tokens in; gives how many of them may be under way at a time."""
        share = min(tokens, max(1, self.capacity // 4))
        self.check(share)
        self._usual += 0.005 * (share - self._usual)
        self._count(0)
        self._pass(0)
        self.held += share
        self.requests += 1
        self.admitted += 1
        try:
            yield share
        finally:
            self._pass(0)
            self.held -= share
            self.requests -= 1

    def done(self, tokens: int) -> None:
        """So many tokens were worked off."""
        self._pass(tokens)

    def _count(self, turned: int) -> None:
        """One more came, and was let in or turned away."""
        now = self._clock()
        fade = math.exp((self._counted - now) / RECENT)
        self._counted = now
        self._came, self._turned = self._came * fade + 1, self._turned * fade + turned

    def _pass(self, tokens: int) -> None:
        """Time goes by, busy if anything is held."""
        now = self._clock()
        passed, self._since = now - self._since, now
        if self.held:
            fade = math.exp(-passed / MEMORY)
            self._busy = self._busy * fade + passed
            self._done *= fade
        self._done += tokens
