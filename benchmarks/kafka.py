"""Measures records per second between topics, and topics against files for the same work."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pyflink.common import Types
from pyflink.datastream import (
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.jobs import Arrive, answered
from benchmarks.overhead import SLOTS, fake_replica
from benchmarks.places import PARTITIONS, kafka_to_start
from benchmarks.run_process import run_module
from benchmarks.workload import Seen, Workload, figures, prompt_of
from forebay.codec import decode, encode
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
from forebay.connectors.files.source import Files, file_source
from forebay.connectors.formats import Format
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.sink import TopicSink, kafka_sink
from forebay.connectors.kafka.source import TopicSource, kafka_source
from forebay.errors import LaunchError
from forebay.flink.environment import FlinkConfig, Restart, flink_environment
from forebay.flink.types import BYTES
from forebay.records import Event, Result, Usage
from forebay.settings import Settings
from forebay.testing.kafka import LocalKafka, local_kafka
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Mixture

THROUGHPUT = {"taskmanager.memory.segment-size": "32 kb"}
"""Options of a job without an engine: Flink's own buffer sizes, because ours hold few records."""


def main() -> int:
    order = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="work-", dir=order["folder"]) as home:
        print(json.dumps(_run(order, Path(home))), flush=True)
    return 0


def _run(order: dict[str, Any], home: Path) -> dict[str, Any]:
    through = order["what"] == "through"
    env = flink_environment(
        FlinkConfig(
            checkpoint_dir=home / "checkpoints",
            checkpoint_interval_s=1.0,
            restart=Restart(attempts=0),
            log_dir=home / "logs",
            jars=(Path(order["jar"]),),
            options=THROUGHPUT if through else {},
        )
    )
    if through:
        counted = _source(env, order).key_by(_key, Types.STRING()).process(Count(), BYTES).name("count")
        kafka_sink(counted, _sink(order))
        env.execute("from topic to topic")
        return {}
    load = Workload(**order["load"])
    if order["what"] == "files":
        events = file_source(env, Files(Path(order["folder"]) / "events.jsonl", Format()))
    else:
        events = _source(env, order)
    results = answered(events.map(Sent(), BYTES), load)
    if order["what"] == "topics":
        kafka_sink(results, _sink(order))
    jsonl_sink(results.process(Arrive(), Types.STRING()), JsonlFiles(home / "out"))
    env.execute(f"answered from {order['what']}")
    seen = [Seen.parse(line.decode()) for line in read_jsonl_sink(home / "out")]
    return asdict(replace(figures(load, seen), added_ms=()))


def _source(env: StreamExecutionEnvironment, order: dict[str, Any]) -> DataStream:
    config = TopicSource(
        KafkaCluster(order["bootstrap"]),
        topics=(order["source"],),
        start="earliest",
        discovery_s=0,
        until_latest=True,
    )
    return kafka_source(env, config)


def _sink(order: dict[str, Any]) -> TopicSink:
    return TopicSink(KafkaCluster(order["bootstrap"]), order["sink"], transactions=order["sink"])


def _key(data: bytes) -> str:
    return (decode(data).record_key or b"").decode()


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, data: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        seen = (self._seen.value() or 0) + 1
        self._seen.update(seen)
        event = decode(data)
        yield encode(
            Result(
                id=event.position,
                key=ctx.get_current_key(),
                fields=event.fields,
                answer=seen,
                usage=Usage(0, 0),
                attempts=1,
                read_ms=event.time_ms,
                elapsed_s=0.0,
                called_s=0.0,
                record_key=event.record_key,
            )
        )


class Sent(MapFunction):
    def map(self, data: bytes) -> bytes:
        event: Event = decode(data)
        return encode(replace(event, fields={**event.fields, "sent_s": time.monotonic()}))


Report = dict[str, Any]
Note = Callable[[str], None]

WORKER_TIMEOUT_S = 900.0
KEYS = 1000


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`records` go from topic to topic without an engine, `events` through a fake replica."""

    records: int = 200_000
    events: int = 6000


def measure_kafka(options: KafkaOptions, settings: Settings, note: Note = lambda _: None) -> Report:
    """Measure both parts on a local Kafka; blocks for minutes."""
    home = kafka_to_start(settings)
    jar = installed_jar(KAFKA, settings.connectors)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-topics-") as folder,
        local_kafka(home, Path(folder) / "kafka") as node,
    ):
        bench = _Bench(Path(folder), node, jar)
        note(f"{options.records:,} records from topic to topic")
        through = bench.through(options.records)
        with fake_replica(ReplicaScript(delay=Mixture(), slots=SLOTS)) as url:
            load = Workload(events=options.events, rate_per_s=None, capacity=SLOTS, url=url)
            report = {}
            for place in ("files", "topics"):
                note(f"{options.events:,} events through a replica of {SLOTS} slots, {place}")
                report[place] = bench.answered(place, load)
    ratio = report["topics"]["events_per_s"] / report["files"]["events_per_s"]
    # Keyed by mode, like older documents.
    return {"through": {"thread": through}, **report, "topics_to_files": round(ratio, 4)}


class _Bench:
    def __init__(self, folder: Path, node: LocalKafka, jar: Path) -> None:
        self._folder = folder
        self._node = node
        self._jar = jar

    def through(self, records: int) -> Report:
        source, sink = self._topics()
        self._produce(source, ({"key": str(n % KEYS).encode(), "value": _value(n)} for n in range(records)))
        self._work("through", source, sink)
        # Imported here: only measurements and tests need this Kafka client.
        from benchmarks.topic_client import consume

        written_ms = sorted(message.timestamp()[1] for message in consume(self._node.bootstrap, sink))
        if len(written_ms) != records:
            raise LaunchError(f"{len(written_ms)} of {records} records came through")
        # Leave out the start and the end, when the pipeline fills and drains.
        begin, end = int(0.15 * records), int(0.85 * records)
        span_s = (written_ms[end] - written_ms[begin]) / 1000
        return {"records_per_s": round((end - begin) / max(span_s, 1e-3), 1), "records": records}

    def answered(self, place: str, load: Workload) -> Report:
        source, sink = self._topics()
        events = (orjson.dumps({"i": n, "text": prompt_of(n)}) for n in range(load.events))
        if place == "files":
            (self._folder / "events.jsonl").write_bytes(b"\n".join(events) + b"\n")
        else:
            self._produce(source, ({"value": value} for value in events))
        return self._work(place, source, sink, load=asdict(load))

    def _topics(self) -> tuple[str, str]:
        from benchmarks.topic_client import make_topic

        stem = uuid.uuid4().hex[:8]
        for end in ("in", "out"):
            make_topic(self._node.bootstrap, f"{stem}-{end}", PARTITIONS)
        return f"{stem}-in", f"{stem}-out"

    def _produce(self, topic: str, records: Iterator[dict[str, Any]]) -> None:
        from benchmarks.topic_client import produce

        produce(self._node.bootstrap, topic, records)

    def _work(self, what: str, source: str, sink: str, **order: Any) -> Report:
        order |= {
            "what": what,
            "bootstrap": self._node.bootstrap,
            "source": source,
            "sink": sink,
            "jar": str(self._jar),
            "folder": str(self._folder),
        }
        found = run_module("benchmarks.kafka", json.dumps(order), timeout_s=WORKER_TIMEOUT_S)
        report: Report = json.loads(found)
        return report


def _value(number: int) -> bytes:
    return orjson.dumps({"n": number, "text": prompt_of(number)})


if __name__ == "__main__":
    sys.exit(main())
