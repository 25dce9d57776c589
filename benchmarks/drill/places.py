"""Inputs and sinks of a scenario: files, feeds or topics."""

from __future__ import annotations

import random
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson

from benchmarks.drill.check import Place
from benchmarks.drill.link import Link
from benchmarks.drill.scenario import Scenario
from benchmarks.drill.workload import (
    DIRECTORY,
    FILES_IN_DIRECTORY,
    PAD,
    ROWS,
    Flaw,
    Workload,
    events_per_file,
    flaw_of,
    json_bytes,
    row_bytes,
)
from benchmarks.expected_events import FILE
from benchmarks.feeds import Drops, FeedServer, serve
from benchmarks.tally import NUMBER
from forebay.clients.s3.client import S3Client, StoreAway
from forebay.clients.s3.location import Location, S3Path
from forebay.clients.s3.lock import MAX_LOCK_BYTES, decode_lock
from forebay.connectors.files.sink import committed_parts, read_jsonl_sink
from forebay.connectors.formats import dead_letter_json
from forebay.errors import SettingError
from forebay.flink.checkpoints import LOCK, METADATA
from forebay.pipeline.state_store import FILE as RUN_FILE
from forebay.records import DeadLetter
from forebay.testing.kafka import LocalKafka

PARTITIONS = 3
FILES_FOLLOWED = 8
LETTERS = "letters.jsonl"
MAX_KAFKA_BYTES = 20_000_000
DELETED_SHARE = 2 / 3
"""Share of a portion that Kafka deletes before it is read."""


