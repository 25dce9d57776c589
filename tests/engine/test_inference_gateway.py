from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.harness.inference_gateway import ScriptedGateway

from forebay.engine.inference_gateway import GatewayEngine, InferenceGatewayFactory, PickerHeaders
from forebay.engine.protocol import EMBED_PATH
from forebay.errors import Unauthorized, Unreachable
from forebay.fleet.config import FleetEngineFactory
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_handler import RequestHandler
from forebay.pipeline.inference import Served, call_of, served_model, why_unserved
from forebay.pipeline.spec import PipelineSpec
from forebay.records import Event, KeyedEvent, Message, Request, Result
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

OLD = {"x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-slo-ttft-ms"}
NEW = {"x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-llm-d-slo-ttft-ms"}


def request(priority: int = 0) -> Request:
    return Request("r1", "m", messages=(Message("user", "hello"),), priority=priority)


@pytest.mark.parametrize(
    ("priority", "objective"), [(-5, "urgent"), (0, "urgent"), (9, "urgent"), (10, "batch"), (99, "batch")]
)
def test_priority_maps_to_the_objective_at_or_below_it(priority: int, objective: str) -> None:
    headers = PickerHeaders((("batch", 10), ("urgent", 0))).of(request(priority), math.inf)
    assert headers == {
        "x-llm-d-inference-objective": objective,
        "x-gateway-inference-objective": objective,
    }


def test_remaining_time_is_in_whole_positive_milliseconds() -> None:
    headers = PickerHeaders()
    assert headers.of(request(), 1.2345)["x-llm-d-slo-ttft-ms"] == "1234"
    assert headers.of(request(), 0.0001)["x-slo-ttft-ms"] == "1"
    assert headers.of(request(), math.inf) == {}


def test_each_header_has_its_old_name_too() -> None:
    headers = PickerHeaders((("urgent", 0),), "triage").of(request(), 1.0)
    assert headers.keys() == OLD | NEW
    assert all(headers[new] == headers[old] for new, old in zip(sorted(NEW), sorted(OLD), strict=True))


def pipeline(url: str, **engine: Any) -> PipelineSpec:
    return PipelineSpec.model_validate(
        {
            "name": "triage",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "sink": {"type": "jsonl", "path": "out"},
            "prompt": "{{ text }}",
            "priority": "{{ urgency }}",
            "deadline_s": 300.0,
            "retry": {"base_s": 0.01},
            "engine": {"url": url, "model": "fake", **engine},
        }
    )


def event(text: str, urgency: int) -> KeyedEvent:
    return KeyedEvent(text, "", Event(b"", {"text": text, "urgency": urgency}), read_ms=0)


async def answered(spec: PipelineSpec, *events: KeyedEvent) -> None:
    replicas = spec.engine.replicas()
    assert replicas is not None
    handler = RequestHandler(call_of(spec, replicas=replicas, model="fake"), InferenceCounters())
    try:
        for each in events:
            assert isinstance(await handler.answer(each), Result)
    finally:
        await handler.close()


TOLD = {"objectives": {"urgent": 0, "batch": 10}, "fairness_id": "triage"}


async def test_events_have_a_priority_and_attempts_the_rest_of_the_deadline() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0))) as replica,
        ScriptedGateway(replica.url, refused=2).served() as gateway,
    ):
        await answered(pipeline(gateway.url, inference_gateway=TOLD), event("a", 12), event("b", 3))
    assert [call["x-request-id"] for call in gateway.calls] == ["a", "a", "a", "b"]
    assert [call["x-llm-d-inference-objective"] for call in gateway.calls] == ["batch"] * 3 + ["urgent"]
    assert {call["x-llm-d-inference-fairness-id"] for call in gateway.calls} == {"triage"}
    first, second, third, other = (int(call["x-llm-d-slo-ttft-ms"]) for call in gateway.calls)
    assert 300_000 >= first > second > third > 0
    assert other > third, "the time of another event is its own"


def gateway_engine(gateway: ScriptedGateway) -> GatewayEngine:
    return InferenceGatewayFactory(gateway.url, PickerHeaders())()


async def test_records_wait_while_the_gateway_refuses_the_key() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0), models=("m",))) as replica,
        ScriptedGateway(replica.url, key="sk-new").served() as gateway,
    ):
        spec = pipeline(gateway.url, inference_gateway={})
        served = Served(FixedReplicas((gateway.url,)), "m")
        engine, usable = gateway_engine(gateway), list[int]()
        engine.on_usable = usable.append
        try:
            for _ in range(2):
                with pytest.raises(Unreachable, match=r"answered 401.*check the API key"):
                    await engine.complete(request(), timeout_s=60.0)
            why = await asyncio.to_thread(why_unserved, spec, served)
            assert re.search("the engine gets no requests: .*answered 401.*check the API key", why)
            gateway.key = ""
            for _ in range(2):
                assert (await engine.complete(request(), timeout_s=60.0)).text
            assert usable == [0, 0, 1]
            assert await asyncio.to_thread(why_unserved, spec, served) == ""
        finally:
            await engine.close()


