"""Admission control: a gate on tokens in flight, API keys with rate limits, and the cost of a request.

The gate admits work while the tokens admitted and not done stay below a limit. The limit is a setting, and lower where
the model is slow: what is admitted should be done within `queue_seconds`. A request of more tokens than a quarter of
it holds that quarter and feeds its sentences through it, so that a long document neither waits for an empty server nor
keeps everybody else out. While many requests are rejected, few are in at a time: a longer queue would help nobody, and
admitted requests have their answers soon.

API keys are compared in constant time, with a token bucket of requests for each caller.

The cost of a request is its work in tokens, and the attention weights that it asks for. Both are counted from the texts
before any of the work begins, and a request that costs too much is rejected.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from transduce.server.answers import Refused
from transduce.server.settings import Settings

CROWD = 96  # requests of the usual size that are admitted however slow the model is,
CROWD_TOKENS = 4096  # but no more tokens than these
MEMORY = 5.0  # seconds of work in the moving estimate of throughput
FEW = 16  # requests in flight while many are rejected,
HASTE = 5  # or more where the model does them in this fraction of `queue_seconds`
MANY = 0.1  # share of rejections among recent requests that counts as many, if they were
SEVERAL = 8  # at least
RECENT = 1.0  # seconds


class Gate:
    """Admit requests by the tokens in flight. Runs in the event loop's thread only."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.seconds, self._clock = most, seconds, clock
        self.held = self.requests = self.admitted = self.refused = 0
        self.closed = False
        self._done = self._busy = 0.0  # tokens and seconds, exponentially decayed
        self._usual = 64.0  # tokens of a request, moving average
        self._came = self._turned = 0.0  # requests, and those rejected for lack of capacity, decayed
        self._since = self._counted = clock()

    @property
    def rate(self) -> float:
        """Throughput in tokens a second while there is work; 0 if unknown."""
        return self._done / self._busy if self._busy > 0.05 else 0.0

    @property
    def capacity(self) -> int:
        """Tokens that may be in flight now."""
        if not self.rate:
            return self.most
        crowd = min(CROWD_TOKENS, CROWD * self._usual)
        return min(self.most, int(max(crowd, self.rate * self.seconds)))

    @property
    def places(self) -> float:
        """Requests that may be in flight now, however few their tokens: unlimited unless many are rejected."""
        if self._turned < max(SEVERAL, MANY * self._came):
            return math.inf
        return max(FEW, self.rate * self.seconds / HASTE / self._usual)

    def check(self, tokens: float = 0) -> None:
        """Raise Refused if there is no capacity for `tokens` now; without a number, for a usual request."""
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
        """Admit work of so many tokens; yield how many of them may be under way at a time."""
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
        """Record that so many tokens are done."""
        self._pass(tokens)

    def _count(self, turned: int) -> None:
        """Record a request, admitted (0) or rejected (1)."""
        now = self._clock()
        fade = math.exp((self._counted - now) / RECENT)
        self._counted = now
        self._came, self._turned = self._came * fade + 1, self._turned * fade + turned

    def _pass(self, tokens: int) -> None:
        """Advance the clock of the throughput estimate by so many tokens."""
        now = self._clock()
        passed, self._since = now - self._since, now
        if self.held:
            fade = math.exp(-passed / MEMORY)
            self._busy = self._busy * fade + passed
            self._done *= fade
        self._done += tokens


MOST_ASKERS = 10_000  # least recently used callers are dropped first
WRONG_SECONDS = 1.0  # until a wrong key is answered
MOST_WRONG = 16  # wrong keys of one address that wait for their answer; more are rejected unread
EVERYBODY = b""  # the caller where no keys are needed


