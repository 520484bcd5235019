"""How the processes of a group find each other in a store that remembers groups which have died.

torchrun keeps one store for all lives of a group, and its count of restarts differs from machine to machine; so torch
may read the address of a process that is no more, and a restarted group now and then could not connect. Here each
process signs in with a word nobody has used before, and a life is what all who live now have seen of each other.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import timedelta
from typing import Protocol

from transduce.errors import RunError

POLL = 0.02  # seconds


class Store(Protocol):
    """What is needed of torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def meet(store: Store, rank: int, size: int, patience: timedelta) -> str:
    """Wait until all have signed in and each has seen the same words; gives the name of this life."""
    everyone = range(size)
    store.set(f"transduce/here/{rank}", secrets.token_hex(16))
    limit = time.monotonic() + patience.total_seconds()
    seen = ""
    while time.monotonic() < limit:
        if store.check([f"transduce/here/{other}" for other in everyone]):
            words = store.multi_get([f"transduce/here/{other}" for other in everyone])
            life = hashlib.sha256(b" ".join(words)).hexdigest()[:16]
            if life != seen:  # what is left of the dead gives a life that they do not agree to
                store.set(f"transduce/seen/{life}/{rank}", "yes")
                seen = life
            if store.check([f"transduce/seen/{life}/{other}" for other in everyone]):
                return life
        time.sleep(POLL)
    missing = [other for other in everyone if not store.check([f"transduce/here/{other}"])]
    raise RunError(
        f"waited {patience} for the {size} processes of the group to meet; missing: ranks {missing or 'unknown'}."
        " Start torchrun on every machine with the same --nnodes and --rdzv-endpoint, or look there for why they ended"
    )


def wait_until_connected(store: Store, life: str, rank: int, size: int, patience: timedelta) -> None:
    """A barrier through the store, for when this process has its connections to all others.

    Gloo connects each pair on its own, and a process that has its connections may end, by an error say, while another
    is still accepting them: that one would wait for it until the timeout of the group, which is hours.
    """
    keys = {other: f"transduce/connected/{life}/{other}" for other in range(size)}
    store.set(keys[rank], "yes")
    limit = time.monotonic() + patience.total_seconds()
    while not store.check(list(keys.values())):
        if time.monotonic() >= limit:
            missing = [other for other, key in keys.items() if not store.check([key])]
            raise RunError(
                f"waited {patience} for the {size} processes of the group to connect to each other; missing: ranks"
                f" {missing or 'unknown'}. Look there for why they ended, or name the network with GLOO_SOCKET_IFNAME"
            )
        time.sleep(POLL)
