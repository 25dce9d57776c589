"""`forebay run` between topics of a real node: its input, output and messages."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.run_process import PipelineProcess
from benchmarks.topic_client import consume, consume_committed, member, produce
from confluent_kafka import Consumer, TopicPartition
from tests.harness.clock import ManualClock
from tests.harness.homes import new_home

from forebay.connectors.kafka.admin import kafka_admin
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.errors import ForebayError, ResultsLost, SettingError
from forebay.pipeline import attempt
from forebay.pipeline.kafka.start import await_brokers
from forebay.pipeline.load import parse_spec
from forebay.pipeline.state_store import read_state
from forebay.testing.replica import ReplicaProcess, ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink


def test_every_record_gives_one_result_or_dead_letter(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
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
    spec = pipelines.spec(
        source={**access, "topics": [read], "until_latest": True},
        prompt="{{ text }} {{ kafka.key | default('nobody') }} {{ kafka.headers.trace }}",
        sink={**access, "topic": results},
        dead_letters={**access, "topic": letters, "properties": {"max.request.size": 16_000_000}},
        parallelism=2,
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.05))) as replica:
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.results, last.dead_letters) == ("FINISHED", len(good), len(bad))
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
        b"gone": b"tombstone",
        b"bytes": b"malformed_record",
        b"words": b"malformed_record",
        b"huge": b"malformed_record",
        b"field": b"template_failed",
    }
    assert given_up[b"words"].value_dict["input"] == "no JSON"
    assert len(given_up[b"huge"].value_dict["input"]) == len(bad[3]["value"] or b"")


@pytest.mark.slow
def test_empty_topic_is_at_its_end(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
) -> None:
    source = {"type": "kafka", "bootstrap": node.bootstrap, "topics": [topic(2)], "until_latest": True}
    with ReplicaThread(ReplicaScript()) as replica:
        last = pipelines.run(pipelines.spec(source=source, prompt="{{ text }}"), replica.url)
    assert (last.state, last.results) == ("FINISHED", 0)


@pytest.mark.long
def test_pipelines_of_one_name_have_separate_transactions(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
) -> None:
    """A job ends the open transactions whose ids start like its own."""
    results, stop = {"first": topic(), "second": topic()}, threading.Event()

    def run(name: str, url: str, *, enough: Callable[[Any], bool], **source: Any) -> Any:
        one = pipelines.in_folder(name)
        spec = one.spec(
            source={"type": "generator", **source},
            prompt="{{ text }}",
            sink={"type": "kafka", "bootstrap": node.bootstrap, "topic": results[name]},
            checkpoint={"interval_s": 1.0},
        )
        return one.run(spec, url, enough=enough)

    def written(name: str) -> list[str]:
        return [
            Message(each).value_dict["position"] for each in consume_committed(node.bootstrap, results[name])
        ]

    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica, ThreadPoolExecutor(1) as beside:
        first = beside.submit(run, "first", replica.url, enough=lambda now: stop.is_set(), rate=50.0)
        try:
            wait_until(lambda: first.done() or bool(written("first")))
            run("second", replica.url, enough=lambda now: False, count=20, paced=False)
            enough = len(written("first")) + 100
            wait_until(lambda: first.done() or len(written("first")) >= enough)
        finally:
            stop.set()
        assert first.result().restarts == 0
    assert len(set(written("second"))) == len(written("second")) == 20
    positions = written("first")
    assert len(set(positions)) == len(positions)


@pytest.mark.slow
def test_limits_of_a_real_node_are_reported_before_the_start(
    node: Any, kafka_jar: Path, topic: Callable[..., str], flink_logs: Path
) -> None:
    there, out, group = topic(1), topic(1), f"g-{uuid.uuid4().hex[:8]}"
    access = {"type": "kafka", "bootstrap": node.bootstrap}

    def said(source: dict[str, Any] | None = None, **sink: Any) -> str:
        document = {
            "name": "p",
            "source": {**access, "topics": [there], **(source or {})},
            "prompt": "{{ text }}",
            "sink": {**access, "topic": out, **sink},
        }
        clock = ManualClock()
        try:
            await_brokers(parse_spec(document), clock=clock, sleep=lambda s: clock.advance(60.0))
        except ForebayError as error:
            return f"{type(error).__name__} {error}"
        return "taken"

    # What the JVM loads for its first call is not held against the node.
    with kafka_admin(KafkaCluster(node.bootstrap), timeout_s=300.0) as admin:
        admin.topics()
    assert said() == "taken"
    for expected, found in {
        "SettingError source.topics: Kafka has no topic 'none'": said({"topics": [there, "none"]}),
        "SettingError sink.topic: Kafka has no topic 'none'": said(topic="none"),
        "SettingError sink.transaction_timeout_s: expected at most 900": said(transaction_timeout_s=901.0),
        "PipelineFailed Kafka at 127.0.0.1:9 does not answer": said({"bootstrap": "127.0.0.1:9"}),
    }.items():
        assert found.startswith(expected)
    with member(node.bootstrap, group, there):
        assert said({"group": group}).startswith(
            f"SettingError source.group: other consumers use '{group}' now (1)"
        )


class Message:
    """A consumed record, readable."""

    def __init__(self, message: Any) -> None:
        self.key: bytes | None = message.key()
        self.headers: dict[str, bytes] = dict(message.headers() or [])
        self.value_dict: dict[str, Any] = orjson.loads(message.value())


@pytest.mark.long
def test_discarded_results_are_reported_on_resume_and_repeated(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
) -> None:
    results = topic()
    spec = pipelines.spec(
        source={"type": "generator", "rate": 50.0},
        prompt="{{ text }}",
        sink={"type": "kafka", "bootstrap": node.bootstrap, "topic": results},
        checkpoint={"interval_s": 0.5},
    )

    def interrupted(url: str, more: int, **options: Any) -> Any:
        enough = len(consume_committed(node.bootstrap, results)) + more
        return pipelines.interrupt(
            spec, url, lambda: len(consume_committed(node.bootstrap, results)) >= enough, **options
        )

    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        interrupted(replica.url, 60)
        assert interrupted(replica.url, 60).failed_commits == 0
        state = read_state(Path(spec.checkpoint.dir))
        assert state is not None
        newest = max(
            int(path.name.removeprefix("chk-"))
            for path in Path(spec.checkpoint.dir, state.job or "").glob("chk-*")
            if (path / "_metadata").exists()
        )
        thrown_away = f"forebay-p-{state.job}-results-0-{newest}"
        produce(node.bootstrap, results, [{"value": b"{}"}], transaction=thrown_away, commit=False)
        with pytest.raises(SettingError, match=f"Kafka has aborted {thrown_away}") as refused:
            pipelines.run(spec, replica.url)
        older = Path(str(refused.value).partition("--from-checkpoint ")[2].split()[0])
        assert older.name == f"chk-{newest - 1}"
        assert interrupted(replica.url, 20, from_checkpoint=older).failed_commits == 0


@pytest.mark.long
def test_results_discarded_at_the_end_fail_the_run_and_repeat(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink counts the failed commits of its last checkpoint, and finishes."""
    results, folder = topic(), pipelines.folder / "in"
    jobs = pipelines.folder / ".forebay" / "p" / "checkpoints"
    folder.mkdir()

    def add(name: str, begin: int, end: int) -> None:
        pipelines.write(*({"text": f"event {n}"} for n in range(begin, end)), name="new")
        (pipelines.folder / "new").rename(folder / name)

    def spec(*, interval_s: float, timeout_s: float) -> Any:
        access = {"type": "kafka", "bootstrap": node.bootstrap, "topic": results}
        return pipelines.spec(
            source={"type": "jsonl", "path": "in", "follow": True},
            prompt="{{ text }}",
            sink={**access, "transaction_timeout_s": timeout_s},
            checkpoint={"interval_s": interval_s},
        )

    def written() -> list[str]:
        """Blocks until no transaction is open."""
        return [Message(each).value_dict["fields"]["text"] for each in consume(node.bootstrap, results)]

    def committed(count: int) -> Callable[[], bool]:
        return lambda: len(consume_committed(node.bootstrap, results)) >= count

    usual = spec(interval_s=0.5, timeout_s=900.0)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        add("1.jsonl", 0, 10)
        pipelines.interrupt(usual, replica.url, committed(10))
        before, checkpoints = end_of(node.bootstrap, results), set(jobs.glob("*/chk-*"))
        add("2.jsonl", 10, 11)

        def enough(now: object) -> bool:
            if not (folder / "3.jsonl").exists() and set(jobs.glob("*/chk-*")) - checkpoints:
                add("3.jsonl", 11, 20)
            return end_of(node.bootstrap, results) >= before + 11 and len(written()) == 11

        # After the first checkpoint none completes before the end; Kafka has ended the transaction by then.
        monkeypatch.setattr(attempt, "MIN_KAFKA_S", 3600.0)
        rare = spec(interval_s=3600.0, timeout_s=1.0)
        with pytest.raises(
            ResultsLost, match=f"sink.topic: results are missing in topic '{results}'"
        ) as lost:
            pipelines.run(rare, replica.url, enough=enough)
        with pytest.raises(SettingError, match="the last run of pipeline 'p' lost results"):
            pipelines.run(usual, replica.url)
        checkpoint = str(lost.value).partition("--from-checkpoint ")[2].split()[0]
        assert "kept" in checkpoint, "Flink has deleted its own"
        pipelines.interrupt(usual, replica.url, committed(20), from_checkpoint=Path(checkpoint))
    assert sorted(written()) == sorted(f"event {n}" for n in range(20))


