"""What the gateway counts, for Prometheus, and its traces: one span per request, and the trace handed on to
the replica (W3C Trace Context).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay.errors import SetupError
from forebay.fleet.client import FleetClient
from forebay.gateway.access_log import AccessLog
from forebay.gateway.peak_load import PEAK_LOAD, PEAK_S, PeakLoad

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """Counters of one gateway, in a registry of their own. Labels come from settings and routes only."""

    def __init__(
        self,
        fleet: FleetClient,
        load: PeakLoad,
        prefill: FleetClient | None = None,
        log: AccessLog | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "forebay_gateway_requests",
            "Requests that have ended, by what the client got: a status, `hung_up` or `cut`.",
            ("route", "key", "outcome"),
            registry=self.registry,
        )
        self.refused = Counter(
            "forebay_gateway_refused",
            "Requests that the gateway itself refused, by the error's code.",
            ("code",),
            registry=self.registry,
        )
        self.retries = Counter(
            "forebay_gateway_retries",
            "Requests sent to another replica, by what happened at the first.",
            ("cause",),
            registry=self.registry,
        )
        self.tokens = Counter(
            "forebay_gateway_tokens",
            "Tokens of answers, by key, model, and kind: prompt, cached (of the prompt) and completion.",
            ("key", "model", "kind"),
            registry=self.registry,
        )
        self.kv_transfers = Counter(
            "forebay_gateway_kv_transfers",
            "Answers that were decoded with the KV cache that a server of `prefill` handed over.",
            registry=self.registry,
        )
        self.kv_fallbacks = Counter(
            "forebay_gateway_kv_fallbacks",
            "Answers whose prompt was prefilled where it was decoded, though there is `prefill`, by cause.",
            ("cause",),
            registry=self.registry,
        )
        self.first_byte_s = Histogram(
            "forebay_gateway_first_byte_seconds",
            "From a request's head to the first byte of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.duration_s = Histogram(
            "forebay_gateway_duration_seconds",
            "From a request's head to the end of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "forebay_gateway_in_flight", "Requests that are being answered.", registry=self.registry
        )
        Gauge(
            PEAK_LOAD,
            f"Most requests that were at replicas or waited for one, in the last {PEAK_S:.0f} s.",
            registry=self.registry,
        ).set_function(load.peak)
        self.registry.register(_Fleet(fleet, prefill))
        if log is not None:
            self.registry.register(_LostLines(log))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _LostLines(Collector):
    def __init__(self, log: AccessLog) -> None:
        self._log = log

    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(
            "forebay_gateway_access_log_lost",
            "Lines of the access log that were not written.",
            self._log.lost,
        )


class _Fleet(Collector):
    """The replicas as they are when asked."""

    def __init__(self, fleet: FleetClient, prefill: FleetClient | None) -> None:
        self._fleet = fleet
        self._prefill = prefill

    def collect(self) -> Iterable[GaugeMetricFamily]:
        available = GaugeMetricFamily(
            "forebay_gateway_replica_available", "1 where a replica gets requests.", labels=("replica",)
        )
        prefill = {} if self._prefill is None else self._prefill.replicas()
        for url, why in (prefill | self._fleet.replicas()).items():
            available.add_metric((url,), float(not why))
        waiting = GaugeMetricFamily(
            "forebay_gateway_waiting", "Requests that wait for a replica.", self._fleet.waiting
        )
        return available, waiting


NAME = "forebay.gateway"
HEADERS = (b"traceparent", b"tracestate")


class Tracing:
    """Begins and ends spans. Without a provider spans are not recorded, but a client's trace goes on."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer: Tracer = NoOpTracer() if provider is None else provider.get_tracer(NAME)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, route: str, headers: Mapping[bytes, bytes], id: str) -> Span:
        """The span of one request, below the client's where it names one."""
        carrier = {name.decode(): headers[name].decode("latin-1") for name in HEADERS if name in headers}
        return self._tracer.start_span(
            f"{method} {route}",
            self._propagator.extract(carrier) if carrier else None,
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": route, "forebay.request_id": id},
        )

    def hand_on(self, span: Span) -> list[tuple[str, str]]:
        """The headers that put a replica's spans below this one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return list(carrier.items())

    def end(self, span: Span, outcome: str, attributes: Mapping[str, str | int | float]) -> None:
        if span.is_recording():
            for name, value in attributes.items():
                span.set_attribute(name, value)
            if outcome.isdigit():
                span.set_attribute("http.response.status_code", int(outcome))
            if not outcome.isdigit() or outcome >= "500":
                span.set_status(Status(StatusCode.ERROR, outcome))
        span.end()

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""
        if self._provider is not None:
            self._provider.shutdown()


def open_tracing(otlp: str | None, share: float) -> Tracing:
    """Spans of this `share` of new traces go to the OTLP collector at `otlp` (HTTP); none without one.

    A client that has decided about its trace is followed. Raises `SetupError` where the packages are missing.
    """
    if otlp is None:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ModuleNotFoundError as error:
        raise SetupError(
            f"traces need {error.name}, which is missing; pip install 'forebay[gateway-traces]'"
        ) from None
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(share), resource=Resource.create({"service.name": "forebay-gateway"})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(otlp)))
    return Tracing(provider)
