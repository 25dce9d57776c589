from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.otlp import Collector, collecting

from forebay import otel
from forebay.otel import EndedTraces, open_otel
from forebay.settings import otel_queue_spans

pytestmark = pytest.mark.heavy

BOTH = frozenset(("traces", "metrics"))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


def report(signals: frozenset[str] = BOTH) -> None:
    telemetry = open_otel("forebay-gateway", signals)
    telemetry.tracer.start_span("chat m").end()
    telemetry.meter.create_histogram("gen_ai.server.request.duration").record(1.5)
    telemetry.close()


def resource_of(collector: Collector) -> dict[str, str]:
    spans = ExportTraceServiceRequest.FromString(collector.got["/v1/traces"]).resource_spans[0]
    values = ExportMetricsServiceRequest.FromString(collector.got["/v1/metrics"]).resource_metrics[0]
    assert spans.scope_spans[0].spans[0].name == "chat m"
    assert values.scope_metrics[0].metrics[0].name == "gen_ai.server.request.duration"
    assert spans.resource == values.resource
    return {one.key: one.value.string_value for one in spans.resource.attributes}


def test_everything_is_sent_before_the_end(collector: Collector) -> None:
    report()
    found = resource_of(collector)
    assert found["service.name"] == "forebay-gateway"
    report()
    assert resource_of(collector)["service.instance.id"] != found["service.instance.id"]


def test_environment_variables_apply(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret%201")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1,deployment=blue")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    report()
    found = resource_of(collector)
    assert (found["service.name"], found["service.instance.id"]) == ("mine", "pod-1")
    assert found["deployment"] == "blue"
    assert collector.keys == {"secret 1"}


def test_zero_sampling_sends_no_traces(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    report()
    assert set(collector.got) == {"/v1/metrics"}


def test_a_queue_may_be_shorter_than_the_usual_batch(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    report()
    assert resource_of(collector)
    traces = EndedTraces("p", otel_queue_spans()[0], lambda _: None)
    assert traces.room_for(100)
    assert not traces.room_for(1)
    traces.close()


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_one_signal_alone(collector: Collector, signal: str) -> None:
    report(frozenset((signal,)))
    assert set(collector.got) == {f"/v1/{signal}"}


def test_hanging_collector_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr(otel, "CLOSE_S", 0.01)
    # Connections are accepted, but not answered.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        report()
        assert "did not take the last data within 0.01 s" in caplog.text
        for thread in threading.enumerate():
            if thread.name == "otel-close":
                # Its log would appear in another test.
                thread.join(60)
