"""Begins and ends a request's trace without OpenTelemetry. `gateway/spans.py` has the class that records."""

from __future__ import annotations

from forebay.gateway.asgi import trace_context
from forebay.gateway.attempt import RequestTrace
from forebay.gateway.exchange import Exchange


class Tracing:
    """Records nothing; forwards the client's trace context."""

    def begin(self, exchange: Exchange) -> RequestTrace:
        """Begin a request's trace; `end` must follow."""
        return RequestTrace(trace_context(exchange.headers))

    def end(self, trace: RequestTrace, exchange: Exchange, duration_s: float) -> None:
        """End it; `exchange` has the outcome."""

    def close(self) -> None:
        """Send what is left; blocks."""
