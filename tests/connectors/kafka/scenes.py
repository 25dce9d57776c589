"""Successive jobs over topics of a node, and what they read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from benchmarks.topic_client import make_topic, produce
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from pyflink.common import Time, Types
from pyflink.datastream import ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows

from forebay.codec import decode
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
from forebay.connectors.formats import Format
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.source import TopicSource, kafka_source
from forebay.flink.environment import FlinkConfig, embedded_rest, flink_environment
from forebay.flink.event_time import with_event_time
from forebay.flink.job import RunningJob, submit
from forebay.ports import free_port
from forebay.testing.waiting import wait_until

WAIT_S = 180.0
DAY_MS = 1_700_000_000_000


class Scenes:
    """The node, a folder, and how to run a job."""

    def __init__(self, bootstrap: str, folder: Path, logs: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.config = FlinkConfig(checkpoint_interval_s=0.3, log_dir=logs)
        self.cluster = KafkaCluster(self.bootstrap)

    def start(
        self, name: str, config: TopicSource, *, parallelism: int = 1, window: bool = False
    ) -> RunningJob:
        port = free_port()
        flink = replace(
            self.config,
            parallelism=parallelism,
            checkpoint_dir=self.folder / name / "checkpoints",
            options={"rest.port": str(port), "rest.bind-port": str(port)},
        )
        env = flink_environment(flink)
        stream = kafka_source(env, config)
        if window:
            # Lines, not bytes: PyFlink's windows cannot keep a byte array in their state.
            timed = with_event_time(stream, out_of_orderness_ms=0).map(_line, Types.STRING())
            windows = timed.key_by(lambda _: 0, Types.INT()).window(
                TumblingEventTimeWindows.of(Time.seconds(10))
            )
            lines = windows.process(_Lines(), Types.STRING())
        else:
            lines = stream.map(_line, Types.STRING())
        jsonl_sink(lines, JsonlFiles(self.folder / name / "out"))
        return submit(env, name, embedded_rest(flink, port))

    def read(self, name: str) -> list[dict[str, Any]]:
        out = self.folder / name / "out"
        return [orjson.loads(line) for line in read_jsonl_sink(out)] if out.is_dir() else []

    def bounded(self, name: str, config: TopicSource) -> list[dict[str, Any]]:
        """Everything read by a job that ends with the present records."""
        job = self.start(name, replace(config, until_latest=True))
        wait_until(lambda: job.ended() is not None, WAIT_S)
        assert job.ended() == "", job.ended()
        return self.read(name)

    def endless(self, name: str, job: RunningJob, *steps: Any) -> list[dict[str, Any]]:
        """Everything read by a job that is ended after the last step: a number of records to wait for, or an
        action."""
        try:
            for step in steps:
                if callable(step):
                    step()
                else:
                    wait_until(
                        lambda wanted=step: job.ended() is not None or len(self.read(name)) >= wanted, WAIT_S
                    )
                    assert job.ended() is None, job.ended()
        finally:
            if job.ended() is None:
                job.cancel()
                wait_until(lambda: job.ended() is not None, WAIT_S)
        return self.read(name)

    def topic(self, name: str, partitions: int, *values: str, **record: Any) -> str:
        make_topic(self.bootstrap, name, partitions)
        self.write(name, *values, **record)
        return name

    def write(self, name: str, *values: str, **record: Any) -> None:
        produce(self.bootstrap, name, [{"value": orjson.dumps({"text": v}), **record} for v in values])


def _line(data: bytes) -> str:
    event = decode(bytes(data))
    return orjson.dumps({"text": event.fields["text"], "time_ms": event.time_ms}).decode()


class _Lines(ProcessWindowFunction):
    """Records of a closed window."""

    def process(self, key: int, context: Any, elements: Iterable[str]) -> Iterator[str]:
        yield from elements


def starts(scenes: Scenes) -> Iterator[tuple[str, Any]]:
    """From a time, from committed offsets, from either end."""
    name = scenes.topic("starts", 1)
    for n in range(4):
        scenes.write(name, f"e{n}", timestamp=DAY_MS + n * 1000)
    source = TopicSource(scenes.cluster, Format(), (name,), group="starts")
    yield "time", scenes.bounded("time", replace(source, start=DAY_MS + 2000))
    yield "earliest", scenes.bounded("earliest", replace(source, start="earliest", group=None))
    yield "nothing committed", scenes.bounded("fresh", replace(source, group="starts-fresh"))
    consumer = Consumer({"bootstrap.servers": scenes.bootstrap, "group.id": "starts"})
    consumer.commit(offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
    consumer.close()
    yield "committed", scenes.bounded("committed", source)
    job = scenes.start("latest", replace(source, start="latest", group=None))
    stop = threading.Event()

    def write_until_read() -> None:
        while not stop.wait(0.3):
            scenes.write(name, "new")

    writer = threading.Thread(target=write_until_read)
    writer.start()
    try:
        yield "latest", scenes.endless("latest", job, 1)
    finally:
        stop.set()
        writer.join()


def discovery(scenes: Scenes) -> Iterator[tuple[str, Any]]:
    """A new topic that matches, a new partition; topics that match only in part stay unread."""
    scenes.topic("found-1", 1, "first")
    scenes.topic("not-found-1", 1, "never")
    source = TopicSource(
        scenes.cluster, Format(), pattern=r"found-\d+", group="found", start="earliest", discovery_s=0.3
    )

    def add_partition() -> None:
        admin = AdminClient({"bootstrap.servers": scenes.bootstrap})
        admin.create_partitions([NewPartitions("found-1", 2)])["found-1"].result(WAIT_S)
        scenes.write("found-1", "new partition", partition=1)

    job = scenes.start("discovery", source)
    yield (
        "discovery",
        scenes.endless(
            "discovery", job, 1, lambda: scenes.topic("found-2", 1, "new topic"), 2, add_partition, 3
        ),
    )


def idle(scenes: Scenes) -> Iterator[tuple[str, Any]]:
    """Four partitions, one with records, a job of two subtasks: windows close while it runs."""
    name = scenes.topic("idle", 4)
    for n in range(3):
        scenes.write(name, f"e{n}", timestamp=DAY_MS + n * 10_000, partition=2)
    source = TopicSource(scenes.cluster, Format(), (name,), group="idle", start="earliest", parallelism=1)
    yield "idle", scenes.endless("idle", scenes.start("idle", source, parallelism=2, window=True), 2)


def read_in_scenes(bootstrap: str, folder: Path, logs: Path) -> dict[str, Any]:
    """By scene; `logs`: the folder of the running JVM, with the connector on its class path."""
    scenes = Scenes(bootstrap, folder, logs)
    return dict(part for scene in (starts, discovery, idle) for part in scene(scenes))
