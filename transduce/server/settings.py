"""Settings of a server: limits, enabled unless changed, and batching; and the client's address behind proxies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated

from starlette.requests import HTTPConnection

from transduce.core.bounds import Bounds, check_bounds
from transduce.core.errors import ConfigError

FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")  # headers by which a proxy says that it is one


class Proxies:
    """The proxies whose `X-Forwarded-For` is trusted: addresses or networks such as 10.0.0.0/8."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        for word in words:
            try:
                self._networks.append(ip_network(word))
            except ValueError as error:
                raise ConfigError(
                    f"proxies: expected addresses or networks such as 127.0.0.1 or 10.0.0.0/8, got {word!r} ({error})"
                ) from None

    def address(self, request: HTTPConnection) -> str:
        """The client's address: the peer of the connection, or whom trusted proxies name.

        Every proxy appends the address of its own client, so the list is read from its end: the first one that is no
        proxy of ours is the client. What stands before it may be anybody's invention.
        """
        found = request.client.host if request.client else ""
        hops = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while hops and self._trusts(found):
            if not _is_address(hops[-1]):
                break
            found = hops.pop()
        return found

    def is_local(self, request: HTTPConnection) -> bool:
        """Whether a program on this machine sent the request, and not a proxy for another client."""
        peer = request.client.host if request.client else ""
        forwarded = any(name in request.headers for name in FORWARDED)
        return _is_address(peer) and ip_address(peer).is_loopback and not forwarded and not self._trusts(peer)

    def _trusts(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in network for network in self._networks)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _limit(least: int, most: int) -> Bounds:
    """Bounds of a limit: the most is what one process can hold, with reserves above what large machines need."""
    return Bounds(least, most, expected=f"an integer from {least:,} to {most:,} (docs/serving.md, Limits)")


Seconds = Annotated[float, Bounds(0, 86400, above=True, expected="seconds above 0, a day at most")]


@dataclass(frozen=True)
class Settings:
    """Limits of one request, limits of all, and how requests share the model.

    Of one request: `characters` of a text, `texts`, bytes of its `body`, `alternatives`, `seconds` until it is
    answered, `body_seconds` for its body and `header_seconds` for its headers to arrive. `request_tokens` bound its
    work, and `cells` the attention weights that it asks for: both are counted before any work begins.

    Of all: `connections` held open, and the gate: `queue_tokens` that are admitted and not done, or fewer where the
    model would take longer than `queue_seconds` for them. `batch_tokens` go to the model together, by one of
    `workers` threads, after waiting `batch_seconds` for other requests in the batch where there are some.

    `pivot` is the language to go through where no model translates directly, "" for none. `keys` are required if there
    are any; `requests_a_minute` is for each key, or each address without keys (0: no limit). `hosts` are the names this
    server answers to (none: all), which keeps web pages from reaching it under a name of their own. `proxies` are
    addresses or networks whose `X-Forwarded-For` is trusted.

    `data` is the folder in which the server keeps what its users make ("": in memory, until it ends): at most
    `glossaries` for each key, of `glossary_bytes` each.
    """

    characters: Annotated[int, _limit(1, 10_000_000)] = 5000
    texts: Annotated[int, _limit(1, 100_000)] = 50
    body: Annotated[int, _limit(1024, 1 << 30)] = 128 << 10
    alternatives: Annotated[int, _limit(0, 4095)] = 5  # with the best one as many as a search gives
    request_tokens: Annotated[int, _limit(1, 1 << 28)] = 256 << 10
    cells: Annotated[int, _limit(1, 1 << 28)] = 256 << 10
    seconds: Seconds = 30.0
    body_seconds: Seconds = 10.0
    header_seconds: Seconds = 10.0
    connections: Annotated[int, _limit(2, 1 << 20)] = 1024
    queue_tokens: Annotated[int, _limit(1, 1 << 24)] = 16384
    queue_seconds: Seconds = 0.25
    batch_tokens: Annotated[int, _limit(1, 1 << 20)] = 2048
    workers: Annotated[int, _limit(1, 256)] = 3
    batch_seconds: Annotated[float, Bounds(0, 1, expected="seconds from 0 to 1")] = 0.002
    pivot: str = ""
    keys: tuple[str, ...] = ()
    requests_a_minute: Annotated[int, _limit(0, 1_000_000)] = 0
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    data: str = ""
    glossaries: Annotated[int, _limit(0, 100_000)] = 100
    glossary_bytes: Annotated[int, _limit(1024, 10 << 20)] = 1 << 20

    def with_body(self, most: int) -> Settings:
        """These settings with another limit to the body of a request."""
        return replace(self, body=most)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_keys(self.keys)
        Proxies(self.proxies)


def check_keys(keys: Sequence[str]) -> None:
    """Raise ConfigError for API keys that no header can carry as they are."""
    if any(not key.isascii() or not key.isprintable() or " " in key or not key for key in keys):
        raise ConfigError("keys: expected visible ASCII characters without spaces, got a key that has others")
