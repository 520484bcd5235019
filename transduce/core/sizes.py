"""The largest sizes that a config may set, far above what any machine trains.

Beyond them the number of weights no longer fits into 64 bits, and loops over layers and batches do not end. Whether a
model within them fits this machine is checked elsewhere (training/memory.py).
"""

from __future__ import annotations

from transduce.core.errors import ConfigError

LAYERS = 1024  # as in the native engine
WIDTH = 1 << 20  # of vectors, heads and hidden layers
PLACES = 1 << 24  # of tables of positions and buckets, as in the native engine's files
FEW = 1 << 12  # of what is counted by hand: pixels of a patch, kernel width, shapes, steps of a bucket
TOKENS = 1 << 31  # per batch
ACCUMULATED = 1 << 16  # batches accumulated per update


def check_most(config: object, most: int, *names: str) -> None:
    """Refuse the named settings where larger than `most`."""
    for name in names:
        if getattr(config, name) > most:
            raise ConfigError(f"{name}: expected at most {most:,}, got {getattr(config, name)}")
