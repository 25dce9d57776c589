"""Makes the spans of an event's trace after its end, without prompts, answers, fields or keys.

Import this only if OpenTelemetry is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import getrandbits
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)

from forebay import otel
from forebay.clock import Clock
from forebay.engine.call_trace import Call, CallTrace, Route
from forebay.flink.event_traces import EventTrace, Kept, Root
from forebay.otel import EndedTraces
from forebay.records import DeadLetter

NOBODY = Context()
CONTEXT_HEADERS = ("traceparent", "tracestate")
MAX_HEADER_BYTES = 512
MAX_TEXT_CHARS = 200
CANCELLED = "cancelled"
Value = str | bool | int | float | list[str]


class EventSpans:
    def __init__(
        self,
        service: str,
        most_waiting: int,
        on_dropped: Callable[[int], None],
        clock: Clock,
        *,
        exporter: SpanExporter | None = None,
    ) -> None:
        self._traces = EndedTraces(service, most_waiting, on_dropped, exporter=exporter)
        self._clock = clock

    def begin(self, headers: Mapping[str, bytes | None]) -> Root:
        trace_id = getrandbits(128) or 1
        context = NOBODY
        given: tuple[tuple[str, str], ...] = ()
        if "traceparent" in headers:
            given = tuple(_context_headers(headers))
            context = self._traces.otel.context_from(given)
            parent = get_current_span(context).get_span_context()
            trace_id = parent.trace_id or trace_id
            given = given if parent.is_valid else ()
        sample = self._traces.sampler.should_sample(context, trace_id, "event")
        state = sample.trace_state
        return Root(
            trace_id, sample.decision is Decision.RECORD_AND_SAMPLE, state.to_header() if state else "", given
        )

    def send(self, trace: EventTrace, kept: Kept, now_s: float) -> None:
        assert trace.root is not None
        read = trace.read_ms is not None and not trace.restored
        spans = 1 + read + sum(2 + len(asked.steps) for asked in trace.asked)
        if self._traces.room_for(spans):
            _Spans(self._traces, self._clock.wall_us() * 1000, now_s).make(trace, trace.root, kept, read=read)

    def close(self) -> None:
        self._traces.close()


class _Spans:
    def __init__(self, traces: EndedTraces, now_ns: int, now_s: float) -> None:
        self._ids = traces.ids
        self._otel = traces.otel
        self._now_ns = now_ns
        self._now_s = now_s
        self._below = NOBODY

    def make(self, trace: EventTrace, root: Root, kept: Kept, *, read: bool) -> None:
        accepted_ns = self._ns(trace.accepted_s)
        # The wall clock may have been set back.
        read_ns = accepted_ns if trace.read_ms is None else min(trace.read_ms * 1_000_000, accepted_ns)
        if not root.headers:
            self._ids.trace_id = root.trace_id
        self._below = self._otel.context_from(root.headers)
        event = self._begin("event", read_ns, _of_event(trace, kept), kind=SpanKind.CONSUMER)
        self._below = set_span_in_context(event)
        if read:
            self._begin("read", read_ns, {}).end(accepted_ns)
        since_s = trace.accepted_s
        nexts = [*(asked.submitted_s for asked in trace.asked[1:]), self._now_s]
        for asked, next_s in zip(trace.asked, nexts, strict=False):
            self._begin("wait", self._ns(since_s), {}).end(self._ns(asked.began_s))
            self._steps(asked)
            self._begin("answer", self._ns(asked.done_s), {}).end(self._ns(next_s))
            since_s = next_s
        _mark(event, trace.cause)
        event.end(self._now_ns)

    def _steps(self, asked: CallTrace) -> None:
        before: list[Call] = []
        for step in asked.steps:
            if isinstance(step, Route):
                span = self._begin("route", self._ns(step.since_s), _of_route(step))
                ended = step.why is not None
            else:
                self._ids.span_id = step.span_id
                attributes = _of_call(step, before)
                name = f"{attributes[otel.OPERATION]} {step.request.model}"
                span = self._begin(name, self._ns(step.sent_s), attributes, kind=SpanKind.CLIENT)
                first_s = None if step.completion is None else step.completion.timing.first_token_s
                if first_s is not None:
                    span.add_event("first token", timestamp=self._ns(first_s))
                ended = step.completion is not None
                if not step.phase:
                    before.append(step)
            if ended or step.error:
                _mark(span, step.error)
                span.end(self._ns(step.until_s))
            else:
                # A prefill is cancelled if no server for it is left.
                _mark(span, CANCELLED)
                span.end(self._ns(asked.done_s))

    def _begin(
        self, name: str, start_ns: int, attributes: Mapping[str, Value], kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        return self._otel.tracer.start_span(name, self._below, kind, attributes, start_time=start_ns)

    def _ns(self, at_s: float) -> int:
        return self._now_ns - round((self._now_s - at_s) * 1e9)


def _mark(span: Span, error: str) -> None:
    if error:
        span.set_attribute(otel.ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR))


def _of_event(trace: EventTrace, kept: Kept) -> dict[str, Value]:
    item = trace.item
    assert item is not None
    event = item if isinstance(item, DeadLetter) else item.event
    found: dict[str, Value] = {"forebay.trace.kept": kept, "forebay.restored": trace.restored}
    for name, text in (("forebay.request_id", item.id), ("forebay.position", event.position)):
        if text is not None:
            found[name] = text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
    if event.time_ms is not None:
        found["forebay.event.time_ms"] = event.time_ms
    if trace.asked:
        found["forebay.journaled"] = trace.asked[-1].journaled
    return found


def _of_route(route: Route) -> dict[str, Value]:
    if route.why is None:
        return {}
    found = {f"forebay.route.{name}": value for name, value in route.why._asdict().items()}
    return {"forebay.replica": found.pop("forebay.route.replica"), **found}


def _of_call(call: Call, before: list[Call]) -> dict[str, Value]:
    address = urlsplit(call.url)
    sampling = call.request.sampling
    found: dict[str, Value] = {
        otel.OPERATION: "chat" if call.request.prompt is None else "text_completion",
        otel.PROVIDER: "openai",
        otel.REQUEST_MODEL: call.request.model,
        otel.REQUEST_MAX_TOKENS: sampling.max_tokens,
        otel.REQUEST_STREAM: call.streamed,
        otel.SERVER_ADDRESS: address.hostname or "",
        otel.SERVER_PORT: address.port or (443 if address.scheme == "https" else 80),
    }
    if call.phase:
        found["forebay.phase"] = call.phase
    elif before:
        found["http.request.resend_count"] = len(before)
        found["forebay.retry.cause"] = before[-1].error or "unknown"
    completion = call.completion
    if completion is not None:
        found[otel.INPUT_TOKENS] = completion.usage.prompt_tokens
        found[otel.OUTPUT_TOKENS] = completion.usage.completion_tokens
        found[otel.CACHED_TOKENS] = completion.usage.cached_tokens
        if completion.finish_reason is not None:
            found[otel.RESPONSE_FINISH_REASONS] = [completion.finish_reason]
        if completion.timing.first_token_s is not None:
            found[otel.RESPONSE_FIRST_CHUNK_S] = completion.timing.first_token_s - call.sent_s
    return found


def _context_headers(headers: Mapping[str, bytes | None]) -> Iterator[tuple[str, str]]:
    for name in CONTEXT_HEADERS:
        value = headers.get(name)
        if value and len(value) <= MAX_HEADER_BYTES:
            yield name, value.decode("latin-1")
