"""`forebay run` over Avro values of a real node, with a scripted registry that is away at first."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, produce
from fastavro import schemaless_writer
from tests.harness.schema_registry import ScriptedRegistry

from forebay.testing.replica import ReplicaProcess, ReplicaScript
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


def test_every_avro_record_gives_one_result_or_one_dead_letter(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    read, results, letters = topic(2), topic(), topic()
    good = [{"value": value(f"event {n}"), "partition": n % 2} for n in range(20)]
    bad = [b'{"text": "JSON"}', b"\0\0\0\0\x63" + b"\2a", value("cut")[:-1]]
    produce(node.bootstrap, read, [*good[:10], *({"value": raw, "partition": 0} for raw in bad), *good[10:]])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    with (
        ScriptedRegistry({7: SCHEMA}, auth=f"ann:{PASSWORD}") as registry,
        ReplicaProcess(ReplicaScript(delay=Fixed(0.02))) as replica,
    ):
        registry.failures = 3
        document = {
            "name": "p",
            "source": {
                **access,
                "topics": [read],
                "until_latest": True,
                "format": "avro",
                "registry": {"url": registry.url, "auth": {"env": "REGISTRY_AUTH"}},
            },
            "prompt": "{{ text }} costs {{ price }}",
            "sink": {**access, "topic": results},
            "dead_letters": {**access, "topic": letters},
            "checkpoint": {"interval_s": 0.5},
        }
        (tmp_path / "p.yaml").write_text(json.dumps(document))
        done = subprocess.run(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", replica.url],
            cwd=tmp_path,
            env={
                **os.environ,
                "FOREBAY_HOME": str(kafka_jar.parents[1]),
                "REGISTRY_AUTH": f"ann:{PASSWORD}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert PASSWORD not in done.stdout + done.stderr
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
