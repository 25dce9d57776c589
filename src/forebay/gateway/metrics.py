"""What the gateway counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay.fleet.client import FleetClient

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """Counters of one gateway, in a registry of their own. Labels come from settings and routes only."""

    def __init__(self, fleet: FleetClient) -> None:
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
        self.registry.register(_Fleet(fleet))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Fleet(Collector):
    """The replicas as they are when asked."""

    def __init__(self, fleet: FleetClient) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[GaugeMetricFamily]:
        available = GaugeMetricFamily(
            "forebay_gateway_replica_available", "1 where a replica gets requests.", labels=("replica",)
        )
        for url, why in self._fleet.replicas().items():
            available.add_metric((url,), float(not why))
        waiting = GaugeMetricFamily(
            "forebay_gateway_waiting", "Requests that wait for a replica with room.", self._fleet.waiting
        )
        return available, waiting
