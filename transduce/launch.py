"""Which of how many processes this one is: what torchrun tells its children through the environment.

Imports torch only when something went wrong in a group, to find out who is the one to say so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

LIFE = "TRANSDUCE_LIFE"  # what a group calls itself once it has met: it is another one after every restart


@dataclass(frozen=True)
class Launch:
    """`rank` of `size` processes in all, `local_rank` of `local_size` on this machine; 0 of 1 without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch:
        """Alone where any of the four is missing: a cluster may set some of them for purposes of its own."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(environment.get(name) for name in names):
            return cls()
        return cls(*(int(environment[name]) for name in names[:4]))


def open_closed_streams() -> None:
    """Put something in the place of standard streams that were closed, which the next file to be opened would take.

    Errors written there are lost. What is read or written otherwise is refused by the system, as if still closed.
    """
    modes = {"stdin": ("r", os.O_WRONLY), "stdout": ("w", os.O_RDONLY), "stderr": ("w", os.O_WRONLY)}
    for name, (mode, flags) in modes.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


def leave(code: int) -> None:
    """End this process now if it is one of several.

    Threads of the transport may still want Python, and Python, ending, would take them down with an abort.
    """
    if Launch.of(os.environ).size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def first_to_tell() -> bool:
    """Whether this process is the first of its group to report an error: what follows in others is its echo.

    The place they meet is torchrun's own store, which outlives them; without it each speaks for itself.
    """
    if Launch.of(os.environ).size == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            timeout=timedelta(seconds=10),
            wait_for_workers=False,
        )
        life = os.environ.get(LIFE) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"transduce/told/{life}", 1) == 1)
    except RuntimeError:
        return True
