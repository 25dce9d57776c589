"""`forebay run` between topics of a real node: what it reads, what it writes, what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.testing.delays import Fixed
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.topics import consume, member, produce

pytestmark = pytest.mark.flink


def test_every_record_of_a_topic_gives_one_result_or_one_dead_letter(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    read, results, letters = (
        topic(4, **{"max.message.bytes": "12000000"}),
        topic(2),
        topic(1, **{"max.message.bytes": "16000000"}),
    )
    good = [
        {
            "value": orjson.dumps({"text": f"event {n}"}),
            "key": f"k{n}".encode() if n % 3 else None,
            "headers": [("trace", f"t{n}".encode()), ("bin", b"\xff")],
            "partition": n % 4,
        }
        for n in range(40)
    ]
    bad = [
        {"value": None, "key": b"gone", "partition": 0},
        {"value": b"\xff\xfe", "key": b"bytes", "partition": 1},
        {"value": b"no JSON", "key": b"words", "partition": 2},
        {"value": b'{"text": "' + b"x" * 10_000_000 + b'"}', "key": b"huge", "partition": 3},
        {"value": b'{"body": "no text"}', "key": b"field", "partition": 0},
    ]
    produce(node.bootstrap, read, [*good[:20], *bad, *good[20:]])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    (tmp_path / "p.yaml").write_text(
        json.dumps(
            {
                "name": "p",
                "source": {**access, "topics": [read], "until_latest": True},
                "prompt": "{{ text }} {{ kafka.key | default('nobody') }} {{ kafka.headers.trace }}",
                "sink": {**access, "topic": results},
                "dead_letters": {
                    **access,
                    "topic": letters,
                    "properties": {"max.request.size": 16_000_000},
                },
                "parallelism": 2,
                "checkpoint": {"interval_s": 0.5},
            }
        )
    )
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.05))) as replica:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", replica.url],
            cwd=tmp_path,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answered = consume(node.bootstrap, results)
    found = {message.value_dict["fields"]["text"]: message for message in map(Message, answered)}
    assert len(answered) == len(found) == len(good)
    for record in good:
        message = found[orjson.loads(record["value"])["text"]]
        assert message.key == record["key"]
        assert message.headers.items() >= dict(record["headers"]).items()
        assert message.headers["forebay-id"].decode() == message.value_dict["id"]
        assert message.value_dict["id"].startswith(f"{read}/{record['partition']}@")
    given_up = {message.key: message for message in map(Message, consume(node.bootstrap, letters))}
    assert {key: letter.headers["forebay-cause"] for key, letter in given_up.items()} == {
        b"gone": b"malformed_record",
        b"bytes": b"malformed_record",
        b"words": b"malformed_record",
        b"huge": b"malformed_record",
        b"field": b"template_failed",
    }
    assert given_up[b"words"].value_dict["input"] == "no JSON"
    assert len(given_up[b"huge"].value_dict["input"]) == len(bad[3]["value"] or b"")


def test_a_topic_without_records_has_come_to_its_end(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    document = {
        "name": f"p-{uuid.uuid4().hex[:8]}",
        "source": {**access, "topics": [topic(2)], "until_latest": True},
        "prompt": "{{ text }}",
        "sink": {"type": "jsonl", "path": "out"},
        "checkpoint": {"interval_s": 0.5},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    with ReplicaProcess(ReplicaScript()) as replica:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", replica.url],
            cwd=tmp_path,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 results" in done.stderr


ASKED = """
import json, sys
from pathlib import Path
from forebay.errors import ForebayError
from forebay.operators.jvm import start_jvm
from forebay.pipelines.load import parse_spec
from forebay.testing.clock import ManualClock

start_jvm(Path(sys.argv[1]), heap_mb=256, jars=[Path(sys.argv[2])])
from forebay.connectors.kafka import KafkaCluster
from forebay.connectors.kafka.admin import kafka_admin
from forebay.pipelines.brokers import await_brokers

documents = json.loads(sys.argv[3])
# What the JVM loads for its first call is not held against the node.
with kafka_admin(KafkaCluster(documents[0]["source"]["bootstrap"]), timeout_s=300.0) as admin:
    admin.topics()
for document in documents:
    clock = ManualClock()
    try:
        await_brokers(parse_spec(document), clock=clock, sleep=lambda s: clock.advance(60.0))
        print("taken")
    except ForebayError as error:
        print(type(error).__name__, error)
"""


def test_what_a_real_node_will_not_do_is_said_before_the_start(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    there, out, group = topic(1), topic(1), f"g-{uuid.uuid4().hex[:8]}"
    access = {"type": "kafka", "bootstrap": node.bootstrap}

    def document(source: dict[str, Any] | None = None, **sink: Any) -> dict[str, Any]:
        return {
            "name": "p",
            "source": {**access, "topics": [there], **(source or {})},
            "prompt": "{{ text }}",
            "sink": {**access, "topic": out, **sink},
        }

    cases = {
        "taken": document(),
        "SettingError source.topics: Kafka has no topic 'none'": document({"topics": [there, "none"]}),
        "SettingError sink.topic: Kafka has no topic 'none'": document(topic="none"),
        "SettingError sink.transaction_timeout_s: expected at most 900": document(
            transaction_timeout_s=901.0
        ),
        f"SettingError source.group: '{group}' is read by others now (1)": document({"group": group}),
        "PipelineFailed Kafka at 127.0.0.1:9 does not answer": document({"bootstrap": "127.0.0.1:9"}),
    }
    with member(node.bootstrap, group, there):
        done = subprocess.run(
            [sys.executable, "-c", ASKED, str(tmp_path), str(kafka_jar), json.dumps(list(cases.values()))],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    for said, expected in zip(done.stdout.splitlines(), cases, strict=True):
        assert said.startswith(expected)


class Message:
    """A consumed record, readable."""

    def __init__(self, message: Any) -> None:
        self.key: bytes | None = message.key()
        self.headers: dict[str, bytes] = dict(message.headers() or [])
        self.value_dict: dict[str, Any] = orjson.loads(message.value())
