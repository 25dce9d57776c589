"""The demo between two Kafka topics: one for posts, one for answers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from pydantic import ValidationError

from forebay.cli.demo.plan import Demo, DemoSummary, summary_of
from forebay.clock import Clock, SystemClock
from forebay.codec import decode
from forebay.connectors.files.reader import parts_of
from forebay.connectors.files.settings import FileSource
from forebay.connectors.files.source import ReplaySpeed, line_reader, records_of
from forebay.connectors.generator.settings import GeneratorSource
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.connectors.kafka.admin import kafka_admin
from forebay.connectors.kafka.clients import MAX_RECORD_BYTES, kafka_writer, read_committed
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.settings import KafkaAccess, KafkaSink, KafkaSource
from forebay.errors import ForebayError, SettingError
from forebay.flink.jvm import HEAP_MB, start_jvm
from forebay.json_numbers import read_json
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import OpenEngine, Watch, run_pipeline
from forebay.pipeline.snapshot import Snapshot
from forebay.records import DeadLetter, Event
from forebay.settings import Settings
from forebay.testing.kafka import local_kafka

LOCAL = "local"
"""Instead of an address: start a broker for the demo."""
ADMIN_S = 15.0


@dataclass(frozen=True, slots=True)
class DemoTopics:
    """Topics created for a demo; they are not deleted."""

    bootstrap: str
    posts: str
    answers: str
    dead_letters: str


def check_kafka(address: str, settings: Settings) -> None:
    """Raise `SettingError` if something that the demo needs for the Kafka at `address` is missing."""
    installed_jar(KAFKA, settings.connectors)
    if address == LOCAL and settings.kafka_home is None:
        raise SettingError(
            "--kafka: expected the HOST:PORT of a broker, or the environment variable FOREBAY_KAFKA_HOME "
            "with the path of an unpacked Kafka distribution to start one; found neither"
        )
    if address != LOCAL:
        try:
            KafkaAccess(bootstrap=address)
        except ValidationError:
            raise SettingError(
                f"--kafka: expected HOST:PORT, or several separated by commas, found {address[:200]!r}"
            ) from None


@contextmanager
def demo_kafka(address: str, settings: Settings, folder: Path) -> Iterator[str]:
    """The address of the Kafka at `address`; for `LOCAL` a broker with data in `folder` for the block."""
    if address != LOCAL or settings.kafka_home is None:
        yield address
        return
    with local_kafka(settings.kafka_home, folder, environment=settings.child_environment()) as node:
        yield node.bootstrap


def between_topics(demo: Demo, bootstrap: str, name: str) -> tuple[Demo, DemoTopics]:
    """`demo` with Kafka on both sides; topics, group and transactions contain `name`."""
    topics = DemoTopics(
        bootstrap, *(f"forebay-{name}-{what}" for what in ("posts", "answers", "dead-letters"))
    )
    source, access = demo.spec.source, {"type": "kafka", "bootstrap": bootstrap}
    if isinstance(source, FileSource):
        time = {"time": source.time, "time_format": source.time_format}
    else:
        time = {"time": "time"}
    large = {**access, "properties": {"max.request.size": MAX_RECORD_BYTES}}
    posts = {**access, **time, "topics": [topics.posts], "start": "earliest"}
    changes = {
        "name": name,
        "source": KafkaSource.model_validate(posts),
        "sink": KafkaSink.model_validate({**large, "topic": topics.answers}),
        "dead_letters": KafkaSink.model_validate({**large, "topic": topics.dead_letters}),
    }
    return replace(demo, spec=demo.spec.model_copy(update=changes)), topics


def run_between_topics(
    demo: Demo, bootstrap: str, name: str, *, engine: OpenEngine, settings: Settings, watch: Watch
) -> tuple[Snapshot, DemoSummary, DemoTopics]:
    """Create the topics, run the demo between them until every post is answered, and read its answers."""
    kafka_demo, topics = between_topics(demo, bootstrap, name)
    plan = Plan(kafka_demo.spec, settings, fresh=True, in_process=True)
    start_jvm(settings.run / "flink", heap_mb=HEAP_MB, jars=plan.jars, archive_dir=settings.java)
    cluster = KafkaCluster(bootstrap)
    large = {"max.message.bytes": str(MAX_RECORD_BYTES)}
    with kafka_admin(cluster, ADMIN_S) as admin:
        admin.create((topics.posts, topics.answers, topics.dead_letters), large)
    feeder = Feeder(cluster, topics.posts, due(posts(demo), pace_of(demo)), SystemClock())
    with closing(feeder):
        last = run_pipeline(plan, engine, watch, enough=feeder.enough)
    rows = [read_json(value) for value in read_committed(cluster, topics.answers)]
    letters = [read_json(value) for value in read_committed(cluster, topics.dead_letters)]
    counted = replace(
        last,
        accepted=len(rows) + len(letters),
        results=len(rows),
        dead_letters=len(letters),
        in_flight=0,
        pending=0,
        prompt_tokens=sum(row["usage"]["prompt_tokens"] for row in rows),
        completion_tokens=sum(row["usage"]["completion_tokens"] for row in rows),
    )
    watch(counted)
    return counted, summary_of(demo, rows, letters), topics


def posts(demo: Demo) -> Iterator[tuple[bytes, int | None]]:
    """The demo's posts as record values with times; CSV rows as JSON. Blocks on I/O."""
    source = demo.spec.source
    if isinstance(source, GeneratorSource):
        generator = source.generator()
        for index in range(source.count or 0):
            event = generator.event(index)
            yield event.raw, event.time_ms
        return
    assert isinstance(source, FileSource)
    files = source.files()
    reader = line_reader(files)
    for recorded in records_of(parts_of(files.path, reader), reader):
        record: Event | DeadLetter = decode(recorded.data)
        value = record.raw
        if isinstance(record, Event) and source.type == "csv":
            value = orjson.dumps(record.fields)
        # A truncated record is still too large, and so still refused.
        yield value[: source.max_record_bytes + 1], recorded.time_ms


