"""How a server behaves: limits that are on by default, and how requests of different users share the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transduce.errors import ConfigError
from transduce.server.addresses import Proxies

# The least and the most of each: what one process can hold, with room above what large machines need.
BOUNDS = {
    "characters": (1, 10_000_000),
    "texts": (1, 100_000),
    "body": (1024, 1 << 30),
    "alternatives": (0, 4095),  # with the best one as many as a search gives
    "request_tokens": (1, 1 << 28),
    "cells": (1, 1 << 28),
    "connections": (2, 1 << 20),
    "queue_tokens": (1, 1 << 24),
    "batch_tokens": (1, 1 << 20),
    "workers": (1, 256),
    "requests_a_minute": (0, 1_000_000),
}


@dataclass(frozen=True)
class Settings:
    """Limits of one request: `characters` of a text, `texts`, bytes of its `body`, `alternatives`, `seconds` until it
    is answered, `body_seconds` for its body and `header_seconds` for its headers to arrive. `request_tokens` bound its
    work, and `cells` the attention weights that it asks for: both are counted before any work begins.

    Limits of all: `connections` held open, and the gate: `queue_tokens` that are admitted and not done, or fewer where
    the model would take longer than `patience` seconds for them. `batch_tokens` go to the model together, by one of
    `workers` threads, after waiting `gather` seconds for company where there is some.
    `pivot` is the language to go through where no model translates directly, "" for none. `keys` are asked for where
    there are any; `requests_a_minute` is for each key, or each address without keys (0: no limit). `hosts` are the
    names this server answers to (none: all), which keeps web pages from reaching it under a name of their own.
    `proxies` are addresses or networks whose `X-Forwarded-For` is believed.
    """

    characters: int = 5000
    texts: int = 50
    body: int = 128 << 10
    alternatives: int = 5
    request_tokens: int = 256 << 10
    cells: int = 256 << 10
    seconds: float = 30.0
    body_seconds: float = 10.0
    header_seconds: float = 10.0
    connections: int = 1024
    queue_tokens: int = 16384
    patience: float = 0.25
    batch_tokens: int = 2048
    workers: int = 3
    gather: float = 0.002
    pivot: str = ""
    keys: tuple[str, ...] = ()
    requests_a_minute: int = 0
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                told = f"expected a whole number from {least:,} to {most:,}, got {getattr(self, name)}"
                raise ConfigError(f"{name}: {told}; docs/serving.md says what it bounds (Limits)")
        for name in ("seconds", "body_seconds", "header_seconds", "patience"):
            if not 0 < getattr(self, name) <= 86400:
                raise ConfigError(f"{name}: expected seconds above 0, a day at most, got {getattr(self, name)}")
        if not 0 <= self.gather <= 1:
            raise ConfigError(f"gather: expected seconds from 0 to 1, got {self.gather}")
        check_keys(self.keys)
        Proxies(self.proxies)


def check_keys(keys: Sequence[str]) -> None:
    """Refuse API keys that no header can carry as they are."""
    if any(not key.isascii() or not key.isprintable() or " " in key or not key for key in keys):
        raise ConfigError("keys: expected visible ASCII characters without spaces, got a key that has others")