async def test_records_wait_while_the_gateway_answers_in_another_protocol() -> None:
    fault = Faults((("binary", 1.0),))
    script = ReplicaScript(models=("m",), delay=Fixed(0.0), absent=(EMBED_PATH,), faults=fault)
    async with FakeReplica(script) as replica:
        engine = InferenceGatewayFactory(replica.url, PickerHeaders())()
        with pytest.raises(Unreachable):
            await engine.complete(request(), timeout_s=60.0)
        replica.script = replace(script, faults=Faults())
        assert (await engine.complete(request(), timeout_s=60.0)).text
        await engine.close()


async def test_outage_of_the_gateway_is_a_metric() -> None:
    counts, spec = InferenceCounters(), pipeline("http://gateway.invalid", inference_gateway={})
    replicas = spec.engine.replicas()
    assert replicas is not None
    handler = RequestHandler(call_of(spec, replicas=replicas, model="m"), counts)
    try:
        assert isinstance(handler.engine, GatewayEngine)
        handler.engine.on_usable(0)
        assert counts.replicas.values() == {"replicas": 0}
    finally:
        await handler.close()


async def test_request_that_the_gateway_refuses_does_not_wait() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0), models=("m",))) as replica,
        ScriptedGateway(replica.url).served() as gateway,
    ):
        engine = gateway_engine(gateway)
        engine.on_usable = lambda usable: pytest.fail("reported")
        try:
            with pytest.raises(Unauthorized):
                await engine.complete(Request("r1", "m", prompt="((refused))"), timeout_s=60.0)
        finally:
            await engine.close()


async def test_requests_that_the_gateway_refuses_at_once_share_a_probe() -> None:
    engine, probes = InferenceGatewayFactory("http://gateway.invalid", PickerHeaders())(), list[Any]()

    async def probe(model: str, timeout_s: float = 10.0, *, chat: bool = False) -> None:
        probes.append((model, chat))
        raise Unauthorized("refused")

    engine._gateway.probe = probe  # type: ignore[method-assign]
    try:
        refused = await asyncio.gather(*(engine._refuses_all(request(), math.inf) for _ in range(5)))
        assert refused == [True] * 5
        assert probes == [("m", True)]
    finally:
        await engine.close()


async def test_only_answers_are_requested() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0))) as replica,
        ScriptedGateway(replica.url).served() as gateway,
    ):
        await answered(pipeline(gateway.url, inference_gateway={}), event("a", 0))
    assert gateway.asked == ["POST /v1/chat/completions"], "no health, no metrics, no list of models"
    (call,) = gateway.calls
    assert call.keys() & (OLD | NEW) == {"x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"}


async def test_other_engines_get_no_such_header() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0), models=("fake",))) as replica,
        ScriptedGateway(replica.url).served() as gateway,
    ):
        await answered(pipeline(gateway.url), event("a", 0))
    assert [call.keys() & (OLD | NEW) for call in gateway.calls] == [set()]


def test_explicit_replicas_are_a_fleet() -> None:
    spec = pipeline("http://gateway", inference_gateway=TOLD)
    other = FixedReplicas(("http://vllm:8000",))
    assert isinstance(call_of(spec, replicas=other, model="m").engine, FleetEngineFactory)
    own = call_of(spec, replicas=FixedReplicas(("http://gateway",)), model="m").engine
    assert own == InferenceGatewayFactory(
        "http://gateway", PickerHeaders((("urgent", 0), ("batch", 10)), "triage")
    )


def test_named_model_is_not_queried() -> None:
    spec = pipeline("http://gateway.invalid", inference_gateway={})
    replicas = spec.engine.replicas()
    assert replicas is not None
    assert served_model(spec, replicas).name == "fake"


@pytest.mark.parametrize(
    ("engine", "rest", "said"),
    [
        ({"url": ["http://a", "http://b"]}, {}, "expected one 'url' with 'inference_gateway'"),
        ({"kv_events": "tcp://{host}:5557"}, {}, "expected no 'kv_events' with 'inference_gateway'"),
        ({"prefill": ["http://p"]}, {}, "expected no 'prefill' with 'inference_gateway'"),
        ({"inference_gateway": {"objectives": {"a": 1, "b": 1}}}, {}, "with priorities that differ"),
        ({"inference_gateway": {"objectives": {"a b": 1}}}, {}, "objectives"),
        ({"inference_gateway": {"fairness_id": "a\r\nb"}}, {}, "fairness_id"),
        ({}, {"routing": "session_affinity"}, "expected none with engine.inference_gateway"),
        ({}, {"scaling": {"max": 2}}, "expected none with engine.inference_gateway"),
    ],
)
def test_incompatible_settings_are_rejected(engine: dict[str, Any], rest: dict[str, Any], said: str) -> None:
    given = pipeline("http://gateway").model_dump(exclude_unset=True)
    given |= {"engine": {"url": "http://gateway", "inference_gateway": {}, **engine}, **rest}
    with pytest.raises(ValueError, match="validation error") as caught:
        PipelineSpec.model_validate(given)
    assert said in str(caught.value)
