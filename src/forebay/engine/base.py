"""What the layers above may ask of an engine: one call, cancellable."""

from __future__ import annotations

from typing import Protocol

from forebay.records import Completion, Request


class Engine(Protocol):
    """One place that answers requests: a replica over HTTP, a scripted one in tests, a fleet."""

    async def complete(
        self, request: Request, *, timeout_s: float, deadline_s: float | None = None
    ) -> Completion:
        """Answer `request`, or raise an `EngineError` of the cause.

        Raises `AttemptTimeout` after `timeout_s`. An engine that holds requests back until a replica has room
        counts that from the moment at which one is sent, and gives up `deadline_s` from now in any case
        (None: `timeout_s`). Cancelling the task aborts the request at the engine.
        The answer is not checked against `request.schema`. Safe to call from many tasks of one loop.
        """
        ...

    async def close(self) -> None:
        """Release connections. Calls in flight are aborted."""
        ...


class EngineFactory(Protocol):
    """Opens an engine on the event loop of the process that uses it.

    Instances are pickled into the job graph and so into checkpoints' metadata: they name a secret by its
    environment variable or file and read it only when called.
    """

    def __call__(self) -> Engine: ...
