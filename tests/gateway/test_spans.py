"""What a gateway reports by OpenTelemetry, and that it neither imports nor reports anything without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
)
from opentelemetry.trace import SpanKind, StatusCode
from tests.harness.engines import Canned, CannedEngine, answer_of, card
from tests.harness.otlp import collecting

from forebay.engine.protocol import CHAT_PATH
from forebay.errors import ServerFault, SetupError
from forebay.gateway import serve
from forebay.gateway.asked import Asked
from forebay.gateway.exchange import Exchange
from forebay.gateway.refusal import no_replica
from forebay.gateway.replica import Lost
from forebay.gateway.serve import open_tracing
from forebay.gateway.spans import SpanTracing
from forebay.otel import OpenTelemetry
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

from .conftest import CHAT, QUICK, Served, before, before_engines, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANNED_CHAT = CHAT | {"model": "m"}
OURS = {"forebay.key", "forebay.phase", "forebay.replica", "forebay.request_id", "forebay.retry.cause"}
NEW = {
    "gen_ai.token.modality",
    "gen_ai.client.inference.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens",
    "gen_ai.client.inference.usage.cache_read.input_tokens",
}
"""Names of version 0.1.0 of the conventions that OpenTelemetry's Python package does not have yet."""
RESENDS = "http.request.resend_count"


class Reported:
    """Keeps the spans and metrics of gateways."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = SpanTracing(OpenTelemetry(tracers, MeterProvider([self._reader])))

    def spans(self) -> tuple[list[ReadableSpan], list[ReadableSpan]]:
        """Those of requests and those of attempts, in the order in which they began."""
        found = sorted(self._spans.get_finished_spans(), key=lambda span: span.start_time or 0)
        return (
            [span for span in found if span.kind is SpanKind.SERVER],
            [span for span in found if span.kind is SpanKind.CLIENT],
        )

    def metrics(self) -> dict[str, list[Any]]:
        """The points of each metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in metrics}


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    made = Reported()
    monkeypatch.setattr(serve, "open_tracing", lambda: made.tracing)
    return made


async def ask(served: Served, body: Mapping[str, Any] | bytes = CHAT, **headers: str) -> int:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    async with served.session.post(served.url + CHAT_PATH, data=data, headers=headers) as response:
        await response.read()
        return response.status


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_request_span_has_a_child_span_per_attempt(reported: Reported) -> None:
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("m-2024")})
    async with before_engines(engine, opentelemetry=True) as served:
        assert await ask(served, CANNED_CHAT, traceparent=PARENT, tracestate="a=b") == 200
    (request,), (attempt,) = reported.spans()
    assert request.parent is not None
    assert attempt.parent is not None
    assert request.context is not None
    assert attempt.context is not None
    assert f"{request.context.trace_id:032x}-{request.parent.span_id:016x}" == PARENT[3:-3]
    assert attempt.parent.span_id == request.context.span_id
    sent = {name.lower(): value for name, value in engine.sent[0].headers.items()}
    assert sent["traceparent"] == f"{PARENT[:36]}{attempt.context.span_id:016x}-01"
    assert sent["tracestate"] == "a=b"
    assert (request.name, attempt.name) == (f"POST {CHAT_PATH}", "chat m")
    host, port = engine.url.removeprefix("http://").split(":")
    assert of(attempt) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "server.address": host,
        "server.port": int(port),
        "http.response.status_code": 200,
    }
    found = of(request)
    assert found.pop("forebay.request_id") == sent["x-request-id"]
    assert found == {
        "http.request.method": "POST",
        "http.route": CHAT_PATH,
        "url.path": CHAT_PATH,
        "http.response.status_code": 200,
        "forebay.key": "anyone",
        "forebay.replica": engine.url,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 16,
        "gen_ai.response.model": "m-2024",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert {span.status.status_code for span in (request, attempt)} == {StatusCode.UNSET}


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["503", "refuse", "hang"])
async def test_each_attempt_has_its_replica_and_reason(reported: Reported, fault: str) -> None:
    causes = {"503": "overloaded", "refuse": "unreachable", "hang": "timeout"}
    broken = ReplicaScript(delay=Fixed(0.0), faults=Faults(((fault, 1.0),)))
    relay = {"first_byte_s": 1.0 if fault == "hang" else 60.0}
    async with before(QUICK, broken, opentelemetry=True, routing="round_robin", relay=relay) as (served, two):
        for _ in range(2):
            assert await ask(served, CHAT | {"stream": True}) == 200
    requests, attempts = reported.spans()
    first, second = next(pair for pair in pairwise(attempts) if RESENDS in of(pair[1]))
    ports = [int(replica.url.rpartition(":")[2]) for replica in two]
    assert [of(span)["server.port"] for span in (second, first)] == ports
    assert (of(first)["error.type"], first.status.status_code) == (causes[fault], StatusCode.ERROR)
    assert (of(second)[RESENDS], of(second)["forebay.retry.cause"]) == (1, causes[fault])
    assert "error.type" not in of(second)
    assert {of(span)["http.response.status_code"] for span in requests} == {200}


