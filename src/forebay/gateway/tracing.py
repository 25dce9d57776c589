"""Traces without OpenTelemetry: record nothing, forward the client's trace context. `gateway/spans.py` has
the classes that record.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from forebay.gateway.asgi import trace_context

if TYPE_CHECKING:
    from forebay.gateway.asked import Asked
    from forebay.gateway.exchange import Exchange


class Attempt:
    """Context manager for one request at one replica. `headers`: the trace context for the replica."""

    __slots__ = ("headers",)

    def __init__(self, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.headers = headers

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def failed(self, cause: str) -> None: ...

    def answered(self, status: int, head: bytes = b"", tail: bytes = b"") -> None: ...


class RequestTrace:
    __slots__ = ("_context",)

    def __init__(self, context: Sequence[tuple[str, str]] = ()) -> None:
        self._context = context

    def attempt(self, asked: Asked, url: str, *, prefill: bool = False) -> Attempt:
        return Attempt(self._context)


class Tracing:
    def begin(self, exchange: Exchange) -> RequestTrace:
        return RequestTrace(trace_context(exchange.headers))

    def end(self, trace: RequestTrace, exchange: Exchange, duration_s: float) -> None: ...

    def close(self) -> None: ...
