"""A pipeline's state in an object store: another machine finds all of it there.

`PREFIX/run.json` is the record of the runs, `PREFIX/lock` the lease of the run that goes on, and below
`PREFIX/JOB/` lies what Flink writes.

The record is written on condition that it is still the one that this run knows. Of a run that was silent and
is taken over, nothing can be ended from here; so the numbers of its next checkpoints are taken: Flink
completes none whose `_metadata` is there already, and without one it commits nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from forebay.clock import Clock, SystemClock
from forebay.errors import SettingError
from forebay.flink.checkpoints import (
    END_MARK,
    HEADER,
    JOB_DIRECTORY,
    LOCK,
    METADATA,
    NUMBERED,
    Checkpoint,
    Contents,
    number_in,
)
from forebay.runtime.run_state import FILE, MAX_BYTES, RunState, decode_state
from forebay.s3.client import Changed, S3Client, StoreAway, StoreRefused
from forebay.s3.location import Location, S3Path, s3_path
from forebay.s3.lock import Fenced, Hold, held_lock

log = logging.getLogger(__name__)

AT_ONCE, FENCES = 24, 64
"""So many of a silent job's next checkpoints are taken before anything else, and so many altogether. Ten in a
row that fail end it, and one of its own that finds its lock taken ends at once."""
LATER_S = 8.0
"""When the others are taken, beside a stream that runs again. Flink makes two checkpoints a second at
most."""
AT_A_TIME = 16
PATIENCE_S = 120.0
PAUSE_S = 1.0


class NothingKept:
    """No checkpoint is kept beyond what Flink keeps: an object store has no second names for an object."""

    def keep(self) -> None: ...

    def drop_before(self, number: int) -> None: ...

    def bring_back(self, number: int) -> None:
        return None


class Fences:
    """Checkpoints of the silent `job` that are taken by `take`, after `later_s` or at `finish`, whichever is
    first, in a thread of their own. Where the store does not answer, they are tried again."""

    def __init__(self, job: str, take: Callable[[int], None], numbers: Sequence[int], later_s: float) -> None:
        self.job = job
        self._take = take
        self._numbers = tuple(numbers)
        self._hurry, self._ended, self._cancelled = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(later_s,), name="s3-fences", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Take what is left now; blocks until it is done, or the store does not answer."""
        self._ended.set()
        self._hurry.set()
        self._thread.join()

    def cancel(self) -> None:
        """Take no more: what the job left is deleted. Blocks until none is on its way."""
        self._cancelled.set()
        self.finish()

    def _run(self, pause_s: float) -> None:
        self._hurry.wait(pause_s)
        while not self._cancelled.is_set():
            try:
                with ThreadPoolExecutor(AT_A_TIME) as pool:
                    list(pool.map(self._take, self._numbers))
                return
            except (StoreAway, StoreRefused) as error:
                if self._ended.is_set():
                    log.warning("the checkpoints of a silent job could not all be taken: %s", error)
                    return
                self._ended.wait(PAUSE_S)
            except Exception:
                log.exception("the checkpoints of a silent job could not all be taken")
                return


class S3Store:
    """A prefix in a bucket, see `StateStore`."""

    remote = True

    def __init__(
        self,
        home: S3Path,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.home = home
        self._client = S3Client(home.bucket)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._hold: Hold | None = None
        self._record: str | None = None
        self._fences: list[Fences] = []

    @contextmanager
    def lock(self, pipeline: str) -> Iterator[None]:
        with held_lock(self.home / LOCK, pipeline, clock=self._clock, sleep=self._sleep) as hold:
            self._hold = hold
            try:
                yield
            finally:
                # Who comes after one that let go in order takes none; who took over from this one takes all.
                for each in self._fences:
                    each.cancel() if hold.lost else each.finish()

    def check_held(self) -> None:
        if self._hold is not None:
            self._hold.check()

    def trouble(self) -> str:
        return "" if self._hold is None else self._hold.trouble

    def read(self) -> RunState | None:
        found = self._client.get(self._key(FILE), MAX_BYTES)
        self._record = None if found is None else found.etag
        return None if found is None else decode_state(found.content, self.home / FILE)

    def write(self, state: RunState, *, patient: bool = True) -> None:
        content = state.model_dump_json().encode()
        begun_s = self._clock.monotonic_s()
        while True:
            self.check_held()
            try:
                self._record = self._client.put(self._key(FILE), content, replacing=self._record)
                return
            except Changed:
                raise Fenced(
                    f"{self.home / FILE} was written by another run, which has taken over; this one "
                    f"has stopped"
                ) from None
            except StoreAway:
                if not patient or self._clock.monotonic_s() - begun_s >= PATIENCE_S:
                    raise
            self._sleep(PAUSE_S)

    def has_finished(self, job: str) -> bool:
        return self._client.head(self._key(f"{job}/{END_MARK}"), 0) is not None

    def fence(self, job: str, after: int) -> None:
        if self._hold is None or not self._hold.silent:
            return
        newest = max(after, *(each.number for each in self.checkpoints(job)), 0)

        def take(number: int) -> None:
            with suppress(Changed):
                # It has completed meanwhile, or was taken before.
                key = self._key(f"{job}/chk-{number}/{METADATA}")
                self._client.put(key, b"", replacing=None)

        next_ones = range(newest + 1, newest + 1 + FENCES)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(take, next_ones[:AT_ONCE]))
        self._fences.append(Fences(job, take, next_ones[AT_ONCE:], LATER_S))
        # One that is being written is complete when its upload is, whatever lies there.
        self._client.abort_uploads(self._key(job))
        self._hold.silent = False

    def jobs(self) -> Sequence[str]:
        return [name for name in self._client.folders(self.home.key) if JOB_DIRECTORY.fullmatch(name)]

    def checkpoints(self, job: str) -> Sequence[Checkpoint[S3Path]]:
        found = []
        for entry in self._client.entries(self._key(job)):
            folder, _, name = entry.name.rpartition("/")
            # An empty one is a fence.
            if name != METADATA or not entry.size or "/" in folder:
                continue
            path = self.home / job / folder
            numbered = NUMBERED.fullmatch(folder)
            if numbered or folder.startswith("savepoint-"):
                with suppress(FileNotFoundError):
                    found.append(Checkpoint(path, int(numbered[1]) if numbered else number_in_store(path)))
        return sorted(found, key=lambda checkpoint: checkpoint.number, reverse=True)

    def newest_of_all(self) -> Location | None:
        raise SettingError(
            f"{self.home / FILE} is of a Forebay that kept no state in an object store; start over "
            f"with --fresh"
        )

    def contents(self, checkpoint: Location) -> Contents:
        found = self._client.entries(s3_path(str(checkpoint)).key)
        return Contents(len(found), sum(entry.size for entry in found))

    def kept(self, job: str) -> NothingKept:
        return NothingKept()

    def delete(self, job: str, *, at_once: bool = True) -> None:
        for each in self._fences:
            if each.job == job:
                each.cancel()
        try:
            self._client.delete(self._key(job))
        except (StoreAway, StoreRefused):
            if at_once:
                raise

    def _key(self, name: str) -> str:
        return f"{self.home.key}/{name}"


def number_in_store(checkpoint: S3Path) -> int:
    """As `check_readable`, for a checkpoint in an object store."""
    path = checkpoint / METADATA
    head = S3Client(path.bucket).head(path.key, HEADER.size)
    if head is None:
        raise FileNotFoundError(str(path))
    return number_in(head, path)