async def test_every_stream_has_tokens(reported: Reported) -> None:
    counting = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    async with before(QUICK, opentelemetry=True) as (served, _):
        assert await ask(served, counting) == 200
        assert await ask(served, CHAT | {"stream": True}) == 200
    (counted, other), _ = ([of(span) for span in spans] for spans in reported.spans())
    assert counted["gen_ai.request.stream"]
    assert counted["gen_ai.usage.output_tokens"] > 0
    assert counted["gen_ai.response.time_to_first_chunk"] > 0
    assert counted["gen_ai.response.finish_reasons"] == other["gen_ai.response.finish_reasons"] == ("stop",)
    assert other["gen_ai.usage.output_tokens"] == counted["gen_ai.usage.output_tokens"]
    metrics = {name: point for name, (point,) in reported.metrics().items()}
    usage = "gen_ai.client.inference.usage"
    assert {name: point.value for name, point in metrics.items() if name.startswith(usage)} == {
        f"{usage}.input_tokens": counted["gen_ai.usage.input_tokens"] + other["gen_ai.usage.input_tokens"],
        f"{usage}.output_tokens": counted["gen_ai.usage.output_tokens"] + other["gen_ai.usage.output_tokens"],
        f"{usage}.cache_read.input_tokens": counted["gen_ai.usage.cache_read.input_tokens"]
        + other["gen_ai.usage.cache_read.input_tokens"],
    }
    assert {name: point.count for name, point in metrics.items() if not name.startswith(usage)} == {
        "gen_ai.server.request.duration": 2,
        "gen_ai.server.time_to_first_token": 2,
        "gen_ai.server.time_per_output_token": 2,
    }
    assert metrics["gen_ai.server.request.duration"].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
    }


async def test_span_of_a_broken_answer(reported: Reported) -> None:
    cut = ReplicaScript(delay=Fixed(0.0), chunks=3, faults=Faults((("cut", 1.0),)))
    async with before(cut, opentelemetry=True) as (served, _):
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(served, CHAT | {"stream": True})
    (request,), (attempt,) = reported.spans()
    assert (of(request)["error.type"], of(attempt)["error.type"]) == ("cut", "unreachable")
    assert {span.status.status_code for span in (request, attempt)} == {StatusCode.ERROR}


async def test_span_of_a_disconnected_client(reported: Reported) -> None:
    async with before(ReplicaScript(delay=Fixed(600.0)), opentelemetry=True) as (served, (replica,)):
        asking = asyncio.create_task(ask(served))
        await until(lambda: bool(replica.report().calls))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    (request,), (attempt,) = reported.spans()
    assert (of(request)["error.type"], of(attempt)["error.type"]) == ("hung_up", "cancelled")
    assert {span.status.status_code for span in (request, attempt)} == {StatusCode.ERROR}


