"""Records too large for their topic, and all kinds of headers and keys, on a real node."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, produce
from tests.harness.clock import ManualClock

from forebay.connectors.kafka.admin import kafka_admin
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.errors import SettingError
from forebay.pipeline.kafka.start import await_brokers
from forebay.pipeline.load import parse_spec
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = [pytest.mark.flink, pytest.mark.slow]
LIMIT = 1_048_576


@pytest.mark.parametrize("letters_in", ["topic", "files"])
def test_too_large_records_do_not_fail_a_pipeline(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, letters_in: str
) -> None:
    large = {"max.message.bytes": "12000000"}
    read, results, letters = topic(1, **large), topic(1), topic(1)
    near = orjson.dumps({"text": "x" * (LIMIT - 200)})
    records: list[dict[str, Any]] = [
        {"value": b'{"text": "small"}', "key": b"small"},
        {"value": b'{"text": "' + b"y" * 1_200_000 + b'"}', "key": b"over the source's limit"},
        {"value": b"\xff" * 900_000, "key": b"not UTF-8", "headers": [("trace", b"t1")]},
        {"value": near, "key": b"near the limit", "headers": [("trace", b"t2")]},
        {"value": b'{"text": "last"}', "key": b"last"},
    ]
    produce(node.bootstrap, read, records)
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    spec = pipelines.spec(
        source={**access, "topics": [read], "until_latest": True},
        prompt="{{ kafka.key }}",
        sink={**access, "topic": results},
        dead_letters=(
            {**access, "topic": letters} if letters_in == "topic" else {"type": "jsonl", "path": "letters"}
        ),
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.restarts, last.failure) == ("FINISHED", 0, "")
    assert (last.results, last.dead_letters) == (2, 3)
    assert sorted(message.key() for message in consume(node.bootstrap, results)) == [b"last", b"small"]
    if letters_in == "topic":
        found = {message.key(): orjson.loads(message.value()) for message in consume(node.bootstrap, letters)}
    else:
        lines = pipelines.lines("letters")
        keys = [record["key"] for record in records]
        found = {keys[int(line["position"].rpartition("@")[2])]: line for line in lines}
    assert {key: letter["cause"] for key, letter in found.items()} == {
        b"over the source's limit": "malformed_record",
        b"not UTF-8": "malformed_record",
        b"near the limit": "too_large_for_sink",
    }
    refused = found[b"near the limit"]
    assert f"at most {LIMIT} go to topic {results!r} (max.request.size, the default)" in refused["detail"]
    assert (refused["attempts"], refused["position"]) == (1, f"{read}/0@3")
    cut = {key: letter.get("cut_bytes", {}).get("input", 0) for key, letter in found.items()}
    inputs = {key: letter.get("input", "").encode() for key, letter in found.items()}
    inputs[b"not UTF-8"] = base64.b64decode(found[b"not UTF-8"]["input_base64"])
    for record in records[1:4]:
        key, value = record["key"], record["value"]
        assert value.startswith(inputs[key])
        assert len(inputs[key]) + cut[key] == len(value)
        assert bool(cut[key]) == (letters_in == "topic" and len(value) > LIMIT * 3 // 4)


def test_topic_with_a_smaller_limit_than_the_producer_is_rejected(
    node: Any, kafka_jar: Path, topic: Callable[..., str], flink_logs: Path
) -> None:
    read, small = topic(1), topic(1, **{"max.message.bytes": "100000"})

    def check(**properties: int) -> None:
        access = {"type": "kafka", "bootstrap": node.bootstrap}
        document = {
            "name": "p",
            "source": {**access, "topics": [read]},
            "prompt": "{{ text }}",
            "sink": {"type": "jsonl", "path": "out"},
            "dead_letters": {**access, "topic": small, "properties": properties},
        }
        clock = ManualClock()
        await_brokers(parse_spec(document), clock=clock, sleep=lambda s: clock.advance(60.0))

    with kafka_admin(KafkaCluster(node.bootstrap), timeout_s=300.0) as admin:
        assert admin.longest_record_bytes(read) == LIMIT + 12
    with pytest.raises(
        SettingError, match=r"^dead_letters\.properties: expected max\.request\.size of at most"
    ):
        check()
    check(**{"max.request.size": 100_000})


def test_all_kinds_of_headers_and_keys_are_copied(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
) -> None:
    read, results = topic(1), topic(1)
    headers = [("text", b"a"), ("empty", b""), ("null", None), ("bytes", b"\xff"), ("again", b"1")]
    longs = [n.to_bytes(8, "big") for n in (1, 2, 300)]
    records = [{"value": b'{"kafka": "mine"}', "key": key, "headers": headers} for key in longs]
    produce(node.bootstrap, read, [*records, {"value": b"{}", "key": None}])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    spec = pipelines.spec(
        source={**access, "topics": [read], "until_latest": True},
        prompt="{{ kafka.offset }}",
        key="{{ kafka.key | default('nobody') }}",
        sink={**access, "topic": results},
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.results) == ("FINISHED", 4)
    written = {message.key(): message for message in consume(node.bootstrap, results)}
    assert written.keys() == {*longs, None}
    for key in longs:
        about = orjson.loads(written[key].value())["fields"]["kafka"]
        assert about["key"] == "base64:" + base64.b64encode(key).decode()
        assert about["own"] == "mine"
        assert about["headers"] == {
            "text": "a", "empty": "", "null": None, "bytes": "base64:/w==", "again": "1"
        }  # fmt: skip
        # Flink's connector writes no header without a value; `fields` has it.
        kept = {name: value for name, value in headers if value is not None}
        assert dict(written[key].headers() or []).items() >= kept.items()
        assert "null" not in dict(written[key].headers() or [])
    assert orjson.loads(written[None].value())["fields"]["kafka"]["key"] is None