def pace_of(demo: Demo) -> ReplaySpeed | None:
    """The replay speed of the demo, or None for all at once."""
    source = demo.spec.source
    if isinstance(source, FileSource) and source.replay is not None:
        return ReplaySpeed(source.replay.speed)
    return None


def due(posts: Iterable[tuple[bytes, int | None]], pace: ReplaySpeed | None) -> Iterator[tuple[bytes, float]]:
    due_s, before_ms = 0.0, None
    for value, time_ms in posts:
        if pace is not None:
            due_s += pace.gap_s(before_ms, time_ms)
            before_ms = time_ms if time_ms is not None else before_ms
        yield value, due_s


class Feeder:
    """Writes posts to a topic in its own thread, as soon as the job runs."""

    def __init__(
        self, cluster: KafkaCluster, topic: str, posts: Iterable[tuple[bytes, float]], clock: Clock
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._posts = posts
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._stop = threading.Event()
        self._written_s: float | None = None
        self._error: Exception | None = None

    def enough(self, now: Snapshot) -> bool:
        """Whether the job has read every post. Starts the writer, and raises its error."""
        if self._error is not None:
            raise self._error
        if now.state == "RUNNING" and self._thread.ident is None:
            self._thread.start()
        written_s, backlog = self._written_s, now.backlog
        if written_s is None or backlog is None or backlog.records:
            return False
        return self._clock.monotonic_s() - backlog.age_s > written_s

    def close(self) -> None:
        """Stop writing; blocks until the thread has ended."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            begin_s = self._clock.monotonic_s()
            with kafka_writer(self._cluster, self._topic) as writer:
                for value, due_s in self._posts:
                    if self._stop.wait(max(0.0, begin_s + due_s - self._clock.monotonic_s())):
                        return
                    writer.write(value)
                writer.flush()
            self._written_s = self._clock.monotonic_s()
        except (ForebayError, OSError, ValueError) as error:
            self._error = error
