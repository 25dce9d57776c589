"""Traces and metrics by OpenTelemetry: a server span per request, and in it a client span per attempt.

They never hold prompts, answers or keys. Import this only if OpenTelemetry is on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from forebay import otel
from forebay.engine.protocol import CHAT_PATH, PROMPT_PATH
from forebay.errors import AttemptTimeout, EngineError
from forebay.gateway.asgi import trace_context
from forebay.gateway.asked import Asked
from forebay.gateway.exchange import Exchange, RelayedCall
from forebay.gateway.refusal import Refusal
from forebay.gateway.replica import Lost
from forebay.gateway.routes import MESSAGES_PATH, RESPONSES_PATH, ROUTES, dialect_of
from forebay.gateway.tracing import Attempt, RequestTrace, Tracing
from forebay.otel import OpenTelemetry

OPERATIONS = {
    CHAT_PATH: "chat",
    RESPONSES_PATH: "chat",
    MESSAGES_PATH: "chat",
    PROMPT_PATH: "text_completion",
}
"""The conventions' names. Other calls have the last part of their path, such as `embeddings`."""
# JSON escapes quotes in strings, so the text of an answer cannot match these.
MODEL = re.compile(rb'"model" ?: ?"([^"\\]{1,500})"')
FINISH_REASON = re.compile(rb'"finish_reason" ?: ?"([a-z_]{1,40})"')
# vLLM's own `stop_reason` in OpenAI's calls is left out: it may be the client's text.
STOP_REASON = re.compile(rb'"stop_reason" ?: ?"([a-z_]{1,40})"')
HEAD_BYTES = 4096
MAX_PATH_CHARS = 600

Attributes = Mapping[str, str | bool | int | float | list[str]]

# The conventions' bucket boundaries.
DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


@dataclass(frozen=True, slots=True)
class Answer:
    model: str | None
    finish_reasons: list[str]


class AttemptSpan(Attempt):
    __slots__ = ("_span", "_trace", "error")

    def __init__(self, trace: RequestSpan, span: Span, headers: list[tuple[str, str]]) -> None:
        super().__init__(headers)
        self._trace = trace
        self._span = span
        self.error: str | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.error is None:
            self.failed(_cause_of(error))
        self._span.end()

    def failed(self, cause: str) -> None:
        self.error = cause
        self._span.set_attribute(otel.ERROR_TYPE, cause)
        self._span.set_status(Status(StatusCode.ERROR))

    def answered(self, status: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self.failed(str(status))
        else:
            self._trace.answer = _answer_in(head, tail, self._trace.provider)


class RequestSpan(RequestTrace):
    __slots__ = ("_otel", "_sent", "answer", "operation", "provider", "span")

    def __init__(self, telemetry: OpenTelemetry, span: Span, route: str) -> None:
        super().__init__()
        self._otel = telemetry
        self._sent: list[AttemptSpan] = []
        self.span = span
        self.operation = OPERATIONS.get(route) or route.rpartition("/")[2]
        self.provider = provider_of(route)
        self.answer: Answer | None = None

    def attempt(self, asked: Asked, url: str, *, prefill: bool = False) -> AttemptSpan:
        address = urlsplit(url)
        attributes: dict[str, str | int] = {
            otel.OPERATION: self.operation,
            otel.PROVIDER: self.provider,
            otel.REQUEST_MODEL: asked.model,
            otel.SERVER_ADDRESS: address.hostname or "",
            otel.SERVER_PORT: address.port or (443 if address.scheme == "https" else 80),
        }
        if prefill:
            attributes["forebay.phase"] = "prefill"
        elif self._sent:
            attributes["http.request.resend_count"] = len(self._sent)
            attributes["forebay.retry.cause"] = self._sent[-1].error or "unknown"
        span = self._otel.tracer.start_span(
            f"{self.operation} {asked.model}".rstrip(),
            set_span_in_context(self.span),
            SpanKind.CLIENT,
            attributes,
        )
        attempt = AttemptSpan(self, span, self._otel.headers_for(span))
        if not prefill:
            self._sent.append(attempt)
        return attempt


class SpanTracing(Tracing):
    def __init__(self, telemetry: OpenTelemetry) -> None:
        self._otel = telemetry
        histogram = telemetry.meter.create_histogram
        self._duration_s = histogram(
            "gen_ai.server.request.duration",
            "s",
            "From a request's head to the end of its answer.",
            explicit_bucket_boundaries_advisory=DURATION_S,
        )
        self._first_token_s = histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "From a request's head to the first byte of its stream.",
            explicit_bucket_boundaries_advisory=FIRST_S,
        )
        self._per_token_s = histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "Time of each token of a stream after the first.",
            explicit_bucket_boundaries_advisory=PER_TOKEN_S,
        )
        # The conventions have token metrics for clients only; the gateway is the engines' client.
        counter, usage = telemetry.meter.create_counter, "gen_ai.client.inference.usage"
        self._input = counter(f"{usage}.input_tokens", "{token}", "Tokens of prompts.")
        self._cached = counter(f"{usage}.cache_read.input_tokens", "{token}", "Those in the prefix cache.")
        self._output = counter(f"{usage}.output_tokens", "{token}", "Tokens of answers.")

    def begin(self, exchange: Exchange) -> RequestSpan:
        route = exchange.route
        span = self._otel.tracer.start_span(
            f"{exchange.method} {route}",
            self._otel.context_from(trace_context(exchange.headers)),
            SpanKind.SERVER,
            {
                "http.request.method": exchange.method,
                "http.route": route,
                "url.path": exchange.path[:MAX_PATH_CHARS],
                "forebay.request_id": exchange.id,
            },
        )
        trace = RequestSpan(self._otel, span, route)
        if route in ROUTES and span.is_recording():
            span.set_attribute(otel.OPERATION, trace.operation)
            span.set_attribute(otel.PROVIDER, trace.provider)
        return trace

    def end(self, trace: RequestTrace, exchange: Exchange, duration_s: float) -> None:
        assert isinstance(trace, RequestSpan)
        outcome = exchange.outcome
        if trace.span.is_recording():
            trace.span.set_attributes(_attributes_of(exchange, trace.answer))
            if not outcome.isdigit() or outcome >= "500":
                trace.span.set_status(Status(StatusCode.ERROR))
        trace.span.end()
        if exchange.route in ROUTES:
            self._measure(trace, exchange, duration_s)

    def _measure(self, trace: RequestSpan, exchange: Exchange, duration_s: float) -> None:
        labels = {otel.OPERATION: trace.operation, otel.PROVIDER: trace.provider}
        call, error = exchange.call, _error_of(exchange)
        if call is not None and call.begun and call.status < 400:
            # Only an answer proves that the model exists; others would be labels that clients invent.
            labels[otel.REQUEST_MODEL] = exchange.model or call.asked.model
            labels[otel.RESPONSE_MODEL] = call.asked.model
        failed = {} if error is None else {otel.ERROR_TYPE: error}
        self._duration_s.record(duration_s, labels | failed)
        if error is not None or call is None or not call.begun:
            return
        first_s = call.begun_s - exchange.began_s
        if call.streamed and call.asked.answers:
            self._first_token_s.record(first_s, labels)
        if not call.counted or call.usage is None:
            return
        tokens = call.usage.completion_tokens
        if call.streamed and tokens > 1:
            self._per_token_s.record((duration_s - first_s) / (tokens - 1), labels)
        labels[otel.TOKEN_MODALITY] = "unknown"
        self._input.add(call.usage.prompt_tokens, labels)
        self._cached.add(call.usage.cached_tokens, labels)
        self._output.add(tokens, labels)

    def close(self) -> None:
        self._otel.close()