class Keys:
    """The API keys of a server, none if it is open to all, and the requests a minute for each (0: unlimited).

    A wrong key is answered after a delay. Whoever waits for it holds nothing but a connection, and an address that has
    `MOST_WRONG` of them waiting is rejected whatever its key: so one address tries that many keys a second at most.
    """

    def __init__(
        self,
        keys: Sequence[str],
        a_minute: int,
        clock: Callable[[], float] = time.monotonic,
        wrong_seconds: float = WRONG_SECONDS,
    ) -> None:
        self._minute, self._clock, self._wrong_seconds = a_minute, clock, wrong_seconds
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # caller: requests left, and when
        self._wrong: Counter[str] = Counter()  # waiting wrong keys, by address
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> None:
        """Replace the keys; requests in flight continue."""
        self._digests = [_digest(key) for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._digests)

    async def admit(self, key: str, address: str) -> bytes:
        """Run `check` with the delay of a wrong key; return the caller as a digest of the key."""
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
        """Raise Refused for a missing or wrong key, or too many requests; return the caller."""
        asker = _digest(key) if self.required else _digest(address)
        if self.required:
            if not key:
                raise Refused(400, "Please contact the server operator to get an API key", "key")
            known = [hmac.compare_digest(asker, digest) for digest in self._digests]  # all of them: constant time
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


MOST_INCLUDED = 128  # tokens of words that must appear
MOST_EXCLUDED = 1000  # characters of words that must not
CELLS_A_TOKEN = 64  # attention weights that cost as much as a token
PASSES_ALIGNED = 2  # passes of the model over a sentence: translation and alignment
PASSES_TAGGED = 3  # over a passage with tags: once more, in segments, where the tags cannot be placed
PASSES_TERMS = 3  # over a sentence with terms: translation, alignment, and a search held to them


def width_of(n_best: int, beam: int, included: int = 0) -> int:
    """The work of a search as a multiple of the usual: more hypotheses than a usual beam has cost more.

    The search for forced words keeps a hypothesis for each of their tokens.
    """
    return max(1, n_best // 2, beam // 4, included // 4)


def check_included(included: int, tokens: int, settings: Settings) -> int:
    """Check the tokens of forced words against what a search can hold for a sentence of `tokens`; return them."""
    if included > MOST_INCLUDED:
        raise Refused(
            422,
            f"include: expected words of at most {MOST_INCLUDED} tokens in all, got {included}; give fewer or shorter"
            " words",
            "limit",
        )
    if tokens * width_of(1, 0, included) > settings.batch_tokens:
        raise Refused(
            422,
            f"include: words of {included} tokens are too many for a text of {tokens} tokens; give fewer words, or"
            " shorter texts",
            "limit",
        )
    return included


def check_work(tokens: int, settings: Settings) -> int:
    """Check a request's work in tokens against the limit; return it."""
    if tokens > settings.request_tokens:
        raise Refused(
            422,
            f"the request is {tokens:,} tokens of work, and at most {settings.request_tokens:,} are allowed (each"
            " sentence counts for every model on its way, and more with alignment, tags, n_best or a large beam); send"
            " fewer texts at a time",
            "limit",
        )
    return tokens


def check_lengths(name: str, texts: Sequence[str], settings: Settings) -> None:
    """Raise Refused for more or longer texts than are allowed in the field `name`."""
    if len(texts) > settings.texts:
        raise Refused(
            400, f"{name}: expected at most {settings.texts} texts, got {len(texts)}; send fewer at a time", "limit"
        )
    longest = max(map(len, texts), default=0)
    if longest > settings.characters:
        raise Refused(
            400, f"{name}: expected at most {settings.characters} characters, got {longest}; send it in parts", "limit"
        )


def check_excluded(words: Sequence[str]) -> None:
    """Raise Refused for too many forbidden words: each has many spellings, all checked at every step."""
    characters = sum(map(len, words))
    if characters > MOST_EXCLUDED:
        raise Refused(
            422, f"exclude: expected words of at most {MOST_EXCLUDED} characters in all, got {characters}", "limit"
        )


def check_cells(cells: int, settings: Settings, what: str = "the answer") -> int:
    """Check the number of attention weights of a request against the limit; return it."""
    if cells > settings.cells:
        raise Refused(
            422,
            f"{what} would take {cells:,} attention weights, and at most {settings.cells:,} are allowed; send shorter"
            " texts, or fewer at a time",
            "limit",
        )
    return cells
