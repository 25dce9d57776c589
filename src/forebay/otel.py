"""OpenTelemetry: where traces and metrics go, and their names.

Import this module only if OpenTelemetry is on: its packages are optional (extra `otel`). The names are those
of the semantic conventions for generative AI, version 0.1.0, in development
(https://github.com/open-telemetry/semantic-conventions-genai).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from forebay.settings import otel_queue_spans

LOG = logging.getLogger("forebay.otel")
SCOPE = "forebay"
CLOSE_S = 5.0

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOKEN_MODALITY = "gen_ai.token.modality"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"


class OpenTelemetry:
    """One process's tracer and meter, and the W3C trace context in HTTP headers."""

    def __init__(self, tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> None:
        self._providers = (tracers, meters)
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = tracers.get_tracer(SCOPE)
        self.meter = meters.get_meter(SCOPE)

    def context_from(self, headers: Iterable[tuple[str, str]]) -> Context:
        return self._propagator.extract(dict(headers), Context())

    def headers_for(self, span: trace.Span) -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return list(carrier.items())

    def close(self) -> None:
        """Send what is left; blocks for at most `CLOSE_S`: alone, the SDK retries for up to 20 s."""
        closing = threading.Thread(target=self._shut_down, name="otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            LOG.warning("the OpenTelemetry collector did not take the last data within %g s", CLOSE_S)

    def _shut_down(self) -> None:
        for provider in self._providers:
            if isinstance(provider, TracerProvider | MeterProvider):
                provider.shutdown()


def open_otel(service: str, signals: Collection[str]) -> OpenTelemetry:
    """Export these `signals`, of `traces` and `metrics`, by OTLP over HTTP.

    The SDK reads the standard `OTEL_*` variables; `service` is the default name.
    """
    resource = _resource(service)
    tracers: trace.TracerProvider = trace.NoOpTracerProvider()
    meters: metrics.MeterProvider = metrics.NoOpMeterProvider()
    if "traces" in signals:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(_in_batches(OTLPSpanExporter(), otel_queue_spans()[0]))
    if "metrics" in signals:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    return OpenTelemetry(tracers, meters)


def _resource(service: str) -> Resource:
    named = {"service.name": service, "service.instance.id": str(uuid.uuid4())}
    return Resource.create({**named, **OTELResourceDetector().detect().attributes})


def _in_batches(exporter: SpanExporter, most_waiting: int) -> BatchSpanProcessor:
    # The SDK raises ValueError for a batch that is larger than the queue.
    batch = min(otel_queue_spans()[1], most_waiting)
    return BatchSpanProcessor(exporter, max_queue_size=most_waiting, max_export_batch_size=batch)


class GivenIds(RandomIdGenerator):
    """Uses the ids that are set here, if any: others may have them already."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        given, self.trace_id = self.trace_id, 0
        return given or super().generate_trace_id()

    def generate_span_id(self) -> int:
        given, self.span_id = self.span_id, 0
        return given or super().generate_span_id()


class CountingExporter(SpanExporter):
    """Counts the spans that wait for `exporter`, and those that it rejected. Thread-safe."""

    def __init__(self, exporter: SpanExporter, most: int, on_dropped: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._most = most
        self._on_dropped = on_dropped
        self._lock = threading.Lock()
        self._waiting = self._dropped = 0

    def room_for(self, spans: int) -> bool:
        with self._lock:
            if self._waiting + spans <= self._most:
                self._waiting += spans
                return True
        self._drop(spans)
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                self._waiting -= len(spans)
            if result is not SpanExportResult.SUCCESS:
                self._drop(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def drop_rest(self) -> None:
        with self._lock:
            rest, self._waiting = self._waiting, 0
        if rest:
            self._drop(rest)

    def _drop(self, spans: int) -> None:
        with self._lock:
            before, self._dropped = self._dropped, self._dropped + spans
            dropped = self._dropped
        self._on_dropped(dropped)
        if before.bit_length() < dropped.bit_length():
            LOG.warning(
                "%d spans of traces were dropped, because the OpenTelemetry collector did not take them; "
                "lower OTEL_TRACES_SAMPLER_ARG, or see to the collector",
                dropped,
            )


class EndedTraces:
    """Exports traces whose spans are made after their end, with given times and ids; never blocks.

    The caller applies `sampler`, and calls `room_for` before each trace. `on_dropped` gets the sum of dropped
    spans, on any thread. For one thread.
    """

    def __init__(
        self,
        service: str,
        most_waiting: int,
        on_dropped: Callable[[int], None],
        *,
        exporter: SpanExporter | None = None,
    ) -> None:
        self.sampler = TracerProvider(shutdown_on_exit=False).sampler
        self.ids = GivenIds()
        self._exporter = CountingExporter(exporter or OTLPSpanExporter(), most_waiting, on_dropped)
        tracers = TracerProvider(ALWAYS_ON, _resource(service), shutdown_on_exit=False, id_generator=self.ids)
        tracers.add_span_processor(_in_batches(self._exporter, most_waiting))
        self.otel = OpenTelemetry(tracers, metrics.NoOpMeterProvider())
        self.room_for = self._exporter.room_for

    def close(self) -> None:
        self.otel.close()
        self._exporter.drop_rest()