def provider_of(route: str) -> str:
    return "anthropic" if dialect_of(route) == "anthropic" else "openai"


def _attributes_of(exchange: Exchange, answer: Answer | None) -> Attributes:
    found: dict[str, str | bool | int | float | list[str]] = {"forebay.key": exchange.key}
    status = int(exchange.outcome) if exchange.outcome.isdigit() else exchange.status
    if status is not None:
        found["http.response.status_code"] = status
    if (error := _error_of(exchange)) is not None:
        found[otel.ERROR_TYPE] = error
    if exchange.call is not None:
        found |= _attributes_of_call(exchange.call, exchange.began_s)
        found[otel.REQUEST_MODEL] = exchange.model or exchange.call.asked.model
    if answer is not None:
        if answer.model is not None:
            found[otel.RESPONSE_MODEL] = answer.model
        if answer.finish_reasons:
            found[otel.RESPONSE_FINISH_REASONS] = answer.finish_reasons
    return found


def _attributes_of_call(call: RelayedCall, began_s: float) -> Attributes:
    asked = call.asked
    found: dict[str, str | bool | int | float | list[str]] = {otel.REQUEST_STREAM: asked.stream}
    if asked.max_tokens is not None:
        found[otel.REQUEST_MAX_TOKENS] = asked.max_tokens
    if not call.begun:
        return found
    found["forebay.replica"] = call.replica
    if call.status < 400:
        found[otel.RESPONSE_MODEL] = asked.model
    if call.streamed:
        found[otel.RESPONSE_FIRST_CHUNK_S] = call.begun_s - began_s
    if call.counted and call.usage is not None:
        found[otel.INPUT_TOKENS] = call.usage.prompt_tokens
        found[otel.OUTPUT_TOKENS] = call.usage.completion_tokens
        found[otel.CACHED_TOKENS] = call.usage.cached_tokens
    return found


def _error_of(exchange: Exchange) -> str | None:
    failed = not exchange.outcome.isdigit() or exchange.outcome >= "400"
    return (exchange.error or exchange.outcome) if failed else None


def _cause_of(error: BaseException) -> str:
    if isinstance(error, EngineError):
        return error.cause
    if isinstance(error, Lost):
        return AttemptTimeout.cause
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, Refusal):
        return error.code
    return type(error).__name__


def _answer_in(head: bytes, tail: bytes, provider: str) -> Answer:
    model = MODEL.search(head, 0, HEAD_BYTES)
    reasons = (STOP_REASON if provider == "anthropic" else FINISH_REASON).findall(tail)
    return Answer(
        None if model is None else model[1].decode("utf-8", "replace"),
        [reason.decode("ascii") for reason in reasons],
    )
