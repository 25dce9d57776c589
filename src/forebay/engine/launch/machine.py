"""What this process may use of the machine, and what its processor can do."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from forebay.engine.launch.spec import GIB, parse_cores
from forebay.errors import SettingError

CGROUP = Path("/sys/fs/cgroup")
CPUINFO = Path("/proc/cpuinfo")
TOPOLOGY = Path("/sys/devices/system/cpu")
MAX_CPUINFO_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor as the system describes it. `features` is empty where the system does not tell."""

    architecture: str
    name: str = ""
    features: frozenset[str] = frozenset()

    @property
    def has_bfloat16(self) -> bool:
        """Whether it says that it multiplies bfloat16 numbers itself."""
        return bool(self.features & {"avx512_bf16", "amx_bf16", "bf16"})


def read_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """The first processor in `cpuinfo`, which is empty where it cannot be read."""
    values: dict[str, str] = {}
    try:
        with cpuinfo.open("rb") as file:
            lines = file.read(MAX_CPUINFO_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    features = values.get("flags", values.get("Features", ""))
    return Processor(platform.machine(), values.get("model name", ""), frozenset(features.split()))


def usable_cores() -> tuple[int, ...]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def physical_cores(cores: Iterable[int], topology: Path = TOPOLOGY) -> int:
    """How many processor cores stand behind the core numbers: two threads of one core count once."""
    return len({_siblings(core, topology) for core in cores})


def core_quota(cgroup: Path = CGROUP) -> int | None:
    """How many whole cores' time a container may take, at least 1; None where it has no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def available_memory_gib(cgroup: Path = CGROUP) -> float:
    """Memory that can be had without swapping, in GiB, within the container's limit where there is one."""
    available = psutil.virtual_memory().available
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return float(available) / GIB
    return float(min(available, max(0, limit - used))) / GIB


def _siblings(core: int, topology: Path) -> tuple[int, ...]:
    try:
        return parse_cores((topology / f"cpu{core}" / "topology" / "thread_siblings_list").read_text())
    except (OSError, SettingError):
        return (core,)
