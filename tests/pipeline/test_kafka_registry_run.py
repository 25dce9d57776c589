"""A pipeline with Avro values of a real node, and a scripted registry that is unavailable at first."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, produce
from fastavro import schemaless_writer
from tests.harness.schema_registry import ScriptedRegistry

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = pytest.mark.flink

SCHEMA = {
    "type": "record",
    "name": "Ticket",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
    ],
}
PASSWORD = "hush-4711"


def value(text: str) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, SCHEMA, {"text": text, "price": Decimal("1.50")})
    return b"\0\0\0\0\7" + out.getvalue()


@pytest.mark.slow
def test_every_avro_record_gives_one_result_or_dead_letter(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, flink_logs: Path
) -> None:
    read, results, letters = topic(2), topic(), topic()
    good = [{"value": value(f"event {n}"), "partition": n % 2} for n in range(20)]
    bad = [b'{"text": "JSON"}', b"\0\0\0\0\x63" + b"\2a", value("cut")[:-1]]
    produce(node.bootstrap, read, [*good[:10], *({"value": raw, "partition": 0} for raw in bad), *good[10:]])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    secret = pipelines.folder / "secret"
    secret.write_text(f"ann:{PASSWORD}")
    secret.chmod(0o600)
    with (
        ScriptedRegistry({7: SCHEMA}, auth=f"ann:{PASSWORD}") as registry,
        ReplicaThread(ReplicaScript(delay=Fixed(0.02))) as replica,
    ):
        registry.failures = 3
        spec = pipelines.spec(
            source={
                **access,
                "topics": [read],
                "until_latest": True,
                "format": "registry",
                "registry": {"url": registry.url, "auth": {"file": str(secret)}},
            },
            prompt="{{ text }} costs {{ price }}",
            sink={**access, "topic": results},
            dead_letters={**access, "topic": letters},
        )
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.results, last.dead_letters) == ("FINISHED", 20, 3)
    files = [path for at in (pipelines.folder, flink_logs) for path in at.rglob("*") if path.is_file()]
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == [secret]
    found = [orjson.loads(message.value()) for message in consume(node.bootstrap, results)]
    assert sorted(one["fields"]["text"] for one in found) == sorted(f"event {n}" for n in range(20))
    assert {one["fields"]["price"] for one in found} == {"1.50"}

    given_up = [orjson.loads(message.value()) for message in consume(node.bootstrap, letters)]
    assert {letter["cause"] for letter in given_up} == {"malformed_record"}
    kept = [
        letter["input"].encode() if "input" in letter else base64.b64decode(letter["input_base64"])
        for letter in given_up
    ]
    assert sorted(kept) == sorted(bad)
    assert registry.asked.count("/schemas/ids/7") >= 4