class Places(AbstractContextManager["Places"]):
    """The input of one scenario, in `disk` or in `kafka`, and its sinks, in `out` or in `kafka`."""

    def __init__(
        self, scenario: Scenario, work: Workload, disk: Path, out: Location, kafka: LocalKafka | None
    ) -> None:
        self._scenario = scenario
        self._work = work
        self._disk = disk
        self._out = out
        self._kafka = kafka
        self._stem = f"drill-{uuid.uuid4().hex[:8]}"
        self._places: dict[Place, str] = {}
        self._deleted: set[Place] = set()
        self._stack = ExitStack()
        self._to_come: list[Sequence[dict[str, Any]]] = []
        self._given = 0
        self.feed: Link | None = None
        self.source: dict[str, Any] = {}

    def __enter__(self) -> Places:
        self._disk.mkdir(parents=True)
        self.source = {**self._source(), **self._work.source}
        if self._scenario.sink == "kafka":
            for name in self._outputs().values():
                self._make_topic(name, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def sinks(self) -> dict[str, Any]:
        outputs = self._outputs().items()
        if self._scenario.sink == "files":
            return {key: {"type": "jsonl", "path": str(self._out / name)} for key, name in outputs}
        access = {"type": "kafka", "bootstrap": self._node.bootstrap}
        return {key: {**access, "topic": f"{self._stem}-{name}"} for key, name in outputs}

    def _outputs(self) -> dict[str, str]:
        found = {"sink": "results", "dead_letters": "dead-letters"}
        return {**found, "assignments": "assignments"} if self._work.expected.assignments else found

    @property
    def endless(self) -> bool:
        return self._scenario.source == "followed" or self._scenario.portions > 1

    def give(self, requests: int) -> None:
        """Add the next file to a followed directory, once most earlier events have become requests."""
        if self._scenario.source == "followed" and self._to_come and requests >= self._given * 2 // 3:
            events = self._to_come.pop(0)
            number, self._given = FILES_FOLLOWED - len(self._to_come), self._given + len(events)
            self._write("next.jsonl", events)
            (self._disk / "next.jsonl").rename(self._disk / DIRECTORY / f"{number}.jsonl")

    def give_and_delete(self) -> None:
        """Write the next portion of a topic, which is not being read, and delete its beginning."""
        from benchmarks.topic_client import delete_before

        if not self._to_come:
            return
        before = set(self._places)
        self._produce(self._to_come.pop(0))
        new = sorted(set(self._places) - before)
        for partition in sorted({place[1] for place in new}):
            offsets = [place[2] for place in new if place[1] == partition]
            end = offsets[0] + max(1, round(len(offsets) * DELETED_SHARE))
            delete_before(self._node.bootstrap, self._topic, end, partition=partition)
            self._deleted |= {place for place in self._places if place[1] == partition and place[2] < end}

    def names(self, places: Iterable[Place]) -> frozenset[str]:
        return frozenset(self._places.get(place, f"{place[0]}/{place[1]}@{place[2]}") for place in places)

    @property
    def deleted(self) -> frozenset[str]:
        """Names of the events that Kafka has deleted, read or not."""
        return self.names(self._deleted)

    def answered(self, skipped: int = 0) -> bool:
        """Whether there is one output record for each event given, except the `skipped` ones."""
        found = sum(1 for records in (self.results(), self.letters()) for _ in records)
        return found + skipped >= self._given

    @property
    def more_to_come(self) -> bool:
        return bool(self._to_come)

    def committed(self) -> int:
        """A value that grows with each commit; 0 if commits are not watched."""
        parts = committed_parts(self._out / "results") if self._scenario.sink == "files" else []
        return sum(part.size for part in parts)

    def results(self) -> Iterator[bytes]:
        """Committed results; those of one key in order."""
        return self._read("results")

    def letters(self) -> Iterator[bytes]:
        return self._read("dead-letters")

    def assignments(self) -> Iterator[bytes]:
        return self._read("assignments")

    def _read(self, name: str) -> Iterator[bytes]:
        if self._scenario.sink == "files":
            return read_jsonl_sink(self._out / name)
        from benchmarks.topic_client import TopicReader

        reader = TopicReader(self._node.bootstrap, f"{self._stem}-{name}")
        return (line for _, line in reader.to_the_end())

    @property
    def _node(self) -> LocalKafka:
        assert self._kafka is not None, "the scenario needs a Kafka"
        return self._kafka

    def _source(self) -> dict[str, Any]:
        events = self._work.events
        self._given = len(events)
        match self._scenario.source:
            case "file" | "replay":
                self._write(FILE, events)
                return {"type": "jsonl", "path": str(self._disk / FILE)}
            case "directory":
                step = events_per_file(len(events))
                (self._disk / DIRECTORY).mkdir()
                for n in range(FILES_IN_DIRECTORY):
                    self._write(f"{DIRECTORY}/{n}.jsonl", events[n * step : (n + 1) * step])
                return {"type": "jsonl", "path": str(self._disk / DIRECTORY)}
            case "csv":
                header = ",".join([*events[0], PAD]).encode()
                rows = b"".join(row_bytes(event, self._flaw(event)) for event in events)
                (self._disk / ROWS).write_bytes(header + b"\r\n" + rows)
                return {"type": "csv", "path": str(self._disk / ROWS)}
            case "followed":
                self._to_come, self._given = _portions(events, FILES_FOLLOWED), 0
                (self._disk / DIRECTORY).mkdir()
                return {"type": "jsonl", "path": str(self._disk / DIRECTORY), "follow": True}
            case "letters":
                letters = "".join(_letter(json_bytes(event, self._flaw(event))) for event in events)
                (self._disk / LETTERS).write_text(letters, encoding="utf-8")
                return {"type": "dead_letters", "path": str(self._disk / LETTERS)}
            case "generator":
                return {"type": "generator"}
            case "sse" | "websocket":
                return self._fed(events)
            case "kafka":
                return self._filled_topic(events)

    def _flaw(self, event: Mapping[str, Any]) -> Flaw | None:
        return flaw_of(self._scenario, event[NUMBER]) if self._scenario.bad else None

    def _write(self, name: str, events: Sequence[dict[str, Any]]) -> None:
        lines = (json_bytes(event, self._flaw(event)) + b"\n" for event in events)
        (self._disk / name).write_bytes(b"".join(lines))

    def _fed(self, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        # Real feeds disconnect by themselves, too.
        drops = Drops(self._scenario.seed, every=40) if self._scenario.seed % 2 else None
        server = self._stack.enter_context(
            serve(FeedServer(events, drops, inclusive=self._scenario.seed % 3 == 0))
        )
        self.feed = self._stack.enter_context(Link(server.port))
        kind = self._scenario.source
        url = server.events_url if kind == "sse" else server.subscribe_url
        url = url.replace(f":{server.port}/", f":{self.feed.port}/")
        return {"type": kind, "url": url, "limit": len(events), "idle_timeout_s": 5.0}

    def _filled_topic(self, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        self._partitions = 1 if self._scenario.in_order else PARTITIONS
        self._topic = self._make_topic("events", self._partitions)
        self._to_come, self._given = _portions(events, self._scenario.portions), 0
        self._produce(self._to_come.pop(0))
        access = {"type": "kafka", "bootstrap": self._node.bootstrap, "topics": [self._topic]}
        return {**access, "group": self._topic, "until_latest": not self.endless}

    def _produce(self, events: Sequence[dict[str, Any]]) -> None:
        from benchmarks.topic_client import produce

        records = [self._record(event) for event in events]
        produce(self._node.bootstrap, self._topic, records)
        self._given += len(events)
        for event, record in zip(events, records, strict=True):
            partition = record["partition"]
            offset = sum(place[1] == partition for place in self._places)
            self._places[self._topic, partition, offset] = str(event[NUMBER])

    def _record(self, event: Mapping[str, Any]) -> dict[str, Any]:
        # One partition per key, or the order would be lost before Forebay reads the events.
        key = str(event.get("key") or event.get("user") or event[NUMBER])
        return {
            "value": json_bytes(event, self._flaw(event)),
            "partition": sum(key.encode()) % self._partitions,
        }

    def _make_topic(self, name: str, partitions: int) -> str:
        from benchmarks.topic_client import make_topic

        topic = f"{self._stem}-{name}"
        # A broker refuses records of the next day: setting the clock ahead would correctly end the run.
        config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        if name == "events":
            config["max.message.bytes"] = str(MAX_KAFKA_BYTES)
        make_topic(self._node.bootstrap, topic, partitions, **config)
        return topic


def _portions(events: Sequence[dict[str, Any]], count: int) -> list[Sequence[dict[str, Any]]]:
    step = -(-len(events) // count)
    return [events[at : at + step] for at in range(0, len(events), step)]


def _letter(raw: bytes) -> str:
    return dead_letter_json(DeadLetter(raw=raw, cause="timeout", detail="of an earlier run")) + "\n"


CHECKPOINT = re.compile(rf"([^/]+)/chk-(\d+)/{METADATA}$")


class State:
    """The state of one pipeline below `root`, which changes with each copy of a folder."""

    def __init__(self, root: Location, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._copies = 0
        self._numbers: dict[str, tuple[int, int]] = {}

    @property
    def home(self) -> Location:
        return self._root / "drill" / "checkpoints"

    def completed(self) -> int:
        """Number of checkpoints completed since the first call, over all jobs."""
        # Flink may remove an older one meanwhile: the next call sees the rest.
        with suppress(FileNotFoundError, StoreAway):
            for name in self._metadata():
                if found := CHECKPOINT.search(name):
                    job, number = found[1], int(found[2])
                    first, last = self._numbers.get(job, (number, number))
                    self._numbers[job] = (first, max(last, number))
        return sum(last - first + 1 for first, last in self._numbers.values())

    def _metadata(self) -> list[str]:
        if isinstance(self._root, Path):
            return [str(path) for path in self._root.glob(f"**/chk-*/{METADATA}")]
        entries = S3Client(self._root.bucket).entries(self._root.key)
        # An empty one only occupies the name.
        return [entry.name for entry in entries if entry.size]

    def holder(self) -> str | None:
        """The run that holds the state in an object store; None before the first one."""
        assert isinstance(self.home, S3Path)
        found = S3Client(self.home.bucket).get((self.home / LOCK).key, MAX_LOCK_BYTES)
        return None if found is None else decode_lock(found.content).holder

    def hide_processes(self) -> None:
        """Remove the process of the last run's JVM from the record in an object store."""
        assert isinstance(self.home, S3Path)
        client, key = S3Client(self.home.bucket), (self.home / RUN_FILE).key
        found = client.get(key)
        if found is not None:
            content = orjson.dumps({**orjson.loads(found.content), "jvm": None})
            client.put(key, content, replacing=found.etag)

    def move(self) -> None:
        """Move the folder like a plain copy to another machine: times are those of copying, in any order."""
        if not isinstance(self._root, Path):
            raise SettingError("only a folder can be copied")
        old, self._copies = self._root, self._copies + 1
        self._root = old.with_name(f"state-{self._copies}")
        files = sorted(path for path in old.rglob("*") if path.is_file()) if old.exists() else []
        random.Random(f"copy:{self._seed}:{self._copies}").shuffle(files)
        for path in files:
            target = self._root / path.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.rmtree(old, ignore_errors=True)
