"""What this process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from forebay.engine.launch.spec import GIB

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> tuple[int, ...]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def available_memory_gib(cgroup: Path = CGROUP) -> float:
    """Memory that can be had without swapping, in GiB, within the container's limit where there is one."""
    available = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return float(available) / GIB
    return float(min(available, max(0, limit - used))) / GIB