def end_of(bootstrap: str, topic: str) -> int:
    """The offset after the newest record of a topic with one partition, committed or not."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 60.0)[1])
    finally:
        consumer.close()


@pytest.mark.slow
def test_run_killed_after_its_job_finished_does_not_run_again(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    """The command is suspended while its job finishes and Flink deletes the last checkpoint; then it dies."""
    count, results = 20, topic()
    new_home(tmp_path / "home", kafka_jar.parent)
    document = {
        "name": "p",
        "source": {"type": "generator", "count": count, "rate": 1000.0},
        "prompt": "{{ text }}",
        "sink": {"type": "kafka", "bootstrap": node.bootstrap, "topic": results},
        "checkpoint": {"interval_s": 5.0},
    }
    (tmp_path / "pipeline.yaml").write_bytes(orjson.dumps(document))
    with (
        ReplicaProcess(ReplicaScript(delay=Fixed(1.0))) as replica,
        PipelineProcess(tmp_path / "pipeline.yaml", replica.url, tmp_path) as process,
    ):
        process.start()
        wait_until(lambda: replica.report().in_flight > 0, describe=process.output)
        process.pause()
        wait_until(lambda: not process.processes("jvm"), describe=process.output)
        process.kill()
        assert len(consume_committed(node.bootstrap, results)) == count
        process.start()
        wait_until(lambda: process.status() is not None, describe=process.output)
        assert "has finished: its results are in the sink" in process.output()
    assert len(consume_committed(node.bootstrap, results)) == count
