"""The trace of a request's attempts at replicas, if OpenTelemetry is off: nothing is recorded, and replicas
get the client's trace context. `gateway/spans.py` has the classes that record.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from forebay.gateway.asked import Asked


class Attempt:
    """One request sent to one replica, until it has ended: a context manager.

    `headers` are the trace context for the replica.
    """

    __slots__ = ("headers",)

    def __init__(self, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.headers = headers

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def failed(self, cause: str) -> None:
        """The attempt has failed, for this cause."""

    def answered(self, status: int, head: bytes = b"", tail: bytes = b"") -> None:
        """The replica's answer is complete: its status, and its first and last bytes if they are JSON."""


class RequestTrace:
    """The trace of one request."""

    __slots__ = ("_context",)

    def __init__(self, context: Sequence[tuple[str, str]] = ()) -> None:
        self._context = context

    def attempt(self, asked: Asked, url: str, *, prefill: bool = False) -> Attempt:
        """`asked` is sent to the replica at `url`, or with `prefill` only its prompt."""
        return Attempt(self._context)
