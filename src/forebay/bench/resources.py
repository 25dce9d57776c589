"""Use of processor, memory and GPUs, by the measured processes and by other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from forebay.engine.launch.spec import usable_cores
from forebay.errors import LaunchError, SetupError
from forebay.processes import descendants

PROC = Path("/proc")
ROLLUP = "smaps_rollup"
ENDED = "ended threads"
USER_TICKS, SYSTEM_TICKS = 11, 12
"""Positions in a `stat` file, counted from the field after the name."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Since the process started. `threads`: processor seconds of living ones. `memory_mb`: PSS in 10^6
    bytes."""

    processor_s: float
    memory_mb: float
    threads: Mapping[int, tuple[str, float]]


def check_proc(proc: Path = PROC) -> None:
    """Raise `SetupError` if this system does not report processor times of threads."""
    if not (proc / "self" / "task").is_dir() or not (proc / "self" / ROLLUP).is_file():
        raise SetupError(
            f"the processor time of threads is read from {proc}, which this system does not have: measure "
            f"on Linux"
        )


def process_use(pid: int, proc: Path = PROC) -> ProcessUse:
    """Raises `LaunchError` if the process has ended."""
    folder = proc / str(pid)
    try:
        _, processor_s = _stat(folder / "stat")
        share = next(line for line in (folder / ROLLUP).read_text().splitlines() if line.startswith("Pss:"))
        numbers = [int(entry.name) for entry in (folder / "task").iterdir()]
    except (OSError, StopIteration):
        raise LaunchError(f"the process {pid}, which was measured, has ended") from None
    threads = {}
    for number in numbers:
        with suppress(OSError):
            threads[number] = _stat(folder / "task" / str(number) / "stat")
    return ProcessUse(processor_s, int(share.split()[1]) * 1024 / 1e6, threads)


def used_between(before: ProcessUse, after: ProcessUse) -> dict[str, float]:
    found: dict[str, float] = {}
    for number, (name, processor_s) in after.threads.items():
        began_s = before.threads[number][1] if number in before.threads else 0.0
        found[name] = found.get(name, 0.0) + processor_s - began_s
    left_s = after.processor_s - before.processor_s - sum(found.values())
    return {**found, ENDED: max(0.0, left_s)}


def _stat(path: Path) -> tuple[str, float]:
    head, _, rest = path.read_text(errors="replace").rpartition(")")
    values = rest.split()
    ticks = int(values[USER_TICKS]) + int(values[SYSTEM_TICKS])
    return head.partition("(")[2], ticks / os.sysconf("SC_CLK_TCK")


MAX_SHARE = 0.1
"""A run is invalid if others used more than this share of the processor."""


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Processor seconds since boot: of all usable cores, with time stolen by the host; and our own."""

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


class ProcessResources:
    """A `Source`: `NAME_cores` (mean since the previous reading) and `NAME_memory_mb` (10^6 bytes, PSS),
    with descendants. Ended processes are absent."""

    def __init__(self, processes: Mapping[str, int], *, now_s: Callable[[], float] = time.monotonic) -> None:
        check_proc()
        self._processes = processes
        self._now_s = now_s
        self._before: dict[str, tuple[float, dict[int, float]]] = {}

    def __call__(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for name, pid in self._processes.items():
            used_s, memory_mb = {}, 0.0
            for each in (pid, *(child.pid for child in descendants(pid))):
                try:
                    use = process_use(each)
                except LaunchError:
                    continue
                used_s[each] = use.processor_s
                memory_mb += use.memory_mb
            if not used_s:
                continue
            now_s = self._now_s()
            found[f"{name}_memory_mb"] = memory_mb
            if name in self._before and now_s > self._before[name][0]:
                before_s, before = self._before[name]
                # What a process used before it ended is lost.
                worked_s = sum(used - before.get(each, 0.0) for each, used in used_s.items())
                found[f"{name}_cores"] = worked_s / (now_s - before_s)
            self._before[name] = (now_s, used_s)
        return found


class Gpu(Protocol):
    name: str
    driver: str

    def read(self) -> Mapping[str, float]: ...


class GpuResources:
    """A `Source`: `gpu0_busy` (share of the last second), `gpu0_memory_mb` (10^6 bytes), `gpu0_power_w`."""

    def __init__(self, found: tuple[Gpu, ...] | None = None) -> None:
        self._gpus = gpus() if found is None else found

    def __call__(self) -> Mapping[str, float]:
        return {
            f"gpu{index}_{name}": value
            for index, gpu in enumerate(self._gpus)
            for name, value in gpu.read().items()
        }


def gpus() -> tuple[Gpu, ...]:
    """Empty without a GPU or without the package `nvidia-ml-py`."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(NvmlGpu(pynvml, handle, driver) for handle in handles)
    except pynvml.NVMLError:
        return ()


class NvmlGpu:
    def __init__(self, nvml: Any, handle: Any, driver: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self.driver = driver
        self.name = _text(nvml.nvmlDeviceGetName(handle))

    def read(self) -> Mapping[str, float]:
        nvml, handle = self._nvml, self._handle
        readings: Mapping[str, Callable[[], float]] = {
            "busy": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "memory_mb": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }
        found = {}
        for name, read in readings.items():
            try:
                found[name] = float(read())
            except nvml.NVMLError:
                continue
        return found


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
