"""A pipeline's state in an object store, available to every machine.

`PREFIX/run.json` is the record of the runs, `PREFIX/lock` the active run's lease; Flink writes to
`PREFIX/JOB/`. A job whose run did not release the lease is fenced: objects occupy the names of its next
checkpoints and savepoints, so Flink fails to complete them.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from forebay.clients.s3.client import Changed, Entry, S3Client, StoreAway, StoreRefused
from forebay.clients.s3.location import Location, S3Path, s3_path
from forebay.clients.s3.lock import LEASE_S, MAX_LOCK_BYTES, Fenced, HeldLock, held_lock
from forebay.clock import Clock, SystemClock
from forebay.flink.checkpoints import (
    END_MARK,
    END_NOTE,
    HEADER,
    JOB_DIRECTORY,
    LOCK,
    MAX_DRAINS,
    METADATA,
    NUMBERED,
    Checkpoint,
    Contents,
    drain_folder,
    is_drain,
    number_in,
)
from forebay.pipeline.state_store import FILE, MAX_BYTES, RunRecordBroken, RunState, decode_state

log = logging.getLogger(__name__)

FENCES = 128
"""Checkpoint numbers to occupy. If all its checkpoints fail, a job ends after 121: ten restarts, each after
11 consecutive failures.
"""
FENCE_KEPT_S = 30 * 86_400.0
"""A machine may be suspended for days."""
AT_A_TIME = 16
MAX_METADATA_BYTES = 256 << 20
PATIENCE_S = 120.0
PAUSE_S = 1.0
IN_CHECKPOINT = re.compile(r"(chk-(\d+))/.*")
IN_DRAIN = re.compile(r"(drain-\d+/savepoint-[^/]+)/.*")


class S3Store:
    def __init__(
        self, home: S3Path, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.home = home
        self._client = S3Client(home.bucket)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._hold: HeldLock | None = None
        self._record: str | None = None

    @contextmanager
    def lock(self, pipeline: str) -> Iterator[None]:
        with held_lock(self.home / LOCK, pipeline, clock=self._clock, sleep=self._sleep) as hold:
            self._hold = hold
            try:
                yield
            finally:
                self._hold = None

    def running(self) -> bool:
        def renewal() -> str | None:
            found = self._client.get(self._key(LOCK), MAX_LOCK_BYTES)
            return None if found is None else found.etag

        before = renewal()
        if before is None:
            return False
        self._sleep(LEASE_S)
        return renewal() != before

    def check_held(self) -> None:
        if self._hold is not None:
            self._hold.check()

    def report_renewals(self, report: Callable[[float], None]) -> None:
        if self._hold is not None:
            self._hold.report_renewals(report)

    def held_until_s(self) -> float:
        return math.inf if self._hold is None else self._hold.until_s

    def trouble(self) -> str:
        return "" if self._hold is None else self._hold.trouble

    def read(self) -> RunState | None:
        begun_s = self._clock.monotonic_s()
        while True:
            found = self._client.get(self._key(FILE), MAX_BYTES)
            if self._hold is None or self._hold.certain:
                break
            # It may be the record of a run that has taken over, which this run must not replace.
            self.check_held()
            if self._clock.monotonic_s() - begun_s >= PATIENCE_S:
                raise StoreAway(self.trouble() or f"the lock {self.home / LOCK} is not renewed")
            self._sleep(PAUSE_S)
        self._record = None if found is None else found.etag
        return None if found is None else decode_state(found.content, self.home / FILE)

    def write(self, state: RunState, *, patient: bool = True) -> None:
        writer = None if self._hold is None else self._hold.holder
        content = state.model_copy(update={"writer": writer}).model_dump_json().encode()
        begun_s = self._clock.monotonic_s()
        while True:
            self.check_held()
            try:
                if self._replace_record(content, writer):
                    return
                continue
            except StoreAway:
                if not patient or self._clock.monotonic_s() - begun_s >= PATIENCE_S:
                    raise
            self._sleep(PAUSE_S)

    def _replace_record(self, content: bytes, writer: str | None) -> bool:
        try:
            self._record = self._client.put(self._key(FILE), content, replacing=self._record)
        except Changed:
            self._record = self._own_record(writer)
            return False
        return True

    def _own_record(self, writer: str | None) -> str:
        """Return the record's ETag if this run wrote it and only the answer was lost; else raise `Fenced`."""
        found = self._client.get(self._key(FILE), MAX_BYTES)
        if found is not None and writer is not None:
            with suppress(RunRecordBroken):
                if decode_state(found.content, self.home / FILE).writer == writer:
                    return found.etag
        if self._hold is not None:
            # If this run holds the lock and the other one wrote late, the next run has to fence the other's
            # job.
            self._hold.unfenced = True
        raise Fenced(
            f"{self.home / FILE} was written by another run, which has taken over; this run has stopped"
        )

    def has_finished(self, job: str) -> bool:
        return self._client.head(self._key(f"{job}/{END_MARK}"), 0) is not None

    def end_notes(self, job: str) -> Sequence[bytes]:
        names = [name for name in self._client.names(self._key(job)) if name.startswith(f"{END_NOTE}-")]
        found = (self._client.get(self._key(f"{job}/{name}"), MAX_BYTES) for name in names)
        return [note.content for note in found if note is not None]

    def fence(self, job: str | None, after: int) -> None:
        if self._hold is None or not self._hold.unfenced:
            return
        if job is not None:
            self._fence_job(job, after)
        else:
            found = {each: self.checkpoints(each) for each in self.jobs()}
            newest = max((each.number for of_job in found.values() for each in of_job), default=after)
            for each, own in found.items():
                # A job without its own checkpoint continues the numbers of the one that it started from.
                self._fence_job(each, after if own else newest)
        self._hold.unfenced = False

    def _fence_job(self, job: str, after: int) -> None:
        # Before listing checkpoints: a savepoint that begins later finds its folder occupied.
        self._occupy(*(self.home / job / drain_folder(number) for number in range(MAX_DRAINS)))
        fenced = None
        while (newest := max(after, *(each.number for each in self.checkpoints(job)), 0)) != fenced:
            # A checkpoint that completed meanwhile has used up names to occupy.
            self._occupy_next(job, newest)
            fenced = newest

    def _occupy_next(self, job: str, newest: int) -> None:
        names = self._client.names(self._key(job))
        begun = {found[1] for name in names if (found := IN_DRAIN.fullmatch(name))} | {
            found[1] for name in names if (found := IN_CHECKPOINT.fullmatch(name)) and int(found[2]) > newest
        }
        following = [f"chk-{number}" for number in range(newest + 1, newest + 1 + FENCES)]
        self._occupy(*(self.home / job / folder / METADATA for folder in {*begun, *following}))
        # A multipart upload in progress would replace the object that occupies its name.
        self._client.abort_uploads(self._key(job))
        for folder in {*begun, following[0]}:
            # MinIO lists uploads by whole keys only.
            self._client.abort_uploads_of(self._key(f"{job}/{folder}/{METADATA}"))

    def _occupy(self, *paths: S3Path) -> None:
        def occupy(path: S3Path) -> None:
            # It is complete, or was occupied before.
            with suppress(Changed):
                self._client.put(path.key, b"", replacing=None)

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(occupy, paths))

    def jobs(self) -> Sequence[str]:
        return [name for name in self._client.folders(self.home.key) if JOB_DIRECTORY.fullmatch(name)]

    def checkpoints(self, job: str) -> Sequence[Checkpoint[S3Path]]:
        found = []
        for entry in self._client.entries(self._key(job)):
            folder, _, name = entry.name.rpartition("/")
            if name != METADATA or _is_fence(entry):
                continue
            path = self.home / job / folder
            numbered = NUMBERED.fullmatch(folder)
            if numbered:
                found.append(Checkpoint(path, int(numbered[1])))
            elif IN_DRAIN.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    found.append(Checkpoint(path, number_in_store(path)))
        return sorted(found, key=lambda checkpoint: checkpoint.number, reverse=True)

    def contents(self, checkpoint: Location) -> Contents:
        found = self._client.entries(s3_path(str(checkpoint)).key)
        return Contents(len(found), sum(entry.size for entry in found))

    def delete(self, job: str, *, at_once: bool = True) -> None:
        newest_s = self._clock.wall_ms() / 1000 - FENCE_KEPT_S
        try:
            self._client.delete(
                self._key(job), keep=lambda entry: _is_fence(entry) and entry.written_s > newest_s
            )
        except (StoreAway, StoreRefused):
            if at_once:
                raise

    def _key(self, name: str) -> str:
        return f"{self.home.key}/{name}"


def _is_fence(entry: Entry) -> bool:
    folder, _, name = entry.name.rpartition("/")
    return entry.size == 0 and (name == METADATA or (not folder and is_drain(name)))


def number_in_store(checkpoint: S3Path) -> int:
    path = checkpoint / METADATA
    head = S3Client(path.bucket).head(path.key, HEADER.size)
    if head is None:
        raise FileNotFoundError(str(path))
    return number_in(head, path)


def metadata_in_store(checkpoint: S3Path) -> bytes:
    path = checkpoint / METADATA
    found = S3Client(path.bucket).get(path.key, MAX_METADATA_BYTES)
    if found is None:
        raise FileNotFoundError(str(path))
    return found.content
