"""The lock on a pipeline's state in an object store, so that one run holds it.

Its holder rewrites the object every `BEAT_S` if it is unchanged; so does a run that takes it over: of two
writes, one fails. A holder relies on a renewal for `HOLD_S` after it was sent; then its Flink is suspended
(`pipeline/flink_main.py`). A claimer waits for `LEASE_S`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from forebay.clients.s3.client import Changed, S3Client, StoreAway
from forebay.clients.s3.location import S3Path
from forebay.clock import Clock, SystemClock, uptime_s
from forebay.errors import PipelineFailed, SettingError

BEAT_S = 1.0
LEASE_S = 3.0
"""How long a claimer watches a silent holder. Earlier silence does not count: it may have been cut off."""
HOLD_S = 2.5
"""The rest of `LEASE_S` is for the guard to suspend Flink on a busy machine."""
BEAT_TIMEOUT_S = 1.5
RETRY_S = 0.25
GAP_S = 2.0
MAX_LOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Lock:
    """`holder`: random id of the run. `released`: its holder ended cleanly. `unfenced`: the job of an
    earlier holder may still commit something."""

    pipeline: str
    where: str = ""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)
    beat: int = 0
    released: bool = False
    unfenced: bool = False

    def renewed(self, *, released: bool = False, unfenced: bool = False) -> Lock:
        return replace(self, beat=self.beat + 1, released=released, unfenced=unfenced)

    @property
    def leaves_unfenced(self) -> bool:
        return self.unfenced or not self.released


def encode_lock(lock: Lock) -> bytes:
    return json.dumps(asdict(lock)).encode()


KINDS = {"pipeline": str, "where": str, "holder": str, "beat": int, "released": bool, "unfenced": bool}


def decode_lock(content: bytes) -> Lock:
    """Raises `ValueError`."""
    try:
        found = json.loads(content)
        lock = Lock(**{name: found[name] for name in KINDS})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a lock: {type(error).__name__}") from None
    for name, kind in KINDS.items():
        if type(getattr(lock, name)) is not kind:
            raise ValueError(f"not a lock: {name}")
    return lock


@dataclass(frozen=True, slots=True)
class Seen:
    etag: str
    released: bool


class Claim:
    def __init__(self) -> None:
        self._etag: str | None = None
        self._since_s: float | None = None
        self._looked_s = 0.0

    def look(self, seen: Seen | None, now_s: float) -> Literal["take", "wait", "refuse"]:
        """Take the lock that was read as `seen` if it is unchanged, read it again soon, or give up: its
        holder lives.
        """
        if seen is None or seen.released:
            return "take"
        watched = now_s - self._looked_s <= GAP_S
        renewed = self._etag is not None and seen.etag != self._etag
        if renewed and watched:
            return "refuse"
        # A renewal at an unknown time in a gap does not prove that its writer is still alive.
        if self._since_s is None or renewed or not watched:
            self._since_s = now_s
        self._etag, self._looked_s = seen.etag, now_s
        return "take" if now_s - self._since_s >= LEASE_S else "wait"

    def unanswered(self) -> None:
        self._since_s = None


LOOK_S = 0.25
PATIENCE_S = 30.0
OWN_WRITES = 3


class Fenced(PipelineFailed):
    """Another run has taken over; this one must write nothing more."""


class HeldLock:
    def __init__(
        self,
        client: S3Client,
        path: S3Path,
        lock: Lock,
        etag: str,
        *,
        renewed_s: float,
        uptime_s: Callable[[], float],
    ) -> None:
        self.unfenced = lock.unfenced
        self._client = client
        self._path = path
        self._lock = lock
        self._etag = etag
        self._uptime_s = uptime_s
        self._renewed_s = renewed_s
        self._trouble = ""
        self._lost = threading.Event()
        self._report: Callable[[float], None] = lambda until_s: None
        self._reporting = threading.Lock()

    @property
    def holder(self) -> str:
        return self._lock.holder

    @property
    def trouble(self) -> str:
        return self._trouble

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @property
    def until_s(self) -> float:
        """By the clock `uptime_s`, nobody else can hold the lock until then."""
        return self._renewed_s + HOLD_S

    @property
    def certain(self) -> bool:
        return self._uptime_s() < self.until_s

    def check(self) -> None:
        if self.lost:
            raise Fenced(
                f"another run of pipeline {self._lock.pipeline!r} has taken over its state in "
                f"{self._path.parent}; this one has stopped"
            )

    def report_renewals(self, report: Callable[[float], None]) -> None:
        """Call `report` with `until_s`, now and after each renewal, from the thread that renews."""
        with self._reporting:
            self._report = report
            report(self.until_s)

    def renew(self, *, released: bool = False) -> bool:
        """False if the store does not answer and another try may succeed soon. If it refuses, see
        `trouble`.
        """
        sent_s = self._uptime_s()
        lock = self._lock.renewed(released=released, unfenced=self.unfenced)
        try:
            self._write(lock)
        except Changed:
            self._lost.set()
        except StoreAway as error:
            if self._uptime_s() - self._renewed_s >= HOLD_S:
                self._trouble = str(error)
            return False
        except SettingError as error:
            self._trouble = str(error)
            self._look()
        except Exception as error:
            # Whatever the bug is, retrying is better than a lock that is not renewed.
            self._trouble = f"the lock {self._path} cannot be renewed: {type(error).__name__}: {error}"
        else:
            with self._reporting:
                self._lock, self._renewed_s, self._trouble = lock, sent_s, ""
                self._report(self.until_s)
        return True

    def _look(self) -> None:
        try:
            self._etag = self._own_etag()
        except Changed:
            self._lost.set()
        except (StoreAway, SettingError):
            pass

    def _write(self, lock: Lock) -> None:
        for _ in range(OWN_WRITES):
            try:
                self._etag = self._client.put(self._path.key, encode_lock(lock), replacing=self._etag)
                return
            except Changed:
                # The answer to an earlier write may have been lost.
                self._etag = self._own_etag()
        raise Changed

    def _own_etag(self) -> str:
        found = self._client.get(self._path.key, MAX_LOCK_BYTES)
        if found is None:
            raise Changed
        with suppress(ValueError):
            if decode_lock(found.content).holder == self.holder:
                return found.etag
        raise Changed


@contextmanager
def held_lock(
    path: S3Path,
    pipeline: str,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
    uptime_s: Callable[[], float] = uptime_s,
) -> Iterator[HeldLock]:
    """Hold the lock while the block runs. Blocks for some seconds unless nobody holds it.

    Raises `SettingError` if a living run or another pipeline holds it, or `StoreAway`.
    """
    client = S3Client(path.bucket, timeout_s=BEAT_TIMEOUT_S, attempts=1)
    hold = _taken(client, path, pipeline, clock or SystemClock(), sleep=sleep, uptime_s=uptime_s)
    ended = threading.Event()

    def beat() -> None:
        pause_s = BEAT_S
        while not ended.wait(pause_s) and not hold.lost:
            pause_s = BEAT_S if hold.renew() else RETRY_S

    thread = threading.Thread(target=beat, name="s3-lock", daemon=True)
    thread.start()
    try:
        yield hold
    finally:
        ended.set()
        thread.join()
        if not hold.lost:
            hold.renew(released=True)


def _taken(
    client: S3Client,
    path: S3Path,
    pipeline: str,
    clock: Clock,
    *,
    sleep: Callable[[float], None],
    uptime_s: Callable[[], float],
) -> HeldLock:
    claim = Claim()
    ours = Lock(pipeline, f"{socket.gethostname()}, process {os.getpid()}")
    answered_s = clock.monotonic_s()
    while True:
        sent_s = uptime_s()
        try:
            found = client.get(path.key, MAX_LOCK_BYTES)
            answered_s = clock.monotonic_s()
            there = None if found is None else _read(found.content, path, pipeline)
            seen = None
            if found is not None and there is not None:
                if there.holder == ours.holder:
                    # The store took it, and its answer was lost. It cannot be relied on before the next
                    # renewal.
                    return HeldLock(
                        client, path, there, found.etag, renewed_s=sent_s - HOLD_S, uptime_s=uptime_s
                    )
                seen = Seen(found.etag, there.released)
            decision = claim.look(seen, answered_s)
            if decision == "refuse":
                raise _running(path, pipeline, there)
            if decision == "take":
                taken = replace(ours, unfenced=there is not None and there.leaves_unfenced)
                with suppress(Changed):
                    etag = client.put(
                        path.key, encode_lock(taken), replacing=None if seen is None else seen.etag
                    )
                    return HeldLock(client, path, taken, etag, renewed_s=sent_s, uptime_s=uptime_s)
                # Another run was faster, and the next look shows which.
                claim = Claim()
        except StoreAway:
            claim.unanswered()
            if clock.monotonic_s() - answered_s >= PATIENCE_S:
                raise
        sleep(LOOK_S)


def _read(content: bytes, path: S3Path, pipeline: str) -> Lock:
    try:
        lock = decode_lock(content)
    except ValueError as error:
        raise SettingError(f"{path} is not the lock of a pipeline ({error}); name another prefix") from None
    if lock.pipeline != pipeline:
        raise SettingError(
            f"{path.parent} holds the state of pipeline {lock.pipeline[:80]!r}, not of {pipeline!r}; name "
            f"another prefix"
        )
    return lock


def _running(path: S3Path, pipeline: str, there: Lock | None) -> SettingError:
    by = f" ({there.where[:200]})" if there is not None else ""
    return SettingError(
        f"pipeline {pipeline!r} is running already{by}, with its state in {path.parent}; end that run first"
    )
