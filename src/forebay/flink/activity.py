"""Marks that a job has something to commit, for the process that triggers its checkpoints.

Both share the JVM of an embedded Flink: two semaphores among Java's system properties; permits are marks.
"""

from __future__ import annotations

import logging
from typing import Any

from pyflink.datastream import RuntimeContext

from forebay.flink.java_objects import find_class

log = logging.getLogger(__name__)

ANSWERED, READ = "answered", "read"


def mark_name(job: str, what: str) -> str:
    return f"forebay.{job}.{what}"


class ActivityMarks:
    """For a function inside Flink's JVM, on its thread. If nobody waits for them, marks do nothing."""

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._answered: Any = None
        self._read: Any = None
        java = getattr(runtime_context, "_runtime_context", None)
        if java is None:
            return
        try:
            job = java.getJobInfo().getJobId().toString()
            held = find_class("java.lang.System").getProperties()
            self._answered, self._read = held.get(mark_name(job, ANSWERED)), held.get(mark_name(job, READ))
        except Exception as error:
            log.warning("results wait for checkpoint.interval_s, because answers are not marked: %s", error)

    def answered(self) -> None:
        """A result or dead letter was emitted."""
        if self._answered is not None:
            self._answered.release()

    def read(self) -> None:
        """An event was taken."""
        if self._read is not None:
            self._read.release()
