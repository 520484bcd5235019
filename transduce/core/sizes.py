"""The largest sizes that a config may ask for, far above what any machine trains.

Beyond them numbers of weights no longer fit into 64 bits, and loops over layers and batches do not end. Whether a model
within them fits this machine is another matter (training/machine.py).
"""

from __future__ import annotations

from transduce.core.errors import ConfigError

LAYERS = 1024  # as the native engine has it
WIDTH = 1 << 20  # of vectors, heads and hidden layers
PLACES = 1 << 24  # of tables of positions and buckets, as in the native engine's files
FEW = 1 << 12  # of what is counted by hand: pixels of a patch, places of a kernel, shapes, steps of a bucket
TOKENS = 1 << 31  # of a batch
ACCUMULATED = 1 << 16  # batches that are made before an update


def check_most(config: object, most: int, *names: str) -> None:
    """Refuse settings that are larger than `most`."""
    for name in names:
        if getattr(config, name) > most:
            raise ConfigError(f"{name}: expected at most {most:,}, got {getattr(config, name)}")
