"""What the layers above may ask of an engine: one call, cancellable, within the time that its record has."""

from __future__ import annotations

import math
from typing import Protocol

from forebay.records import Completion, Request


class Deadline:
    """Counts a record's time: for good from its first call on; before it, only while nothing could take it.

    A record that waits for room at an engine that works is not late, however slow the engine is. One that
    waits while no engine answers is. Moments are passed in, on the monotonic clock.
    """

    __slots__ = ("_left_s", "_since_s", "begun_s")

    def __init__(self, seconds: float = math.inf) -> None:
        self._left_s = seconds
        self._since_s: float | None = None
        self.begun_s: float | None = None
        """When the first call was made; None before it."""

    def begin(self, now_s: float) -> None:
        """A call is made: from the first one on time counts for good."""
        if self.begun_s is None:
            self.begun_s = now_s
            self.wait(now_s, counts=True)

    def wait(self, now_s: float, *, counts: bool) -> None:
        """No call was made yet. From now on time `counts`, as nothing can take the record, or it does not."""
        if counts and self._since_s is None:
            self._since_s = now_s
        elif not counts and self._since_s is not None and self.begun_s is None:
            self._left_s -= now_s - self._since_s
            self._since_s = None

    def left_s(self, now_s: float) -> float:
        """Seconds that are left if time counts from now on; negative once it is over."""
        return self._left_s - (0.0 if self._since_s is None else now_s - self._since_s)


class Engine(Protocol):
    """One place that answers requests: a replica over HTTP, a scripted one in tests, a fleet."""

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        """Answer `request`, or raise an `EngineError` of the cause.

        Raises `AttemptTimeout` where the engine makes no progress on the request for `timeout_s`: no first
        token though it could have begun, no next one after it; for an answer in one piece, no answer. And
        where `deadline` is over: it begins with the call, however long the request waited for it. Cancelling
        the task aborts the request at the engine. The answer is not checked against `request.schema`. Safe to
        call from many tasks of one loop.
        """
        ...

    async def close(self) -> None:
        """Release connections. Calls in flight are aborted."""
        ...


class EngineFactory(Protocol):
    """Opens an engine on the event loop of the process that uses it.

    Instances are pickled into the job graph: they name a secret by its environment variable or file and read
    it only when called.
    """

    def __call__(self) -> Engine: ...
