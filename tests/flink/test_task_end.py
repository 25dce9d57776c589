"""A task that fails or is cancelled leaves no threads, and nothing in memory."""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import weakref
from contextlib import suppress
from pathlib import Path

import pytest
from tests.flink.test_inference import Make, events

from forebay.flink.java import java_home
from forebay.flink.task_end import OpenFunctions
from forebay.testing import wait_until

OPERATOR = re.compile(
    r" (\d+) +\d+ +org\.apache\.flink\.\S+\.EmbeddedPythonKeyedProcessOperator(?: |$)", re.M
)
RESTARTS = 6


def jvm() -> int:
    from pyflink.java_gateway import get_gateway

    return int(get_gateway().jvm.java.lang.ProcessHandle.current().pid())


def live_operators() -> int:
    """Those that a full collection finds reachable, including those of job graphs."""
    command = [str(java_home() / "bin" / "jcmd"), str(jvm()), "GC.class_histogram"]
    found = OPERATOR.search(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return 0 if found is None else int(found[1])


def call_threads() -> set[str]:
    found = set()
    for path in Path(f"/proc/{jvm()}/task").glob("*/comm"):
        # Others end meanwhile.
        with suppress(OSError):
            if path.read_text() == "forebay-calls\n":
                found.add(path.parent.name)
    return found


@pytest.mark.flink
def test_restarts_leave_no_operators_in_memory(make_runs: Make) -> None:
    from forebay.flink.environment import Restart

    runs = make_runs(follow=True)
    runs.feed(events(0, 20))
    job = runs.start(restart=Restart(attempts=100, delay_s=0.1))
    wait_until(lambda: len(runs.results()) == 20)
    before = live_operators()
    runs.feed([{"n": 20, "text": "event 20 ((defect:mended))"}])
    wait_until(lambda: job.restarts() >= RESTARTS)
    runs.release("mended")
    wait_until(lambda: len(runs.results()) == 21)
    # Finalizers keep some until a second collection.
    wait_until(lambda: live_operators() - before < RESTARTS / 2)
    runs.stop(job)


@pytest.mark.flink
def test_calls_of_a_cancelled_task_end(make_runs: Make) -> None:
    runs = make_runs(follow=True)
    before = call_threads()
    runs.feed(events(0, 1, hold="a"))
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 1)
    own = call_threads() - before
    assert own
    job.cancel()
    wait_until(lambda: not own & call_threads())


class Function:
    def __init__(self) -> None:
        self.itself = self
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_function_is_closed_with_its_task_and_freed_before_the_next_one() -> None:
    functions, function = OpenFunctions(), Function()
    number = functions.add(function.close)
    functions.end(number)
    assert function.closed == 1
    left = weakref.ref(function)
    gc.disable()
    try:
        del function
        functions.collect()
        assert left() is None
    finally:
        gc.enable()


def test_an_error_while_closing_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def close(self) -> None:
            raise OSError("the disk is full")

    functions, broken = OpenFunctions(), Broken()
    with caplog.at_level(logging.ERROR):
        functions.end(functions.add(broken.close))
    assert "the disk is full" in caplog.text
