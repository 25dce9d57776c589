"""Processor time of threads from the system's files, by name, including ended threads."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from forebay.bench.resources import ENDED, ProcessUse, check_proc, process_use, used_between
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


def test_use_is_reported_by_name_and_what_ended_is_not_lost() -> None:
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
