"""What a job of an embedded Flink has to commit, and its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.common import JobClient
from pyflink.java_gateway import get_gateway

from forebay.flink.activity import ANSWERED, READ, mark_name
from forebay.flink.job import JvmGone, java_cause

log = logging.getLogger(__name__)

LOOK_MS = 1000
"""A wait for a checkpoint ends this long after the job's end at the latest."""
NOISY = {
    "org.apache.flink.metrics.MetricGroup": "ERROR",
    "org.apache.flink.runtime.checkpoint.CheckpointCoordinator": "WARN",
    "org.apache.flink.runtime.jobmaster.JobMaster": "WARN",
    "org.apache.flink.runtime.source.coordinator.SourceCoordinator": "WARN",
}
"""Loggers that write with each checkpoint, with the level from which they may: 200 MB a day."""


class EmbeddedActivity:
    """What `job` has to commit, and its checkpoints, in this process's JVM. Create it before the job's
    submission, and close it after the job's end. Methods raise `JvmGone`.
    """

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
        """Call it before `trigger`."""
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

    def trigger(self) -> bool:
        with _jvm_lives():
            try:
                done = self._cluster.triggerCheckpoint(self._job, self._type)
                while not self._closed:
                    if self._has_ended(done):
                        return True
            except Py4JJavaError as error:
                # Also if the job has ended.
                log.info("a checkpoint failed: %s", java_cause(error))
            return False

    def _has_ended(self, checkpoint: Any) -> bool:
        try:
            checkpoint.get(LOOK_MS, self._milliseconds)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "TimeoutException":
                raise
            return False
        return True

    def close(self) -> None:
        """Does nothing if the JVM is gone."""
        with suppress(Py4JError, OSError):
            for name in self._names:
                self._properties.remove(name)


@contextmanager
def _jvm_lives() -> Iterator[None]:
    try:
        yield
    except (Py4JError, OSError) as error:
        raise JvmGone(f"the JVM that ran the job is gone ({type(error).__name__})") from None
