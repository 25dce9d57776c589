"""Processor, memory and GPU use during a load."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from forebay.bench.processor import check_proc, process_use
from forebay.errors import LaunchError
from forebay.processes import descendants


class ProcessResources:
    """A `Source` for processes, each with its descendants: `NAME_cores` (mean since the previous reading;
    absent in the first) and `NAME_memory_mb` (10^6 bytes, shared pages by proportion).

    Ended processes are absent. Raises `SetupError` if the system does not report these values.
    """

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
    """One GPU's values from NVML; see `gpus`."""

    name: str
    driver: str

    def read(self) -> Mapping[str, float]: ...


class GpuResources:
    """A `Source`: for GPU i `gpu{i}_busy` (share of about the last second in which a kernel ran),
    `gpu{i}_memory_mb` (10^6 bytes in use) and `gpu{i}_power_w`. Empty without GPUs."""

    def __init__(self, found: tuple[Gpu, ...] | None = None) -> None:
        self._gpus = gpus() if found is None else found

    def __call__(self) -> Mapping[str, float]:
        return {
            f"gpu{index}_{name}": value
            for index, gpu in enumerate(self._gpus)
            for name, value in gpu.read().items()
        }


def gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, by NVML; empty without a GPU or without the package `nvidia-ml-py`."""
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
