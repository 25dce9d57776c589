"""`python -m benchmarks.kafka_worker`: runs one job between topics, or between files, in its own process and
JVM.

Reads a JSON order from standard input, and prints a JSON report as the last line of standard output.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyflink.common import Types
from pyflink.datastream import (
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.figures import Seen, figures
from benchmarks.jobs import Arrive, answered
from benchmarks.workload import Workload
from forebay.codec import decode, encode
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
from forebay.connectors.files.source import Files, file_source
from forebay.connectors.formats import Format
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.sink import TopicSink, kafka_sink
from forebay.connectors.kafka.source import TopicSource, kafka_source
from forebay.flink.environment import FlinkConfig, Restart, flink_environment
from forebay.flink.types import BYTES
from forebay.records import Event, Result, Usage

THROUGHPUT = {
    "taskmanager.memory.segment-size": "32 kb",
}
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
    """Emits how often the key was seen."""

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
    """Converts to an event with its send time."""

    def map(self, data: bytes) -> bytes:
        event: Event = decode(data)
        return encode(replace(event, fields={**event.fields, "sent_s": time.monotonic()}))


if __name__ == "__main__":
    sys.exit(main())