async def test_rejected_request_has_no_attempt_span(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", "sk-secret")
    keys = [{"name": "a", "key": {"env": "K"}}]
    right = {"Authorization": "Bearer sk-secret"}
    engine = CannedEngine([card("m")], {CHAT_PATH: Canned(status=422)})
    async with before_engines(engine, opentelemetry=True, keys=keys) as served:
        assert await ask(served, CANNED_CHAT, Authorization="Bearer sk-wrong") == 401
        assert await ask(served, b"{", **right) == 400
        assert await ask(served, CHAT | {"model": "made-up"}, **right) == 404
        assert await ask(served, CANNED_CHAT, **right) == 422
    requests, (attempt,) = reported.spans()
    errors = ["invalid_api_key", "invalid_json", "model_not_found", "422"]
    assert [of(span)["error.type"] for span in requests] == errors
    assert {span.status.status_code for span in requests} == {StatusCode.UNSET}
    assert (of(attempt)["error.type"], attempt.status.status_code) == ("422", StatusCode.ERROR)
    (durations,) = reported.metrics().values()
    assert sorted(str(point.attributes["error.type"]) for point in durations) == sorted(errors)
    assert not any("gen_ai.request.model" in point.attributes for point in durations)


async def test_prefill_is_a_separate_attempt(reported: Reported) -> None:
    script = ReplicaScript(delay=Fixed(0.0), block_chars=16, cache_blocks=1000)
    async with FakeReplica(script) as prefill:
        engine = {"prefill": [prefill.url]}
        async with before(script, opentelemetry=True, engine=engine) as (served, (decode,)):
            assert await ask(served) == 200
    _, attempts = reported.spans()
    ports = [int(replica.url.rpartition(":")[2]) for replica in (prefill, decode)]
    assert [of(span)["server.port"] for span in attempts] == ports
    assert [of(span).get("forebay.phase") for span in attempts] == ["prefill", None]
    assert RESENDS not in of(attempts[1])


async def test_spans_hold_no_text_and_no_key(reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "sk-secret")
    monkeypatch.setenv("E", "sk-engine")
    engine = {"api_key": {"env": "E"}}
    keys = [{"name": "a", "key": {"env": "K"}}]
    messages = [{"role": "user", "content": 'Secret "finish_reason":"prompt" "model":"prompt"'}]
    answer = orjson.loads(answer_of("m").body)
    answer["choices"][0]["message"]["content"] = 'Answer "finish_reason":"answer" "model":"answer"'
    answer["choices"][0]["stop_reason"] = "answer"
    # Plain text has no quotes that are escaped.
    spoken = Canned(b'Answer "finish_reason":"answer" "model":"answer"', content_type="text/plain")
    canned = {CHAT_PATH: Canned(orjson.dumps(answer)), "/v1/audio/speech": spoken}
    async with before_engines(
        CannedEngine([card("m")], canned), opentelemetry=True, keys=keys, engine=engine
    ) as served:
        body = CANNED_CHAT | {"messages": messages, "stop": ["prompt"], "user": "prompt"}
        headers = {"Authorization": "Bearer sk-secret"}
        assert await ask(served, body, **headers) == 200
        speech = served.url + "/v1/audio/speech"
        async with served.session.post(
            speech, json={"model": "m", "input": "prompt"}, headers=headers
        ) as response:
            assert await response.read() == spoken.body
    requests, attempts = reported.spans()
    text = "".join(span.to_json() for span in (*requests, *attempts)) + str(reported.metrics())
    assert "finish_reasons" in text
    for word in ("ecret", "prompt", "nswer", "sk-"):
        assert word not in text


async def test_unsampled_client_trace_is_continued(reported: Reported) -> None:
    engine = CannedEngine([card("m")], {CHAT_PATH: answer_of("m")})
    async with before_engines(engine, opentelemetry=True) as served:
        assert await ask(served, CANNED_CHAT, traceparent=PARENT[:-1] + "0") == 200
        assert await ask(served, CANNED_CHAT, traceparent="nonsense") == 200
    first, second = (sent.headers["traceparent"] for sent in engine.sent)
    assert (first[:36], first[-2:]) == (PARENT[:36], "00")
    assert second[:36] != PARENT[:36]
    assert len(reported.spans()[0]) == 1


async def test_spans_of_models_and_other_calls(reported: Reported) -> None:
    answers = {"/v1/rerank": Canned(), "/v1/messages": Canned(b'{"stop_reason":"end_turn"}')}
    async with before_engines(CannedEngine([card("m")], answers), opentelemetry=True) as served:
        async with served.session.get(served.url + "/v1/models") as response:
            assert response.status == 200
        for path in answers:
            asked = {"model": "m", "max_tokens": 3, "messages": []}
            async with served.session.post(served.url + path, json=asked) as response:
                assert response.status == 200
    (models, rerank, messages), _ = ([of(span) for span in spans] for spans in reported.spans())
    assert not any(name.startswith("gen_ai") for name in models)
    assert rerank["gen_ai.operation.name"] == "rerank"
    assert (messages["gen_ai.operation.name"], messages["gen_ai.provider.name"]) == ("chat", "anthropic")
    assert messages["gen_ai.response.finish_reasons"] == ("end_turn",)
    (durations,) = (p for name, p in reported.metrics().items() if name == "gen_ai.server.request.duration")
    assert {str(point.attributes["gen_ai.operation.name"]) for point in durations} == {"rerank", "chat"}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Lost("no progress for 60 s"), "timeout"),
        (ServerFault("http://x answered 500"), "server_fault"),
        (no_replica("none is up"), "no_replica"),
        (asyncio.CancelledError(), "cancelled"),
        (ZeroDivisionError("1/0"), "ZeroDivisionError"),
    ],
)
def test_attempt_span_has_the_cause_of_its_end(reported: Reported, error: BaseException, cause: str) -> None:
    trace = reported.tracing.begin(exchange_with({}))
    with pytest.raises(type(error)), trace.attempt(Asked("/x", b"", "m", False, ""), "https://[::1]/v1"):
        raise error
    _, (attempt,) = reported.spans()
    assert (of(attempt)["error.type"], attempt.events) == (cause, ())
    assert (of(attempt)["server.address"], of(attempt)["server.port"]) == ("::1", 443)


