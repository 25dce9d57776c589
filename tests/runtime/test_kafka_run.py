"""`forebay run` between topics of a real node: what it reads, what it writes, what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, consume_committed, member, produce
from confluent_kafka import Consumer, TopicPartition

from forebay.config import load_spec
from forebay.errors import ResultsLost
from forebay.runtime.run import RunOptions, run_pipeline
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

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


def test_two_pipelines_of_one_name_leave_each_others_transactions_alone(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    """A job ends the open transactions whose ids begin like its own."""
    results = {"first": topic(), "second": topic()}

    def start(folder: str, url: str, **source: Any) -> subprocess.Popen[bytes]:
        document = {
            "name": "p",
            "source": {"type": "generator", **source},
            "prompt": "{{ text }}",
            "sink": {"type": "kafka", "bootstrap": node.bootstrap, "topic": results[folder]},
            "checkpoint": {"interval_s": 2.0},
        }
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.yaml").write_text(json.dumps(document))
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", url, "--json"],
            cwd=tmp_path / folder,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def written(folder: str) -> list[str]:
        return [
            Message(each).value_dict["position"]
            for each in consume_committed(node.bootstrap, results[folder])
        ]

    with ReplicaProcess(ReplicaScript(delay=Fixed(0.01))) as replica:
        first = start("first", replica.url, rate=20.0)
        try:
            wait_until(lambda: first.poll() is not None or bool(written("first")))
            _, said = start("second", replica.url, count=20, paced=False).communicate(timeout=400)
            enough = len(written("first")) + 100
            wait_until(lambda: first.poll() is not None or len(written("first")) >= enough)
            first.send_signal(signal.SIGINT)
            document, told = first.communicate(timeout=400)
        finally:
            first.kill()
    assert len(set(written("second"))) == len(written("second")) == 20, said
    positions = written("first")
    assert len(set(positions)) == len(positions)
    assert orjson.loads(document)["restarts"] == 0, told


ASKED = """
import json, sys
from pathlib import Path
from forebay.errors import ForebayError
from forebay.flink.jvm import start_jvm
from forebay.config import parse_spec
from tests.harness.clock import ManualClock

start_jvm(Path(sys.argv[1]), heap_mb=256, jars=[Path(sys.argv[2])])
from forebay.connectors.kafka import KafkaCluster
from forebay.connectors.kafka.admin import kafka_admin
from forebay.runtime.preflight import await_brokers

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


