"""Input and sinks of a recovery run: files, or topics of a Kafka that is killed as well."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from benchmarks.tally import NUMBER, SinkWatch, StoreWatch, attempts_of, number_of
from forebay.clients.s3.location import Location
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.connectors.jars import KAFKA, install_jar
from forebay.errors import SettingError
from forebay.settings import Settings
from forebay.testing.kafka import LocalKafka, local_kafka

PlaceKind = Literal["files", "kafka"]
PARTITIONS = 4


class Place(Protocol):
    def prepare(self, events: Sequence[dict[str, Any]]) -> None:
        """Write the input: JSON objects, numbered from 0."""
        ...

    def document(self) -> dict[str, Any]:
        """The part of a pipeline file for input and sinks."""
        ...

    def look(self) -> int: ...

    def written_after(self, moment_s: float, *, retried: bool = False) -> bool: ...

    def results(self) -> Iterator[bytes]: ...

    def letters(self) -> Iterator[bytes]: ...

    def ahead(self) -> int:
        """Maximum number of offsets committed before the results of their events."""
        ...

    def kill(self) -> None:
        """SIGKILL the process that holds input and sinks."""
        ...

    def bring_back(self) -> None: ...


class FilesPlace:
    """Input in `folder`, and sinks there or below `store`, in an object store."""

    def __init__(self, folder: Path, store: Location | None = None) -> None:
        self._events = folder / "events.jsonl"
        self._store = store
        self._home = store or folder
        self.watch = SinkWatch(folder / "results") if store is None else StoreWatch(store / "results")
        self.look = self.watch.look

    def written_after(self, moment_s: float, *, retried: bool = False) -> bool:
        return self.watch.written_after(moment_s, retried=retried)

    def prepare(self, events: Sequence[dict[str, Any]]) -> None:
        self._events.write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in events))

    def document(self) -> dict[str, Any]:
        # With an object store, the pipeline file moves from folder to folder.
        events, home = (self._events.name, "") if self._store is None else (self._events, f"{self._store}/")
        return {
            "source": {"type": "jsonl", "path": str(events)},
            "sink": {"type": "jsonl", "path": f"{home}results"},
            "dead_letters": {"type": "jsonl", "path": f"{home}dead-letters"},
        }

    def results(self) -> Iterator[bytes]:
        return read_jsonl_sink(self._home / "results")

    def letters(self) -> Iterator[bytes]:
        return read_jsonl_sink(self._home / "dead-letters")

    def ahead(self) -> int:
        return 0

    def kill(self) -> None:
        raise SettingError("files and object stores cannot be killed")

    def bring_back(self) -> None:
        self.kill()


class TopicsPlace:
    """Topics of four partitions on a local node, read with `read_committed`."""

    def __init__(self, node: LocalKafka) -> None:
        # Imported here: only measurements and tests need this Kafka client.
        from benchmarks.topic_client import TopicReader

        self._node = node
        stem = f"recovery-{uuid.uuid4().hex[:8]}"
        self._topics = {name: f"{stem}-{name}" for name in ("events", "results", "letters")}
        self._reader = TopicReader(node.bootstrap, self._topics["results"])
        self._seen: list[tuple[float, bool]] = []
        self._lines: list[bytes] = []
        self._behind = Behind(PARTITIONS)

    def prepare(self, events: Sequence[dict[str, Any]]) -> None:
        from benchmarks.topic_client import make_topic, produce

        for topic in self._topics.values():
            make_topic(self._node.bootstrap, topic, PARTITIONS)
        produce(
            self._node.bootstrap,
            self._topics["events"],
            ({"value": orjson.dumps(event), "partition": event[NUMBER] % PARTITIONS} for event in events),
        )

    def document(self) -> dict[str, Any]:
        access = {"type": "kafka", "bootstrap": self._node.bootstrap}
        return {
            "source": {
                **access,
                "topics": [self._topics["events"]],
                "group": self._topics["events"],
                "until_latest": True,
            },
            "sink": {**access, "topic": self._topics["results"]},
            "dead_letters": {**access, "topic": self._topics["letters"]},
        }

    def look(self) -> int:
        return self._look(self._reader.read)

    def _look(self, read: Callable[[], list[tuple[float, bytes]]]) -> int:
        from benchmarks.topic_client import committed_offsets

        group = topic = self._topics["events"]
        # Read offsets before results: results of committed offsets must be visible.
        offsets = committed_offsets(self._node.bootstrap, group, topic, PARTITIONS)
        for written_s, line in read():
            self._seen.append((written_s, attempts_of(line) > 1))
            self._lines.append(line)
            self._behind.answered(line)
        if self._reader.complete:
            self._behind.committed(offsets)
        return len(self._lines)

    def written_after(self, moment_s: float, *, retried: bool = False) -> bool:
        return any(
            written_s > moment_s and (again or not retried) for written_s, again in reversed(self._seen)
        )

    def results(self) -> Iterator[bytes]:
        self._look(self._reader.to_the_end)
        return iter(self._lines)

    def ahead(self) -> int:
        return self._behind.worst

    def letters(self) -> Iterator[bytes]:
        from benchmarks.topic_client import TopicReader

        return (line for _, line in TopicReader(self._node.bootstrap, self._topics["letters"]).to_the_end())

    def kill(self) -> None:
        self._node.kill()

    def bring_back(self) -> None:
        self._node.start()


class Behind:
    """Compares events that have results with committed offsets: event n has offset n // partitions in
    partition n % partitions.

    `worst`: the maximum number of events before a committed offset without a result, over all looks.
    """

    def __init__(self, partitions: int) -> None:
        self._answered: list[set[int]] = [set() for _ in range(partitions)]
        self._all_before = [0] * partitions
        self.worst = 0

    def answered(self, line: bytes) -> None:
        number = number_of(line)
        if number is not None:
            self._answered[number % len(self._answered)].add(number // len(self._answered))

    def committed(self, offsets: Sequence[int]) -> None:
        missing = 0
        for partition, (offset, answered) in enumerate(zip(offsets, self._answered, strict=True)):
            while self._all_before[partition] in answered:
                self._all_before[partition] += 1
            missing += sum(at not in answered for at in range(self._all_before[partition], offset))
        self.worst = max(self.worst, missing)


@contextmanager
def place(kind: PlaceKind, folder: Path, settings: Settings) -> Iterator[Place]:
    if kind == "files":
        yield FilesPlace(folder)
        return
    home = kafka_to_start(settings)
    # The pipeline has its own home.
    install_jar(KAFKA, folder / "home" / "connectors", settings.connectors_from or str(settings.connectors))
    with local_kafka(home, folder / "kafka") as node:
        yield TopicsPlace(node)


def kafka_to_start(settings: Settings) -> Path:
    if settings.kafka_home is None:
        raise SettingError("Kafka is missing: set FOREBAY_KAFKA_HOME to an unpacked distribution")
    if find_spec("confluent_kafka") is None:
        raise SettingError("the Kafka client for measurements is missing: pip install 'forebay[kafka-bench]'")
    return settings.kafka_home
