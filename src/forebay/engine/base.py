"""What the layers above may ask of an engine: one call, cancellable."""

from __future__ import annotations

from typing import Protocol

from forebay.engine.deadline import Deadline
from forebay.records import Completion, Request


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
