"""Cores and memory available to this process, within the limits of a container."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores(group_folder: Path = Path("/sys/fs/cgroup"), own_group: Path = Path("/proc/self/cgroup")) -> int:
    """Count the cores available to this process, at most the CPU quota of its container (cgroup), rounded up."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return min([cores, *(max(1, math.ceil(quota)) for quota in _cpu_quotas(group_folder, own_group))])


def _cpu_quotas(group_folder: Path, own_group: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of this process's cgroup and all its parents, of version 2, then of version 1."""
    group = Path("/")
    with suppress(OSError):
        lines = own_group.read_text(encoding="utf-8").split("\n")
        group = next((Path(line.removeprefix("0::")) for line in lines if line.startswith("0::")), group)
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max 100000" where there is no quota
            quota, period = (group_folder / str(folder).lstrip("/") / "cpu.max").read_text(encoding="utf-8").split()
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        first = group_folder / "cpu"
        quota = first.joinpath("cpu.cfs_quota_us").read_text(encoding="utf-8")
        if int(quota) > 0:  # -1: none
            yield int(quota) / int(first.joinpath("cpu.cfs_period_us").read_text(encoding="utf-8"))


def available_memory() -> int:
    """Free memory in bytes, within the limits of a container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
    ):
        try:
            match = re.search(pattern, Path(path).read_text())
        except OSError:
            continue
        if match:
            found.append(unit * int(match[1]))
    return min(found)
