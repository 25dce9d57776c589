"""Measures how much processor other programs used during a measurement."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from forebay.engine.launch.spec import usable_cores
from forebay.processes import descendants

MAX_SHARE = 0.1
"""A run is invalid if others used more than this share of the processor."""


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Processor seconds since boot: `all_s` on the cores that this process may use, including time stolen by
    the host; `own_s` of this process and its descendants."""

    at_s: float
    all_s: float
    own_s: float

    def others_cores(self, later: ProcessorUse) -> float:
        others_s = (later.all_s - self.all_s) - (later.own_s - self.own_s)
        return max(0.0, others_s / max(later.at_s - self.at_s, 1e-9))


def own_use() -> dict[psutil.Process, float]:
    """Processor seconds of this process and of each living descendant."""
    used = {}
    for process in (psutil.Process(), *descendants(os.getpid())):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used[process] = times.user + times.system
    return used


def processor_use() -> ProcessorUse:
    own_s = sum(own_use().values())
    cores = psutil.cpu_times(percpu=True)
    # `guest` time is part of `user` and `nice`.
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    used = (getattr(cores[core], name, 0.0) for core in usable_cores() if core < len(cores) for name in names)
    return ProcessorUse(time.monotonic(), sum(used), own_s)


def disturbed(others_cores: float, cores: int) -> str | None:
    if others_cores <= MAX_SHARE * cores:
        return None
    return (
        f"other programs kept {others_cores:.2f} of {cores} cores busy meanwhile; end them, and measure again"
    )
