"""One replica: its client and protocol, retries, journal, prompt templates; starting it on this machine.

Here: the interface of an engine. May import `clients` and value modules.
"""

from __future__ import annotations

import math
from typing import Protocol

from forebay.records import Completion, Request


class Deadline:
    """A record's time limit. After the first call, all time counts; before it, only time in which no engine
    is available. Times are monotonic.
    """

    __slots__ = ("_left_s", "_since_s", "begun_s")

    def __init__(self, seconds: float = math.inf) -> None:
        self._left_s = seconds
        self._since_s: float | None = None
        self.begun_s: float | None = None

    def begin(self, now_s: float) -> None:
        if self.begun_s is None:
            self.begun_s = now_s
            self.wait(now_s, counts=True)

    def wait(self, now_s: float, *, counts: bool) -> None:
        """Before the first call: from now on time `counts` (nothing can take the record), or does not."""
        if counts and self._since_s is None:
            self._since_s = now_s
        elif not counts and self._since_s is not None and self.begun_s is None:
            self._left_s -= now_s - self._since_s
            self._since_s = None

    def left_s(self, now_s: float) -> float:
        """Seconds left if time counts from now on; negative after the deadline."""
        return self._left_s - (0.0 if self._since_s is None else now_s - self._since_s)


class Engine(Protocol):
    """Answers requests: a replica over HTTP, a scripted one in tests, a fleet."""

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        """Answer `request`, or raise the `EngineError` of the cause.

        Raises `AttemptTimeout` after `timeout_s` without progress (until the first token once it could have
        started, between tokens, or until an answer in one piece) and after `deadline`, which starts with the
        call. Cancelling the task aborts the request at the engine. The answer is not checked against
        `request.schema`. Safe to call from many tasks of one event loop.
        """
        ...

    async def close(self) -> None: ...


class EngineFactory(Protocol):
    """Opens an engine on the event loop of the process that uses it.

    Pickled into the job graph, so it holds a reference to a secret and reads it only when called.
    """

    def __call__(self) -> Engine: ...
