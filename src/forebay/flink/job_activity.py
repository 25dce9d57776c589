"""What a job has to commit, and its checkpoints: in this process's JVM, or over REST."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.common import JobClient
from pyflink.java_gateway import get_gateway

from forebay.errors import LaunchError
from forebay.flink.job import JvmGone, java_cause
from forebay.flink.job_marks import ANSWERED, READ, mark_name
from forebay.flink.rest import FlinkRest

log = logging.getLogger(__name__)

LOOK_MS = 1000
NOISY = {
    "org.apache.flink.metrics.MetricGroup": "ERROR",
    "org.apache.flink.runtime.checkpoint.CheckpointCoordinator": "WARN",
    "org.apache.flink.runtime.jobmaster.JobMaster": "WARN",
    "org.apache.flink.runtime.source.coordinator.SourceCoordinator": "WARN",
}
"""Loggers that write with each checkpoint (200 MB a day), and their minimum level."""


NOT_ALL_RUN = "Not all required tasks are currently running"


class CheckpointEnd(Enum):
    COMPLETE = "complete"
    FAILED = "failed"
    STARTING = "starting"
    RESTARTING = "restarting"


def _failed(cause: str, state: str) -> CheckpointEnd:
    if state != "RUNNING":
        return CheckpointEnd.RESTARTING
    return CheckpointEnd.STARTING if NOT_ALL_RUN in cause else CheckpointEnd.FAILED


class EmbeddedActivity:
    """A `JobActivity` in this JVM, from before the job to after its end. Methods raise `JvmGone`."""

    def __init__(self, job: str) -> None:
        jvm = get_gateway().jvm
        log4j = jvm.org.apache.logging.log4j
        for name, level in NOISY.items():
            log4j.core.config.Configurator.setLevel(name, log4j.Level.valueOf(level))
        java = jvm.java
        self._properties = java.lang.System.getProperties()
        self._milliseconds = java.util.concurrent.TimeUnit.MILLISECONDS
        self._closed = False
        self._names = tuple(mark_name(job, what) for what in (ANSWERED, READ))
        self._answered, self._read = (java.util.concurrent.Semaphore(0) for _ in self._names)
        for name, marks in zip(self._names, (self._answered, self._read), strict=True):
            self._properties.put(name, marks)
        self._cluster: Any = None

    def submitted(self, client: JobClient) -> None:
        java = client._j_job_client
        field = java.getClass().getDeclaredField("miniCluster")
        field.setAccessible(True)
        self._cluster = field.get(java)
        self._job = java.getJobID()
        self._type = get_gateway().jvm.org.apache.flink.core.execution.CheckpointType.CONFIGURED

    def await_answer(self, timeout_s: float) -> bool:
        with _jvm_lives():
            return bool(self._answered.tryAcquire(1, max(0, round(timeout_s * 1000)), self._milliseconds))

    def take_answers(self) -> None:
        with _jvm_lives():
            self._answered.drainPermits()

    def take_reads(self) -> bool:
        with _jvm_lives():
            return int(self._read.drainPermits()) > 0

    def wake(self) -> None:
        self._closed = True
        with _jvm_lives():
            self._answered.release()

    def trigger(self) -> CheckpointEnd:
        with _jvm_lives():
            try:
                done = self._cluster.triggerCheckpoint(self._job, self._type)
                while not self._closed:
                    if self._has_ended(done):
                        return CheckpointEnd.COMPLETE
            except Py4JJavaError as error:
                # Also if the job has ended.
                log.info("a checkpoint failed: %s", java_cause(error))
                return _failed(str(error), self._state())
            return CheckpointEnd.FAILED

    def _state(self) -> str:
        try:
            return str(self._cluster.getJobStatus(self._job).get(LOOK_MS, self._milliseconds).name())
        except Py4JJavaError:
            return "RUNNING"  # Not known: the checkpoint counts as failed.

    def _has_ended(self, checkpoint: Any) -> bool:
        try:
            checkpoint.get(LOOK_MS, self._milliseconds)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "TimeoutException":
                raise
            return False
        return True

    def close(self) -> None:
        with suppress(Py4JError, OSError):
            for name in self._names:
                self._properties.remove(name)


@contextmanager
def _jvm_lives() -> Iterator[None]:
    try:
        yield
    except (Py4JError, OSError) as error:
        raise JvmGone(f"the JVM that ran the job is gone ({type(error).__name__})") from None


POLL_S = 0.05


class WatchedActivity:
    """A `JobActivity` of several task managers: call `look` with the job's counts each time they are read."""

    def __init__(self, rest: FlinkRest, job: str) -> None:
        self._rest = rest
        self._job = job
        self._path = f"/jobs/{job}/checkpoints"
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._read = self._answered = False
        self._counts = (0, 0)

    def look(self, read: int, answered: int) -> None:
        with self._changed:
            self._read |= read != self._counts[0]
            self._answered |= answered != self._counts[1]
            self._counts = read, answered
            self._changed.notify_all()

    def await_answer(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._answered or self._closed.is_set(), timeout_s)

    def take_answers(self) -> None:
        with self._changed:
            self._answered = False

    def take_reads(self) -> bool:
        with self._changed:
            read, self._read = self._read, False
            return read

    def wake(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def trigger(self) -> CheckpointEnd:
        try:
            return self._triggered()
        except LaunchError as error:
            # Flink may answer again; the end of its job is noticed elsewhere.
            log.info("a checkpoint failed: %s", error)
            return CheckpointEnd.FAILED

    def _triggered(self) -> CheckpointEnd:
        begun = self._rest.json(self._path, "POST", {"checkpointType": "CONFIGURED"})
        path = f"{self._path}/{begun['request-id']}"
        while not self._closed.wait(POLL_S):
            found = self._rest.json(path)
            if found["status"]["id"] == "COMPLETED":
                failure = found["operation"].get("failureCause")
                if failure is None:
                    return CheckpointEnd.COMPLETE
                log.info("a checkpoint failed: %s", failure.get("class"))
                state = self._rest.json(f"/jobs/{self._job}/status")["status"]
                return _failed(str(failure.get("stack-trace")), str(state))
        return CheckpointEnd.FAILED
