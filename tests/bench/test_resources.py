"""Processor and memory of processes with their children, and figures of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from forebay.bench.resources import Gpu, GpuResources, NvmlGpu, ProcessResources
from forebay.testing.waiting import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
CHILD = "import sys\nprint(flush=True)\nwhile True: pass"
PARENT = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {CHILD!r}])\nchild.wait()"


@linux
def test_a_process_is_read_with_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            moments = iter(range(10_000))
            read = ProcessResources({"server": process.pid}, now_s=lambda: float(next(moments)))
            first = read()
            assert set(first) == {"server_memory_mb"}
            assert first["server_memory_mb"] > 2
            wait_until(lambda: read()["server_cores"] > 0)
        finally:
            os.killpg(process.pid, 9)


@linux
def test_a_process_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ProcessResources({"gone": process.pid})() == {}


class OneGpu:
    name = "a GPU"
    driver = "1"

    def __init__(self, **values: float) -> None:
        self._values = values

    def read(self) -> Mapping[str, float]:
        return self._values


def test_gpus_are_reported_by_their_number() -> None:
    both: tuple[Gpu, ...] = (OneGpu(busy=0.5, memory_mb=10.0), OneGpu(power_w=7.0))
    assert GpuResources(both)() == {"gpu0_busy": 0.5, "gpu0_memory_mb": 10.0, "gpu1_power_w": 7.0}
    assert GpuResources(())() == {}


class Nvml:
    """A GPU that does not report its power."""

    class NVMLError(Exception):
        pass

    class Rates:
        gpu = 25

    class Memory:
        used = 2_000_000

    def nvmlDeviceGetName(self, handle: object) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Rates:
        return self.Rates()

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Memory:
        return self.Memory()

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        raise self.NVMLError


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    gpu = NvmlGpu(Nvml(), object(), "580")
    assert (gpu.name, gpu.driver) == ("NVIDIA H100", "580")
    assert gpu.read() == {"busy": 0.25, "memory_mb": 2.0}
