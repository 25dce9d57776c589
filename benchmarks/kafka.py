"""Measures records per second between topics, and topics against files for the same work."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.overhead import SLOTS, fake_replica
from benchmarks.places import PARTITIONS, kafka_to_start
from benchmarks.run_process import run_module
from benchmarks.workload import Workload, prompt_of
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.errors import LaunchError
from forebay.settings import Settings
from forebay.testing.kafka import LocalKafka, local_kafka
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Mixture

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
    """Measure both parts on a local Kafka; blocks for minutes.

    Raises `SettingError` if Kafka or the connector is missing, `LaunchError` if a job fails.
    """
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
        found = run_module("benchmarks.kafka_worker", json.dumps(order), timeout_s=WORKER_TIMEOUT_S)
        report: Report = json.loads(found)
        return report


def _value(number: int) -> bytes:
    return orjson.dumps({"n": number, "text": prompt_of(number)})
