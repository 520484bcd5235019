"""Who asks, by address: the peer of the connection, or whom a trusted proxy names."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.requests import HTTPConnection

from transduce.errors import ConfigError

FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")  # headers by which a proxy says that it is one


class Proxies:
    """The proxies whose `X-Forwarded-For` is believed: addresses or networks such as 10.0.0.0/8."""

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
        """The address of who asks.

        Every proxy appends the address that it was asked from, so the list is read from its end: the first one that is
        no proxy of ours is the client. What stands before it may be anybody's invention.
        """
        found = request.client.host if request.client else ""
        hops = [one.strip() for line in request.headers.getlist("x-forwarded-for") for one in line.split(",")]
        while hops and self._trusts(found):
            if not _is_address(hops[-1]):
                break
            found = hops.pop()
        return found

    def is_local(self, request: HTTPConnection) -> bool:
        """Whether a program on this machine asks, and no proxy for somebody else."""
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
