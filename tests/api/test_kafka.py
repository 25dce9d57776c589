"""From topic to topic with nothing but the front door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import forebay as fb
from forebay.errors import SettingError
from forebay.testing import Fixed, ScriptedEngineFactory

pytestmark = pytest.mark.flink
URL = "http://127.0.0.1:9"


def test_from_topic_to_topic(
    node: Any, topic: Callable[..., str], kafka_jar: Path, tmp_path: Path, flink_logs: Path
) -> None:
    from benchmarks.topic_client import consume_committed, produce

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    source, sink, counts, dead = topic(2), topic(), topic(), topic()
    records = [
        {"value": orjson.dumps({"text": f"line {n}"}), "key": f"k{n}", "partition": n % 2} for n in range(6)
    ]
    produce(node.bootstrap, source, [*records, {"value": b"not JSON", "key": "bad", "partition": 0}])
    env = fb.environment(checkpoints=tmp_path / "state", every_s=0.5)
    lines = fb.read_kafka(
        env, node.bootstrap, source, group="g", start="earliest", out_of_orderness_s=0, until_latest=True
    )
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01)), model="m", prompt="{{ text }}")
    answered = fb.infer(lines, ask, key="{{ kafka.key }}", ordering="key", event_time=True)
    fb.write_kafka(answered.results, node.bootstrap, sink, name=sink)
    fb.write_kafka(
        answered.results.map(lambda result: {"of": result.key}), node.bootstrap, counts, name=counts
    )
    fb.write_kafka(answered.dead_letters, node.bootstrap, dead, name=dead)
    env.execute("topics")
    written = {each.key(): orjson.loads(each.value()) for each in consume_committed(node.bootstrap, sink)}
    assert {key: value["fields"]["text"] for key, value in written.items()} == {
        f"k{n}".encode(): f"line {n}" for n in range(6)
    }
    assert {value["key"] for value in written.values()} == {f"k{n}" for n in range(6)}
    told = [
        (each.key(), orjson.loads(each.value())["of"]) for each in consume_committed(node.bootstrap, counts)
    ]
    assert sorted(told, key=lambda each: each[1]) == [(None, f"k{n}") for n in range(6)]
    (letter,) = consume_committed(node.bootstrap, dead)
    assert (letter.key(), orjson.loads(letter.value())["input"]) == (b"bad", "not JSON")


def test_what_is_wrong_is_told_at_the_call(flink_logs: Path) -> None:
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768)
    env = fb.environment()
    with pytest.raises(SettingError, match=r"'sasl\.jaas\.config': expected it under 'secrets'"):
        fb.read_kafka(env, "b:9092", "t", group="g", properties={"sasl.jaas.config": "p"})
    with pytest.raises(SettingError, match="expected either 'topics' or 'pattern'"):
        fb.read_kafka(env, "b:9092", group="g")
    with pytest.raises(SettingError, match="topic: expected the name of a topic"):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "no topic", name="n")
    with pytest.raises(SettingError, match="name: expected a text"):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "t", name="")