@given(parent=st.binary(max_size=80), state=st.binary(max_size=200))
def test_any_trace_context_is_used_or_ignored(parent: bytes, state: bytes) -> None:
    tracing = Reported().tracing
    for given_parent in (parent, PARENT.encode()):
        trace = tracing.begin(exchange_with({b"traceparent": given_parent, b"tracestate": state}))
        headers = dict(trace.attempt(Asked("/x", b"", "m", False, ""), "http://x").headers)
        assert len(headers["traceparent"]) == len(PARENT)


def exchange_with(headers: dict[bytes, bytes]) -> Exchange:
    return Exchange("POST", CHAT_PATH, CHAT_PATH, headers, [], "r1", "", 0.0)


@pytest.mark.heavy
async def test_spans_are_flushed_before_the_gateway_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with before(QUICK, opentelemetry=True) as (served, _):
            assert await ask(served) == 200
    for text in (b"forebay-gateway", CHAT_PATH.encode(), b"chat fake", b"gen_ai.usage.output_tokens"):
        assert text in collector.got["/v1/traces"]
    assert b"gen_ai.server.request.duration" in collector.got["/v1/metrics"]


@pytest.mark.heavy
async def test_attribute_names_follow_the_conventions(reported: Reported) -> None:
    known = {
        value
        for module in (
            gen_ai_attributes,
            error_attributes,
            http_attributes,
            server_attributes,
            url_attributes,
        )
        for value in vars(module).values()
        if isinstance(value, str)
    }
    counting = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    broken = ReplicaScript(delay=Fixed(0.0), faults=Faults((("503", 1.0),)))
    async with before(QUICK, broken, opentelemetry=True, routing="round_robin") as (served, _):
        for _ in range(2):
            assert await ask(served, counting) == 200
        assert await ask(served, b"{") == 400
    requests, attempts = reported.spans()
    used = {name for span in (*requests, *attempts) for name in of(span)}
    metrics = reported.metrics()
    used |= {name for points in metrics.values() for point in points for name in point.attributes}
    assert len(used) > 15
    assert used - known - NEW <= OURS
    assert set(metrics) - NEW <= {value for value in vars(gen_ai_metrics).values() if isinstance(value, str)}


OFF = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from tests.gateway.conftest import CHAT, before
async def main():
    async with before() as (served, _):
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=CHAT) as response:
            await response.read()
            print(response.status, [name for name in sys.modules if name.startswith("opentelemetry.")])
asyncio.run(main())
"""


@pytest.mark.heavy
def test_opentelemetry_is_imported_only_with_its_option() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.stdout == "200 []\n", done.stderr


def test_missing_opentelemetry_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in ("forebay.otel", "forebay.gateway.spans")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(
        SetupError, match=r"opentelemetry.sdk.trace is missing; pip install 'forebay\[otel\]'"
    ):
        open_tracing()
