"""OpenTelemetry: where traces and metrics go, and their names.

Import this module only if OpenTelemetry is on: its packages are optional (extra `otel`). The names are those
of the semantic conventions for generative AI, version 0.1.0, which are in development
(https://github.com/open-telemetry/semantic-conventions-genai).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Collection, Iterable

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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
        """The context of a caller's headers, in lower case; an empty one if they have none that is valid."""
        return self._propagator.extract(dict(headers), Context())

    def headers_for(self, span: trace.Span) -> list[tuple[str, str]]:
        """The headers that make a callee's spans children of `span`."""
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

    The SDK reads the standard `OTEL_*` variables itself. `service` is the service's name unless they have
    another one.
    """
    named = {"service.name": service, "service.instance.id": str(uuid.uuid4())}
    resource = Resource.create({**named, **OTELResourceDetector().detect().attributes})
    tracers: trace.TracerProvider = trace.NoOpTracerProvider()
    meters: metrics.MeterProvider = metrics.NoOpMeterProvider()
    if "traces" in signals:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if "metrics" in signals:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    return OpenTelemetry(tracers, meters)
