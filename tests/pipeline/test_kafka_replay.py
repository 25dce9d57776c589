"""Replayed dead letters of a Kafka pipeline, from a real node's topic and from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, consume_committed, produce

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = [pytest.mark.flink, pytest.mark.slow]

RECORDS: list[dict[str, Any]] = [
    *({"value": orjson.dumps({"body": f"b{n}"}), "key": f"k{n}".encode()} for n in range(6)),
    {"value": b'{"body": "bytes"}', "key": b"\xff\x01", "headers": [("trace", b"t"), ("bin", b"\xfe")]},
    {"value": None, "key": b"gone"},
    {"value": b"no json", "key": b"words"},
]


@pytest.mark.parametrize("to", ["topic", "files"])
def test_replayed_dead_letters_keep_keys_headers_and_ids(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, to: str
) -> None:
    read, letters, results, again = topic(2), topic(), topic(), topic()
    produce(node.bootstrap, read, [{**record, "partition": n % 2} for n, record in enumerate(RECORDS)])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    written = {**access, "topic": letters} if to == "topic" else {"type": "jsonl", "path": "letters"}
    template = "{{ text }} of {{ kafka.topic }}/{{ kafka.partition }}@{{ kafka.offset }}"
    first = pipelines.spec(
        source={**access, "topics": [read], "until_latest": True},
        prompt=template,
        key="{{ kafka.time_ms }}",
        sink={**access, "topic": results},
        dead_letters=written,
    )
    replay = {"topics": [letters], "dead_letters": True, "until_latest": True}
    source = {**access, **replay} if to == "topic" else {"type": "dead_letters", "path": "letters"}
    second = pipelines.spec(
        name="again",
        source=source,
        prompt=template.replace("text", "text | default(body)"),
        key="{{ kafka.time_ms }}",
        sink={**access, "topic": results},
        dead_letters={**access, "topic": again},
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        assert pipelines.run(first, replica.url).state == "FINISHED"
        assert pipelines.run(second, replica.url).state == "FINISHED"
    places = {
        f"{read}/{message.partition()}@{message.offset()}": message
        for message in consume(node.bootstrap, read)
    }
    for message in consume_committed(node.bootstrap, results):
        value, was = orjson.loads(message.value() or b""), None
        was = places.pop(value["id"])
        assert value["position"] == value["id"]
        assert message.key() == was.key()
        assert dict(message.headers() or []).items() >= dict(was.headers() or []).items()
        about = value["fields"]["kafka"]
        assert (about["topic"], about["offset"]) == (read, was.offset())
        assert about["time_ms"] == was.timestamp()[1]
    # What still cannot be read is a dead letter of the same record once more.
    for message in consume_committed(node.bootstrap, again):
        letter = orjson.loads(message.value() or b"")
        was = places.pop(letter["position"])
        assert message.key() == was.key()
        assert letter["cause"] == ("tombstone" if was.value() is None else "malformed_record")
        assert letter["input"] == (was.value().decode() if was.value() else None)
    assert places == {}
