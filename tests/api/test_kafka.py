from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import forebay as fb
from forebay.errors import FunctionFailed, PipelineFailed, SettingError
from forebay.testing import Fixed, ScriptedEngineFactory

pytestmark = pytest.mark.flink
URL = "http://127.0.0.1:9"


@pytest.mark.long
def test_from_topic_to_topic(
    node: Any, topic: Callable[..., str], kafka_jar: Path, tmp_path: Path, flink_logs: Path
) -> None:
    from benchmarks.topic_client import consume_committed, produce

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    source, sink, counts, dead, texts, keys = topic(2), topic(), topic(), topic(), topic(), topic()
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
    told = answered.results.map(lambda result: {"of": result.key})
    fb.write_kafka(told, node.bootstrap, counts, name=counts, key="{{ of }}")
    fb.write_kafka(answered.dead_letters, node.bootstrap, dead, name=dead)
    fb.write_kafka(
        answered.results, node.bootstrap, texts, name=texts, value=lambda result: result.fields["text"]
    )
    fb.write_kafka(answered.results, node.bootstrap, keys, name=keys, key="{{ text }}")
    env.execute("topics")
    written = {each.key(): orjson.loads(each.value()) for each in consume_committed(node.bootstrap, sink)}
    assert {key: value["fields"]["text"] for key, value in written.items()} == {
        f"k{n}".encode(): f"line {n}" for n in range(6)
    }
    assert {value["key"] for value in written.values()} == {f"k{n}" for n in range(6)}
    keyed = [
        (each.key(), orjson.loads(each.value())["of"]) for each in consume_committed(node.bootstrap, counts)
    ]
    assert sorted(keyed, key=lambda each: each[1]) == [(f"k{n}".encode(), f"k{n}") for n in range(6)]
    assert sorted((each.key(), each.value()) for each in consume_committed(node.bootstrap, texts)) == [
        (f"k{n}".encode(), f'"line {n}"'.encode()) for n in range(6)
    ]
    rekeyed = {each.key(): orjson.loads(each.value()) for each in consume_committed(node.bootstrap, keys)}
    assert {key: value["key"] for key, value in rekeyed.items()} == {
        f"line {n}".encode(): f"k{n}" for n in range(6)
    }
    (letter,) = consume_committed(node.bootstrap, dead)
    assert (letter.key(), orjson.loads(letter.value())["input"]) == (b"bad", "not JSON")


@pytest.mark.slow
def test_defective_value_function_names_the_sink_and_the_record(
    node: Any, topic: Callable[..., str], kafka_jar: Path, tmp_path: Path, flink_logs: Path
) -> None:
    from benchmarks.topic_client import produce

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    source, sink = topic(), topic()
    produce(node.bootstrap, source, [{"value": b'{"text": "tea"}', "key": "ann"}])
    env = fb.environment(checkpoints=tmp_path / "state", every_s=0.5)
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01)), model="m", prompt="{{ text }}")
    lines = fb.read_kafka(env, node.bootstrap, source, group="g", start="earliest")
    results = fb.infer(lines, ask, key="{{ kafka.key }}").results
    fb.write_kafka(results, node.bootstrap, sink, name=sink, value=lambda result: result.answer.tem)
    words = rf"write_kafka '{sink}': value failed for the result with id '.*' and key 'ann': AttributeError: "
    with pytest.raises(FunctionFailed, match=words):
        env.execute("topics")


@pytest.mark.slow
def test_too_large_value_is_a_dead_letter_or_ends_the_job(
    node: Any, topic: Callable[..., str], kafka_jar: Path, tmp_path: Path, flink_logs: Path
) -> None:
    from benchmarks.topic_client import consume, produce

    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    source, sink, letters = topic(1, **{"max.message.bytes": "4000000"}), topic(), topic()
    large = b'{"text": "' + b"x" * 1_048_500 + b'"}'
    values = [b'{"text": "tea"}', large, b"y" * 2_000_000]
    produce(node.bootstrap, source, [{"value": value, "key": b"%d" % n} for n, value in enumerate(values)])
    ask = fb.Inference(ScriptedEngineFactory(Fixed(0.01)), model="m", prompt="{{ kafka.key }}")

    def answered(group: str) -> tuple[Any, fb.Outputs]:
        env = fb.environment(checkpoints=tmp_path / group, every_s=0.5)
        lines = fb.read_kafka(env, node.bootstrap, source, group=group, start="earliest", until_latest=True)
        return env, fb.infer(lines, ask)

    env, outputs = answered("a")
    refused = fb.write_kafka(outputs.results, node.bootstrap, sink, name=sink, too_large="dead_letter")
    fb.write_jsonl(refused, tmp_path / "refused")
    fb.write_kafka(outputs.dead_letters, node.bootstrap, letters, name=letters)
    env.execute("topics")
    assert [message.key() for message in consume(node.bootstrap, sink)] == [b"0"]
    (letter,) = (
        orjson.loads(line)
        for part in (tmp_path / "refused").glob("part-*.jsonl")
        for line in part.read_bytes().splitlines()
    )
    assert (letter["cause"], letter["position"]) == ("too_large_for_sink", f"{source}/0@1")
    assert letter["input"].encode() == large
    (cut,) = consume(node.bootstrap, letters)
    line = orjson.loads(cut.value())
    assert (cut.key(), len(line["input"]) + line["cut_bytes"]["input"]) == (b"2", 2_000_000)

    env, outputs = answered("b")
    fb.write_kafka(outputs.results, node.bootstrap, sink, name=f"{sink}-b")
    words = rf"write_kafka '{sink}-b': writing failed for the result with id '{source}/0@1'.*: the record has"
    with pytest.raises(FunctionFailed, match=words):
        env.execute("topics")


