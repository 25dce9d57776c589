"""Task managers are restarted when they end, and none is left running."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.harness.clock import ManualClock

from forebay.errors import LaunchError
from forebay.flink import task_managers
from forebay.flink.task_managers import TaskManagers
from forebay.testing.waiting import wait_until


class FakeProcess:
    def __init__(self) -> None:
        self.returncode: int | None = None
        self.gone = threading.Event()

    def kill(self) -> None:
        self.returncode = -9
        self.gone.set()


class FakeJvm:
    """A JVM that dies when it is connected."""

    def __init__(self) -> None:
        self.process = FakeProcess()
        self.ended = False

    def open_gateway(self) -> Any:
        self.process.gone.wait()
        raise LaunchError("gone")

    def end(self) -> None:
        self.ended = True


class Launched:
    def __init__(self, kind: type[FakeJvm] = FakeJvm) -> None:
        self.jvms: dict[str, FakeJvm] = {}
        self._kind = kind

    def __call__(self, *, suffix: str) -> Any:
        self.jvms[suffix] = self._kind()
        return self.jvms[suffix]

    def running(self) -> Counter[str]:
        """Number of running JVMs per task manager."""
        return Counter(
            name.rpartition("-")[0] for name, jvm in self.jvms.items() if jvm.process.returncode is None
        )


def test_ended_task_managers_restart_within_the_block(caplog: pytest.LogCaptureFixture) -> None:
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
    assert [record.getMessage() for record in caplog.records] == [
        "task manager 1 ended with status -9: it is started again"
    ]


class Answers(FakeJvm):
    """A JVM that answers, and runs as a task manager until it is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, str] | None = None

    def open_gateway(self) -> Any:
        gateway = MagicMock()
        flink = gateway.jvm.org.apache.flink
        flink.configuration.Configuration.fromMap = dict

        def serve(options: dict[str, str]) -> None:
            self.options = options
            self.process.gone.wait()

        flink.runtime.taskexecutor.TaskManagerRunner.runTaskManagerProcessSecurely = serve
        return gateway


def test_task_managers_register_with_the_job_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, begun, imported = Launched(Answers), threading.Event(), list[Sequence[str]]()
    monkeypatch.setattr(task_managers, "import_ahead", lambda _java, more: imported.append(more))
    managers = TaskManagers(1, launched, {"a": "b"}, ("jsonschema",))
    wait = managers._begun.wait

    def waits() -> bool:
        begun.set()
        return wait()

    managers._begun.wait = waits  # type: ignore[assignment]
    with managers:
        assert begun.wait(20.0)
        jvm: Any = launched.jvms["task-manager-1-1"]
        assert jvm.options is None
        managers.begin()
        wait_until(lambda: jvm.options == {"a": "b"} and imported == [("jsonschema",)])
    assert jvm.ended


def test_waiting_task_managers_end_with_the_block() -> None:
    launched = Launched(Answers)
    with TaskManagers(2, launched, {}):
        wait_until(lambda: len(launched.jvms) == 2)
    assert all(jvm.ended for jvm in launched.jvms.values())


def test_no_launch_while_the_block_ends() -> None:
    launched, locked = Launched(), list[bool]()

    def launch(*, suffix: str) -> Any:
        locked.append(managers._lock.locked())
        return launched(suffix=suffix)

    managers = TaskManagers(1, launch, {})
    with managers:
        wait_until(lambda: len(launched.jvms) == 1)
    assert locked == [True]


FAILS = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, task_managers.LONGEST_PAUSE_S, 30.0]


@pytest.mark.parametrize(
    ("lasted_s", "expected"),
    [
        ([1.0] * 8, FAILS),
        ([1.0, 1.0, 1.0, 60.0, 1.0, 1.0], [0.0, 1.0, 2.0, 0.0, 0.0, 1.0]),
        ([59.9] * 3, [0.0, 1.0, 2.0]),
    ],
)
def test_repeated_ends_lengthen_the_restart_pause(
    lasted_s: list[float], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, pauses, clock = Launched(), list[float](), ManualClock()
    lasts = iter(lasted_s)
    many = TaskManagers(1, launched, {})

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == len(lasted_s):
            many._closed.set()
        return True

    def dies(jvm: FakeJvm) -> Any:
        clock.advance(next(lasts))
        jvm.process.kill()
        raise LaunchError("gone")

    monkeypatch.setattr(task_managers.time, "monotonic", clock.monotonic_s)
    monkeypatch.setattr(many._closed, "wait", pause)
    monkeypatch.setattr(FakeJvm, "open_gateway", dies)
    with many:
        many._threads[0].join(20.0)
    assert pauses == expected
    assert len(launched.jvms) == len(expected), "none is started after the end"
