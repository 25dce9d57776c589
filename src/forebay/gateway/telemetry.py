"""The gateway's metrics and health, and who may see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forebay.fleet.client import FleetClient
from forebay.gateway.access_log import AccessLog
from forebay.gateway.keys import KeyRing
from forebay.gateway.peak_load import PEAK_LOAD, PEAK_S, PeakLoad

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayMetrics:
    """Metrics of one gateway, in their own registry. Labels come from settings and routes only."""

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
    def __init__(self, fleet: FleetClient, prefill: FleetClient | None) -> None:
        self._fleet = fleet
        self._prefill = prefill

    def collect(self) -> Iterable[GaugeMetricFamily]:
        available = GaugeMetricFamily(
            "forebay_gateway_replica_available", "1 if the replica gets requests.", labels=("replica",)
        )
        in_flight = GaugeMetricFamily(
            "forebay_gateway_replica_in_flight", "Requests at the replica.", labels=("replica",)
        )
        why: dict[str, str] = {}
        requests: dict[str, int] = {}
        for fleet in (self._fleet,) if self._prefill is None else (self._prefill, self._fleet):
            why |= fleet.replicas()
            for url, count in fleet.at_replicas().items():
                requests[url] = requests.get(url, 0) + count
        for url, reason in why.items():
            available.add_metric((url,), float(not reason))
        for url, count in requests.items():
            in_flight.add_metric((url,), count)
        waiting = GaugeMetricFamily(
            "forebay_gateway_waiting", "Requests that wait for a replica.", self._fleet.waiting
        )
        return available, in_flight, waiting


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Who may see `/health` and `/metrics`: clients of `port` (None: any) with the key in `keys`, if any."""

    keys: KeyRing | None = None
    port: int | None = None

    @property
    def closed(self) -> bool:
        return self.keys is not None or self.port is not None


def health_of(
    fleet: FleetClient, prefill: FleetClient | None, *, draining: bool, in_flight: int, waits: bool
) -> tuple[int, dict[str, object]]:
    replicas = _counts(fleet)
    state = "draining" if draining else "ok" if replicas["available"] else "no_replica"
    healthy = state == "ok" or (state == "no_replica" and waits)
    return 200 if healthy else 503, {
        "status": state,
        "replicas": replicas,
        **({} if prefill is None else {"prefill": _counts(prefill)}),
        "in_flight": in_flight,
    }


def _counts(fleet: FleetClient) -> dict[str, int]:
    why = fleet.replicas().values()
    return {"available": sum(not one for one in why), "known": len(why)}
