"""Processor and memory of processes with their children, and figures of GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from forebay.bench import resources
from forebay.bench.resources import (
    ENDED,
    Gpu,
    GpuResources,
    NvmlGpu,
    ProcessorUse,
    ProcessResources,
    ProcessUse,
    check_proc,
    disturbed,
    process_use,
    processor_use,
    used_between,
)
from forebay.errors import LaunchError, SetupError
from forebay.processes import name_thread
from forebay.testing.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


def write_stat(path: Path, name: str, user_ticks: int, system_ticks: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"7 ({name}) S 1 7 7 0 -1 4194304 99 0 0 0 {user_ticks} {system_ticks} 50 60 20 0 2 0\n"
    path.write_text(text, errors="surrogateescape")


def test_a_process_is_read_from_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    write_stat(folder / "stat", "java", 5 * TICKS_PER_S, TICKS_PER_S)
    write_stat(folder / "task" / "7" / "stat", "java", TICKS_PER_S, 0)
    # A name may look like the fields after it.
    write_stat(folder / "task" / "8" / "stat", "a) S 1 (b", 2 * TICKS_PER_S, TICKS_PER_S)
    # Nor is it always text.
    write_stat(folder / "task" / "10" / "stat", "b\udcff", 0, TICKS_PER_S)
    (folder / "task" / "9").mkdir()  # It ended while being read.
    (folder / "smaps_rollup").write_text(
        "0001-f001 ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nPss:  1000 kB\nPss_Dirty:  7 kB\n"
    )
    found = process_use(7, tmp_path)
    assert found.processor_s == 6.0
    assert found.threads == {7: ("java", 1.0), 8: ("a) S 1 (b", 3.0), 10: ("b\ufffd", 1.0)}
    assert found.memory_mb == 1.024


def test_a_process_that_has_ended_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="process 7"):
        process_use(7, tmp_path)


def test_a_system_without_proc_is_reported(tmp_path: Path) -> None:
    for half in ("task", "memory"):
        (tmp_path / half / "self").mkdir(parents=True)
    (tmp_path / "task" / "self" / "task").mkdir()
    (tmp_path / "memory" / "self" / "smaps_rollup").touch()
    for half in ("task", "memory"):
        with pytest.raises(SetupError, match="Linux"):
            check_proc(tmp_path / half)
    with pytest.raises(SetupError, match="Linux"):
        check_proc(tmp_path)


def test_usage_is_reported_by_name_including_ended_processes() -> None:
    before = ProcessUse(10.0, 1.0, {1: ("a", 4.0), 2: ("b", 3.0), 3: ("b", 2.0)})
    after = ProcessUse(16.0, 1.0, {1: ("a", 5.0), 3: ("b", 4.0), 4: ("b", 0.5)})
    assert used_between(before, after) == {"a": 1.0, "b": 2.5, ENDED: 2.5}
    # The sum over threads may be some ticks above that of the process.
    assert used_between(before, ProcessUse(10.0, 1.0, {1: ("a", 4.01)}))[ENDED] == 0.0


@linux
def test_a_thread_that_python_named_is_found_under_its_name() -> None:
    check_proc()
    ended = threading.Event()

    def work() -> None:
        name_thread("a name that is cut")
        while not ended.is_set():
            sum(range(1000))

    def seen() -> bool:
        return any(
            name == "a name that is " and s > 0 for name, s in process_use(os.getpid()).threads.values()
        )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(seen)
    finally:
        ended.set()
        thread.join()


WORK_S = 0.3


def test_usage_of_others_is_the_remainder() -> None:
    before, after = ProcessorUse(100.0, 50.0, 20.0), ProcessorUse(110.0, 65.0, 30.0)
    assert before.others_cores(after) == 0.5
    # Two clocks: what this process used may be counted later than what the machine did.
    assert before.others_cores(ProcessorUse(110.0, 55.0, 30.0)) == 0.0


@pytest.mark.heavy
def test_usage_of_child_processes_counts() -> None:
    def used_s() -> float:
        return processor_use().own_s

    before_s = used_s()
    program = f"import time\nwhile time.process_time() < {WORK_S}: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert used_s() - before_s >= WORK_S * 0.9
        child.kill()


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


def test_unreported_gpu_values_are_omitted() -> None:
    gpu = NvmlGpu(Nvml(), object(), "580")
    assert (gpu.name, gpu.driver) == ("NVIDIA H100", "580")
    assert gpu.read() == {"busy": 0.25, "memory_mb": 2.0}


@pytest.mark.heavy
def test_machine_time_is_monotonic() -> None:
    before = processor_use()
    begin_s = time.process_time()
    while time.process_time() - begin_s < WORK_S:
        pass
    wait_until(lambda: processor_use().all_s - before.all_s >= WORK_S * 0.5)


def test_cores_that_may_not_be_used_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "usable_cores", lambda: ())
    assert processor_use().all_s == 0


def test_a_tenth_is_allowed() -> None:
    assert disturbed(0.1 * 4, 4) is None
    assert disturbed(0.1 * 4 + 0.01, 4) is not None


@linux
def test_a_process_that_has_ended_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ProcessResources({"gone": process.pid})() == {}
