"""Who may ask, and how often: API keys compared in constant time, and a bucket of requests for each asker."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from transduce.server.failures import Refused

MOST_ASKERS = 10_000  # remembered at a time; who has been silent the longest is forgotten first


class Keys:
    """The keys of a server, none if everybody may ask, and how many requests a minute each has (0: any number)."""

    def __init__(self, keys: Sequence[str], a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._digests = [_digest(key) for key in keys]
        self._minute, self._clock = a_minute, clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # asker: requests left, and when

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def check(self, key: str, address: str) -> None:
        """Refuse who has no key or a wrong one, or asks too often."""
        asker = _digest(key) if self.required else _digest(address)
        if self.required:
            if not key:
                raise Refused(400, "Please contact the server operator to get an API key", "key")
            known = [hmac.compare_digest(asker, digest) for digest in self._digests]  # all of them, whichever it is
            if not any(known):
                raise Refused(403, "Invalid API key", "key")
        if self._minute:
            self._take(asker)

    def _take(self, asker: bytes) -> None:
        now = self._clock()
        left, since = self._buckets.pop(asker, (float(self._minute), now))
        left = min(self._minute, left + (now - since) * self._minute / 60)
        self._buckets[asker] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > MOST_ASKERS:
            self._buckets.popitem(last=False)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / self._minute)
            raise Refused(429, f"Slowdown: {self._minute} requests a minute are allowed", "rate", wait)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