def test_results_that_kafka_has_thrown_away_are_said_before_the_resume_and_made_again(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    results = topic()
    document = {
        "name": "p",
        "source": {"type": "generator", "rate": 20.0},
        "prompt": "{{ text }}",
        "sink": {"type": "kafka", "bootstrap": node.bootstrap, "topic": results},
        "checkpoint": {"interval_s": 1.0},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))

    def start(url: str, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", url, "--json", *more],
            cwd=tmp_path,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def interrupted(run: subprocess.Popen[bytes], more: int) -> bytes:
        enough = len(consume_committed(node.bootstrap, results)) + more
        wait_until(
            lambda: run.poll() is not None or len(consume_committed(node.bootstrap, results)) >= enough
        )
        run.send_signal(signal.SIGINT)
        document, said = run.communicate(timeout=400)
        assert run.returncode == 130, said
        return document

    with ReplicaProcess(ReplicaScript(delay=Fixed(0.01))) as replica:
        interrupted(start(replica.url), 60)
        assert orjson.loads(interrupted(start(replica.url), 60))["failed_commits"] == 0
        state = json.loads((tmp_path / ".forebay/p/checkpoints/run.json").read_text())
        newest = max(
            int(path.name.removeprefix("chk-"))
            for path in (tmp_path / ".forebay/p/checkpoints" / state["job"]).glob("chk-*")
            if (path / "_metadata").exists()
        )
        thrown_away = f"forebay-p-{state['id']}-results-0-{newest}"
        produce(node.bootstrap, results, [{"value": b"{}"}], transaction=thrown_away, commit=False)
        refused = start(replica.url)
        _, said = refused.communicate(timeout=400)
        assert refused.returncode == 2
        assert f"Kafka has thrown away transaction {thrown_away}" in said.decode()
        older = said.decode().partition("--from-checkpoint ")[2].split()[0]
        assert older.endswith(f"chk-{newest - 1}")
        told = orjson.loads(interrupted(start(replica.url, "--from-checkpoint", older), 20))
        assert (told["state"], told["failed_commits"]) == ("INTERRUPTED", 0)


def test_results_that_kafka_throws_away_as_a_job_ends_fail_the_run_and_are_made_again(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Flink counts what its last checkpoint could not commit, and finishes."""
    results, jobs = topic(), tmp_path / ".forebay" / "p" / "checkpoints"
    (tmp_path / "in").mkdir()

    def add(name: str, begin: int, end: int) -> None:
        lines = (json.dumps({"text": f"event {n}"}) for n in range(begin, end))
        (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "new").rename(tmp_path / "in" / name)

    def write_pipeline(*, interval_s: float, timeout_s: float) -> None:
        access = {"type": "kafka", "bootstrap": node.bootstrap, "topic": results}
        document = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in", "follow": True},
            "prompt": "{{ text }}",
            "sink": {**access, "transaction_timeout_s": timeout_s},
            "checkpoint": {"interval_s": interval_s},
        }
        (tmp_path / "p.yaml").write_text(json.dumps(document))

    def start(url: str, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", url, *more],
            cwd=tmp_path,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def interrupted(run: subprocess.Popen[bytes], committed: int) -> None:
        wait_until(
            lambda: run.poll() is not None or len(consume_committed(node.bootstrap, results)) >= committed
        )
        run.send_signal(signal.SIGINT)
        _, told = run.communicate(timeout=400)
        assert run.returncode == 130, told.decode()

    def written() -> list[str]:
        """Blocks until no transaction is open."""
        return [Message(each).value_dict["fields"]["text"] for each in consume(node.bootstrap, results)]

    with ReplicaProcess(ReplicaScript(delay=Fixed(0.01))) as replica:
        add("1.jsonl", 0, 10)
        write_pipeline(interval_s=1.0, timeout_s=900.0)
        interrupted(start(replica.url), 10)
        before, checkpoints = end_of(node.bootstrap, results), set(jobs.glob("*/chk-*"))

        def enough(now: object) -> bool:
            if not (tmp_path / "in" / "2.jsonl").exists() and set(jobs.glob("*/chk-*")) - checkpoints:
                add("2.jsonl", 10, 20)
            return end_of(node.bootstrap, results) >= before + 10 and len(written()) == 10

        # After the first checkpoint none completes before the end; Kafka has ended the transaction by then.
        write_pipeline(interval_s=3600.0, timeout_s=1.0)
        with pytest.raises(
            ResultsLost, match=f"sink.topic: results are missing in topic '{results}'"
        ) as lost:
            run_pipeline(
                load_spec(tmp_path / "p.yaml"),
                nullcontext([replica.url]),
                RunOptions(enough=enough),
                replace(load_settings(), home=kafka_jar.parents[1]),
            )
        write_pipeline(interval_s=1.0, timeout_s=900.0)
        refused = start(replica.url)
        _, told = refused.communicate(timeout=400)
        assert refused.returncode == 2
        assert "the last run of pipeline 'p' lost results" in told.decode()
        checkpoint = str(lost.value).partition("--from-checkpoint ")[2].split()[0]
        assert "kept" in checkpoint, "Flink has deleted its own"
        interrupted(start(replica.url, "--from-checkpoint", checkpoint), 20)
    assert sorted(written()) == sorted(f"event {n}" for n in range(20))


def end_of(bootstrap: str, topic: str) -> int:
    """The offset behind the newest record of a topic of one partition, committed or not."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 60.0)[1])
    finally:
        consumer.close()
