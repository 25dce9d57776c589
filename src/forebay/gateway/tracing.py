"""The beginning and end of a request's trace, if OpenTelemetry is off. `gateway/spans.py` has the class that
records.
"""

from __future__ import annotations

from forebay.gateway.asgi import trace_context
from forebay.gateway.attempt import RequestTrace
from forebay.gateway.exchange import Exchange


class Tracing:
    """Reports nothing, and passes on a client's trace context."""

    def begin(self, exchange: Exchange) -> RequestTrace:
        """A request begins; `end` must follow."""
        return RequestTrace(trace_context(exchange.headers))

    def end(self, trace: RequestTrace, exchange: Exchange, duration_s: float) -> None:
        """The request has ended as `exchange` describes."""

    def close(self) -> None:
        """Send what is left; blocks."""
