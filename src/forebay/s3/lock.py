"""The lock of `forebay.s3.lease`, held: a thread renews it until it is let go, or found to be taken."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from forebay.clock import Clock, SystemClock
from forebay.errors import PipelineFailed, SettingError
from forebay.s3.client import Changed, S3Client, StoreAway
from forebay.s3.lease import (
    BEAT_S,
    BEAT_TIMEOUT_S,
    MAX_LOCK_BYTES,
    RETRY_S,
    Claim,
    Lock,
    Seen,
    decode_lock,
    encode_lock,
)
from forebay.s3.location import S3Path

LOOK_S = 0.25
PATIENCE_S = 30.0
"""How long a server may not answer before one who wants the lock gives up."""
TOLD_S = 5.0
"""How long a server may not answer before a holder says so: a moment is no trouble."""


class Fenced(PipelineFailed):
    """Another run holds the lock now; this one must write nothing more."""


class Hold:
    """A lock that is held. `silent`: its last holder did not let it go in order, and may run still."""

    def __init__(
        self, client: S3Client, path: S3Path, lock: Lock, etag: str, *, silent: bool, clock: Clock
    ) -> None:
        self.silent = silent
        self._clock = clock
        self._renewed_s = clock.monotonic_s()
        self._trouble = ""
        self._client = client
        self._path = path
        self._lock = lock
        self._etag = etag
        self._lost = threading.Event()

    def check(self) -> None:
        """Raise `Fenced` where another has taken it."""
        if self._lost.is_set():
            raise Fenced(
                f"another run of pipeline {self._lock.pipeline!r} has taken over its state in "
                f"{self._path.parent}; this one has stopped"
            )

    def renew(self, *, released: bool = False) -> bool:
        """Write the lock once more. False where the server does not answer: a call that follows soon may do
        it. Where it refuses (see `trouble`), it takes somebody to mend that."""
        renewed = self._lock.renewed(released=released)
        try:
            self._etag = self._client.put(self._path.key, encode_lock(renewed), replacing=self._etag)
            self._lock, self._renewed_s, self._trouble = renewed, self._clock.monotonic_s(), ""
        except Changed:
            self._lost.set()
        except StoreAway as error:
            if self._clock.monotonic_s() - self._renewed_s >= TOLD_S:
                self._trouble = str(error)
            return False
        except SettingError as error:
            # Keys that have expired, for example: as long as nobody else takes it, it is held.
            self._trouble = str(error)
        except Exception as error:
            # Whatever it is, to go on is better than a lock that nobody renews.
            self._trouble = f"the lock {self._path} cannot be renewed: {type(error).__name__}: {error}"
        return True

    @property
    def trouble(self) -> str:
        """Why it cannot be renewed now, in words; empty where it can."""
        return self._trouble

    @property
    def lost(self) -> bool:
        """Whether another has taken it."""
        return self._lost.is_set()


@contextmanager
def held_lock(
    path: S3Path,
    pipeline: str,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Hold]:
    """Hold the lock at `path` for `pipeline` while the block runs; blocks until it is taken: at once where
    nobody holds it, else for some seconds.

    Raises `SettingError` where a run holds it that lives, where it is another pipeline's, and where it is no
    lock; `StoreAway` where the server does not answer for half a minute.
    """
    client = S3Client(path.bucket, timeout_s=BEAT_TIMEOUT_S, attempts=1)
    hold = _taken(client, path, pipeline, clock or SystemClock(), sleep)
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
    client: S3Client, path: S3Path, pipeline: str, clock: Clock, sleep: Callable[[float], None]
) -> Hold:
    claim, silent = Claim(), False
    ours = Lock(pipeline, f"{socket.gethostname()}, process {os.getpid()}")
    answered_s = clock.monotonic_s()
    while True:
        try:
            found = client.get(path.key, MAX_LOCK_BYTES)
            answered_s = clock.monotonic_s()
            there = None if found is None else _read(found.content, path, pipeline)
            seen = None
            if found is not None and there is not None:
                if there.holder == ours.holder:
                    # The server took it and did not answer.
                    return Hold(client, path, ours, found.etag, silent=silent, clock=clock)
                seen = Seen(found.etag, there.released)
            decision = claim.look(seen, answered_s)
            if decision == "refuse":
                raise _running(path, pipeline, there)
            if decision == "take":
                silent = there is not None and not there.released
                with suppress(Changed):
                    etag = client.put(
                        path.key, encode_lock(ours), replacing=None if seen is None else seen.etag
                    )
                    return Hold(client, path, ours, etag, silent=silent, clock=clock)
                # Somebody was faster: who that is, the next look tells.
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