def test_mistakes_are_reported_at_the_call(flink_logs: Path, kafka_jar: Path, tmp_path: Path) -> None:
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    env = fb.environment()
    with pytest.raises(SettingError, match=r"'sasl\.jaas\.config': expected it under 'secrets'"):
        fb.read_kafka(env, "b:9092", "t", group="g", properties={"sasl.jaas.config": "p"})
    with pytest.raises(SettingError, match="expected either 'topics' or 'pattern'"):
        fb.read_kafka(env, "b:9092", group="g")
    with pytest.raises(SettingError, match="topic: expected the name of a topic"):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "no topic", name="n")
    with pytest.raises(SettingError, match="name: expected a text"):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "t", name="")
    with pytest.raises(SettingError, match=r'too_large: expected "fail" or "dead_letter", found .cut.'):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "t", name="n", too_large="cut")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="value: expected a function, found dict"):
        fb.write_kafka(env.from_collection(["a"]), "b:9092", "t", name="n", value={})  # type: ignore[arg-type]
    text: dict[str, Any] = {"group": "g", "format": "text", "time": "at", "check": False}
    with pytest.raises(SettingError, match="name a part of a line with it: line_pattern: "):
        fb.read_kafka(env, "b:9092", "t", **text)
    fb.read_kafka(env, "b:9092", "t", **text, line_pattern=r"(?P<at>\S+) (?P<text>.*)")
    for wrong in ("yesterday", 1.5, True, None):
        with pytest.raises(SettingError, match="start: expected"):
            fb.read_kafka(env, "b:9092", "t", group="g", start=wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="bootstrap: expected HOST:PORT"):
        fb.read_kafka(env, "http://b:9092", "t", group="g")


def test_exactly_once_needs_checkpoints(flink_logs: Path, kafka_jar: Path, tmp_path: Path) -> None:
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    lines = fb.environment().from_collection(["a"])
    with pytest.raises(SettingError, match=r"needs checkpoints.*fb\.environment\(checkpoints="):
        fb.write_kafka(lines, "b:9092", "t", name="n", check=False)
    fb.write_kafka(lines, "b:9092", "t", name="n", guarantee="at-least-once", check=False)
    kept = fb.environment(checkpoints=tmp_path / "state").from_collection(["a"])
    fb.write_kafka(kept, "b:9092", "t", name="n", check=False)
    with pytest.raises(SettingError, match="name: 'n' is taken"):
        fb.write_kafka(kept, "b:9092", "other", name="n", check=False)


@pytest.fixture
def impatient(flink_logs: Path, kafka_jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM with the connector, without retries if no broker answers."""
    from forebay.api import kafka
    from forebay.flink.jvm import start_jvm

    start_jvm(flink_logs, heap_mb=768, jars=(kafka_jar,))
    monkeypatch.setattr(kafka, "PATIENCE_S", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.slow
def test_missing_topics_and_silent_brokers_are_reported(
    node: Any, topic: Callable[..., str], tmp_path: Path
) -> None:
    env = fb.environment(checkpoints=tmp_path / "state")
    lines = env.from_collection(["a"])
    with pytest.raises(SettingError, match=r"^read_kafka: topics: Kafka has no topic 'nope'"):
        fb.read_kafka(env, node.bootstrap, "nope", group="g")
    with pytest.raises(SettingError, match=r"^write_kafka: topic: Kafka has no topic 'nope'"):
        fb.write_kafka(lines, node.bootstrap, "nope", name="n")
    with pytest.raises(SettingError, match=r"transaction_timeout_s: expected at most 900.*found 1e\+06"):
        fb.write_kafka(lines, node.bootstrap, topic(), name="n", transaction_timeout_s=1e6)
    away = "127.0.0.1:9"
    with pytest.raises(PipelineFailed, match=rf"^read_kafka: Kafka at {away} does not answer.*check=False"):
        fb.read_kafka(env, away, "t", group="g")
    with pytest.raises(PipelineFailed, match=rf"^write_kafka: Kafka at {away} does not answer.*check=False"):
        fb.write_kafka(lines, away, "t", name="n")
    assert fb.read_kafka(env, away, "t", group="g", check=False)
    fb.write_kafka(lines, away, "t", name="n", check=False)
    secrets, there = {"ssl.key.password": {"env": "NO_SUCH_SECRET"}}, topic()
    with pytest.raises(SettingError, match=r"read_kafka\.secrets\.ssl\.key\.password: .*NO_SUCH_SECRET"):
        fb.read_kafka(env, node.bootstrap, there, group="g", secrets=secrets, name="other")
