"""Task managers are started again when they end, and none is left behind."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from forebay.errors import LaunchError
from forebay.flink import task_managers
from forebay.flink.task_managers import TaskManagers
from forebay.testing.waiting import wait_until


class FakeProcess:
    """One that runs until it is killed."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.gone = threading.Event()

    def kill(self) -> None:
        self.returncode = -9
        self.gone.set()


class FakeJvm:
    """A JVM that dies as it is connected to."""

    def __init__(self) -> None:
        self.process = FakeProcess()
        self.ended = False

    def open_gateway(self) -> Any:
        self.process.gone.wait()
        raise LaunchError("gone")

    def end(self) -> None:
        self.ended = True


class Launched:
    """All JVMs that were launched, by name."""

    def __init__(self) -> None:
        self.jvms: dict[str, FakeJvm] = {}

    def __call__(self, *, beside: str) -> Any:
        self.jvms[beside] = FakeJvm()
        return self.jvms[beside]

    def running(self) -> Counter[str]:
        """How many run, by the task manager that they are."""
        return Counter(
            name.rpartition("-")[0] for name, jvm in self.jvms.items() if jvm.process.returncode is None
        )


def test_each_that_ends_is_started_again_until_the_block_ends() -> None:
    launched = Launched()
    both = {"task-manager-1": 1, "task-manager-2": 1}
    with TaskManagers(2, launched, {}):
        wait_until(lambda: launched.running() == both)
        launched.jvms["task-manager-1-1"].process.kill()
        wait_until(lambda: len(launched.jvms) == 3)
        wait_until(lambda: launched.running() == both)
        assert launched.jvms["task-manager-1-1"].ended
    assert not launched.running()
    assert all(jvm.ended for jvm in launched.jvms.values())
    assert sorted(launched.jvms) == ["task-manager-1-1", "task-manager-1-2", "task-manager-2-1"]


def test_one_that_keeps_ending_is_started_after_ever_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, pauses = Launched(), []
    many = TaskManagers(1, launched, {})

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 8:
            many._closed.set()
        return True

    def dies(jvm: FakeJvm) -> Any:
        jvm.process.kill()
        raise LaunchError("gone")

    monkeypatch.setattr(many._closed, "wait", pause)
    monkeypatch.setattr(FakeJvm, "open_gateway", dies)
    with many:
        wait_until(lambda: len(pauses) == 8)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, task_managers.LONGEST_PAUSE_S, 30.0]
