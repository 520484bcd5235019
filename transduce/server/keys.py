"""Who may ask, and how often: API keys compared in constant time, and a bucket of requests for each asker."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from transduce.server.failures import Refused

MOST_ASKERS = 10_000  # remembered at a time; who has been silent the longest is forgotten first
WRONG_SECONDS = 1.0  # until a wrong key is answered
MOST_WRONG = 16  # wrong keys of one address that wait for their answer; more are not looked at
EVERYBODY = b""  # the asker where no keys are needed


class Keys:
    """The keys of a server, none if everybody may ask, and how many requests a minute each has (0: any number).

    A wrong key is answered after a delay. Whoever waits for it holds nothing but a connection, and an address that has
    `MOST_WRONG` of them waiting is refused whatever its key: so one address tries that many keys a second at most.
    """

    def __init__(
        self,
        keys: Sequence[str],
        a_minute: int,
        clock: Callable[[], float] = time.monotonic,
        wrong_seconds: float = WRONG_SECONDS,
    ) -> None:
        self._minute, self._clock, self._wrong_seconds = a_minute, clock, wrong_seconds
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # asker: requests left, and when
        self._wrong: Counter[str] = Counter()  # wrong keys that wait, by address
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> None:
        """From now on these are the keys; requests that are under way go on."""
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._digests)

    async def admit(self, key: str, address: str) -> bytes:
        """As `check`, with the delay of a wrong key. Gives who asks, as a digest of the key."""
        if self.required and self._wrong[address] >= MOST_WRONG:
            raise Refused(429, "Too many wrong API keys from this address", "key", math.ceil(self._wrong_seconds))
        try:
            return self.check(key, address)
        except Refused as error:
            if error.status == 403:
                await self._wait(address)
            raise

    async def _wait(self, address: str) -> None:
        self._wrong[address] += 1
        try:
            await asyncio.sleep(self._wrong_seconds)
        finally:
            self._wrong[address] -= 1
            if not self._wrong[address]:
                del self._wrong[address]

    def check(self, key: str, address: str) -> bytes:
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
        return asker if self.required else EVERYBODY

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
