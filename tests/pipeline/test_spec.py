"""What a specification turns into."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from forebay.connectors.base import Written
from forebay.connectors.generator.posts import TOPICS
from forebay.connectors.generator.settings import BurstSpec
from forebay.connectors.kafka.settings import KafkaSink
from forebay.engine.prices import TokenPrices
from forebay.errors import SettingError
from forebay.fleet.config import FleetEngineFactory
from forebay.fleet.disaggregated import DisaggregatedEngineFactory
from forebay.fleet.discovery import DnsReplicas, FileReplicas, FixedReplicas, ReplicaList
from forebay.fleet.endpoints import KubernetesReplicas, RayReplicas
from forebay.pipeline.inference import call_of
from forebay.pipeline.load import parse_spec
from forebay.pipeline.spec import PipelineSpec
from forebay.records import Message, Sampling
from forebay.settings import SecretRef

DATA: dict[str, Any] = {
    "name": "triage",
    "source": {"type": "jsonl", "path": "/in.jsonl", "time": "at", "time_format": "unix_s"},
    "prompt": "Say {{ text }}",
    "key": "{{ user }}",
    "id": "{{ id }}",
    "sink": {"type": "jsonl", "path": "/out"},
    "sampling": {"max_tokens": 8, "stop": ["x"], "extra": {"ignore_eos": True}},
    "engine": {"api_key": {"env": "KEY"}},
    "retry": {"max_attempts": 2},
}


def test_accepted_sampling_values() -> None:
    spec = parse_spec(DATA)
    assert spec.prompt_template().render({"text": "hi"}) == (Message("user", "Say hi"),)
    key, id = spec.key_template(), spec.id_template()
    assert key is not None
    assert id is not None
    assert (key.render({"user": "u"}), id.render({"id": 3})) == ("u", "3")
    assert id.required
    assert spec.sampling.value() == Sampling(max_tokens=8, stop=("x",), extra={"ignore_eos": True})
    assert spec.engine.secret() == SecretRef(env="KEY")
    assert spec.retry.policy().max_attempts == 2
    event_time = spec.source.event_time()  # type: ignore[union-attr]
    assert event_time is not None
    assert event_time.of({"at": 2}) == 2000


def test_prices_are_those_of_the_answering_model() -> None:
    prices = {"prompt": 0.0375, "cached": 0.01, "completion": 0.15}
    named = {"prompt": 3, "completion": 0.000001}
    spec = parse_spec(
        {**DATA, "prices": {"*": prices, "own": named}, "budget": {"per_key_per_day": 0.1}}, base=None
    )
    any_model = call_of(spec, replicas=FixedReplicas(("http://h",)), model="other")
    assert any_model.prices == TokenPrices(37_500, 10_000, 150_000)
    assert any_model.budget_pico == 10**11
    own = call_of(spec, replicas=FixedReplicas(("http://h",)), model="own")
    assert own.prices == TokenPrices(3_000_000, 3_000_000, 1)
    only = parse_spec({**DATA, "prices": {"own": named}})
    with pytest.raises(SettingError, match=r"prices: expected the model 'other', or '\*' for any"):
        call_of(only, replicas=FixedReplicas(("http://h",)), model="other")


def test_transactions_are_named_after_the_pipeline_and_its_state() -> None:
    sink = {"type": "kafka", "bootstrap": "h:1", "topic": "out"}
    spec = parse_spec({**DATA, "sink": sink})
    assert isinstance(spec.sink, KafkaSink)
    assert (
        spec.sink.topic_of(Written("results", "triage", transactions="0123abcd")).transactions
        == "forebay-triage-0123abcd-results"
    )


def test_completions_get_a_plain_prompt() -> None:
    spec = parse_spec({**DATA, "engine": {"api": "completions"}})
    assert spec.prompt_template().render({"text": "hi"}) == "Say hi"


def test_defaults_of_parts_are_those_of_the_engine() -> None:
    spec = parse_spec({key: DATA[key] for key in ("name", "source", "prompt", "sink")})
    assert spec.sampling.value() == Sampling()
    assert (spec.key_template(), spec.id_template(), spec.engine.secret()) == (None, None, None)


def test_every_field_is_described() -> None:
    schema = PipelineSpec.model_json_schema()
    for model in [schema, *(m for m in schema["$defs"].values() if "properties" in m)]:
        assert model["description"]
        for name, field in model["properties"].items():
            assert name == "type" or "description" in field or "$ref" in field, (model["title"], name)


def test_generated_burst_may_have_any_topic_of_posts() -> None:
    assert get_args(BurstSpec.model_fields["topic"].annotation) == tuple(TOPICS)


@pytest.mark.parametrize(
    ("engine", "replicas"),
    [
        ("http://a:1", FixedReplicas(("http://a:1",))),
        ({"url": "http://a:1"}, FixedReplicas(("http://a:1",))),
        (["http://a:1", "http://b:1"], FixedReplicas(("http://a:1", "http://b:1"))),
        ({"url": ["http://a:1"], "model": "m"}, FixedReplicas(("http://a:1",))),
        ({"file": "/replicas"}, FileReplicas("/replicas")),
        ({"dns": "http://name:1"}, DnsReplicas("http://name:1")),
        ({}, None),
        ({"url": None}, None),
    ],
)
def test_engine_is_one_url_several_a_file_or_a_name(engine: Any, replicas: Any) -> None:
    assert parse_spec({**DATA, "engine": engine}).engine.replicas() == replicas


def test_single_url_is_a_fleet_of_one() -> None:
    spec = parse_spec(
        {**DATA, "engine": ["http://a:1", "http://b:1"], "routing": "round_robin", "timeout_s": 20.0}
    )
    fleet = call_of(spec, replicas=FixedReplicas(("http://a:1", "http://b:1")), model="m").engine
    assert isinstance(fleet, FleetEngineFactory)
    assert (fleet.config.routing, fleet.config.stall_s, fleet.config.model) == ("round_robin", 5.0, "m")
    alone = parse_spec({**DATA, "engine": "http://a:1", "capacity": 9, "deadline_s": 77.0})
    one = call_of(alone, replicas=FixedReplicas(("http://a:1",)), model="m").engine
    assert isinstance(one, FleetEngineFactory)
    assert (one.config.capacity, one.config.deadline_s) == (9, 77.0)


def test_kv_cache_events_make_a_fleet_of_one_replica_too() -> None:
    spec = parse_spec({**DATA, "engine": {"url": "http://a:1", "kv_events": "tcp://{host}:5557"}})
    fleet = call_of(spec, replicas=FixedReplicas(("http://a:1",)), model="m").engine
    assert isinstance(fleet, FleetEngineFactory)
    assert fleet.config.kv_events == "tcp://{host}:5557"


def test_kv_cache_events_have_one_form() -> None:
    with pytest.raises(SettingError, match=r"engine.kv_events: expected tcp://\{host\}:5557 or"):
        parse_spec({**DATA, "engine": {"url": "http://a:1", "kv_events": "tcp://*:5557"}})


def test_two_lists_make_two_pools() -> None:
    spec = parse_spec({**DATA, "engine": {"url": "http://d:1", "prefill": ["http://p:1", "http://q:1"]}})
    replicas = spec.engine.replicas()
    assert replicas is not None
    engine = call_of(spec, replicas=replicas, model="m").engine
    assert isinstance(engine, DisaggregatedEngineFactory)
    assert engine.prefill.replicas == FixedReplicas(("http://p:1", "http://q:1"))
    assert engine.decode.replicas == FixedReplicas(("http://d:1",))


@pytest.mark.parametrize(
    ("prefill", "replicas"),
    [
        ("http://p:1", FixedReplicas(("http://p:1",))),
        ({"url": ["http://p:1"]}, FixedReplicas(("http://p:1",))),
        ({"file": "/replicas"}, FileReplicas("/replicas")),
        ({"dns": "http://p:1"}, DnsReplicas("http://p:1")),
        ({"kubernetes": "prefill:http"}, KubernetesReplicas("prefill:http")),
        ({"ray": "http://head:8265/fleet"}, RayReplicas("http://head:8265/fleet")),
    ],
)
def test_prefill_servers_are_found_like_decoders(prefill: Any, replicas: ReplicaList) -> None:
    spec = parse_spec(
        {**DATA, "engine": {"kubernetes": "decode:http", "prefill": prefill}, "scaling": {"max": 2}}
    )
    decode = spec.engine.replicas()
    assert decode is not None
    engine = call_of(spec, replicas=decode, model="m").engine
    assert isinstance(engine, DisaggregatedEngineFactory)
    assert (engine.prefill.replicas, engine.decode.replicas) == (replicas, KubernetesReplicas("decode:http"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine": {"prefill": "http://p:1"}}, "engine: expected 'prefill' together with"),
        ({"engine": {"url": "http://d:1", "prefill": "p:1"}}, "engine.prefill"),
        ({"engine": {"url": "http://d:1", "prefill": {}}}, "engine.prefill: expected one of .*, found none"),
        (
            {"engine": {"url": "http://d:1", "prefill": {"url": "http://p:1", "kubernetes": "p"}}},
            "engine.prefill: expected one of .*, found url, kubernetes",
        ),
        (
            {"engine": {"url": "http://d:1", "prefill": {"kubernetes": "P P"}}},
            "engine.prefill.kubernetes: expected .NAMESPACE/.SERVICE",
        ),
    ],
)
def test_prefill_without_decoders_is_rejected(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_spec({**DATA, **more})


def test_answer_length_is_a_template() -> None:
    call = call_of(
        parse_spec({**DATA, "answer_tokens": "{{ n }}"}),
        replicas=FixedReplicas(("http://127.0.0.1:9",)),
        model="m",
    )
    assert call.answer_tokens is not None
    assert call.answer_tokens.render({"n": 3}) == "3"
    with pytest.raises(SettingError, match="answer_tokens: expected a template"):
        parse_spec({**DATA, "answer_tokens": "{{ n"})


def test_priority_is_a_template_and_sending_it_is_optional() -> None:
    spec = parse_spec({**DATA, "priority": "{{ level }}", "engine": {"priority": True}})
    call = call_of(spec, replicas=FixedReplicas(("http://a:1",)), model="m")
    assert call.send_priority
    assert call.priority is not None
    assert call.priority.render({"level": 3}) == "3"


def test_specification_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_spec(DATA).capacity = 3  # type: ignore[misc]
