"""What a job of several task managers has to commit, by its counts, and its checkpoints over REST."""

from __future__ import annotations

import logging
import threading

from forebay.errors import LaunchError
from forebay.flink.rest import FlinkRest

log = logging.getLogger(__name__)

POLL_S = 0.05


class WatchedActivity:
    """Call `look` with the job's counts each time they are read; the rest is as in `JobActivity`."""

    def __init__(self, rest: FlinkRest, job: str) -> None:
        self._rest = rest
        self._path = f"/jobs/{job}/checkpoints"
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._read = self._answered = False
        self._counts = (0, 0)

    def look(self, read: int, answered: int) -> None:
        """`read` events and `answered` results and dead letters so far."""
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

    def trigger(self) -> bool:
        try:
            return self._triggered()
        except LaunchError as error:
            # Flink may answer again; the end of its job is noticed elsewhere.
            log.info("a checkpoint failed: %s", error)
            return False

    def _triggered(self) -> bool:
        begun = self._rest.json(self._path, "POST", {"checkpointType": "CONFIGURED"})
        path = f"{self._path}/{begun['request-id']}"
        while not self._closed.wait(POLL_S):
            found = self._rest.json(path)
            if found["status"]["id"] == "COMPLETED":
                failure = found["operation"].get("failureCause")
                if failure is not None:
                    log.info("a checkpoint failed: %s", failure.get("class"))
                return failure is None
        return False
