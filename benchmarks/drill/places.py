"""Where a scenario's events come from and its results go: files, feeds or topics."""

from __future__ import annotations

import csv
import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import orjson

from benchmarks.drill.link import Link
from benchmarks.drill.scenario import Scenario
from benchmarks.drill.workload import DIRECTORY, FILES_IN_DIRECTORY, ROWS, Workload, events_per_file
from benchmarks.expected_events import FILE
from benchmarks.feeds import Drops, FeedServer, serve
from benchmarks.places import write_events
from benchmarks.tally import NUMBER
from forebay.connectors.files.sink import committed_parts, read_jsonl_sink
from forebay.connectors.formats import dead_letter_json
from forebay.connectors.kafka.sizes import MIN_LIMIT_BYTES, REQUEST
from forebay.records import DeadLetter
from forebay.testing.kafka import LocalKafka

PARTITIONS = 3
FILES_FOLLOWED = 8
LETTERS = "letters.jsonl"


class Places(AbstractContextManager["Places"]):
    """The input and the sinks of one scenario, in `disk` and, where a scenario needs it, in `kafka`."""

    def __init__(self, scenario: Scenario, work: Workload, disk: Path, kafka: LocalKafka | None) -> None:
        self._scenario = scenario
        self._work = work
        self._disk = disk
        self._kafka = kafka
        self._stem = f"drill-{uuid.uuid4().hex[:8]}"
        self._stack = ExitStack()
        self._to_come: list[Sequence[dict[str, Any]]] = []
        self._given = 0
        self.feed: Link | None = None
        self.source: dict[str, Any] = {}

    def __enter__(self) -> Places:
        self._disk.mkdir(parents=True)
        self.source = {**self._source(), **self._work.source}
        if self._scenario.sink == "kafka":
            for name in ("results", "letters"):
                self._make_topic(name, 1)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def sinks(self) -> dict[str, Any]:
        """The part of a pipeline file that names the sinks."""
        if self._scenario.sink == "files":
            return {
                "sink": {"type": "jsonl", "path": "results"},
                "dead_letters": {"type": "jsonl", "path": "dead-letters"},
            }
        access: dict[str, Any] = {"type": "kafka", "bootstrap": self._node.bootstrap}
        if self._scenario.application == "infer":
            access["properties"] = {REQUEST: MIN_LIMIT_BYTES}
        return {
            "sink": {**access, "topic": f"{self._stem}-results"},
            "dead_letters": {**access, "topic": f"{self._stem}-letters"},
        }

    @property
    def endless(self) -> bool:
        """Whether a pipeline never comes to the end of its input by itself."""
        return self._scenario.source == "followed"

    def give(self, requests: int) -> None:
        """Let the next file appear in a directory that is followed, once most events of those before have
        become requests."""
        if self._to_come and requests >= self._given * 2 // 3:
            events = self._to_come.pop(0)
            number, self._given = FILES_FOLLOWED - len(self._to_come), self._given + len(events)
            write_events(self._disk / "next.jsonl", events)
            (self._disk / "next.jsonl").rename(self._disk / DIRECTORY / f"{number}.jsonl")

    def complete(self) -> bool:
        """Whether as many records have come out as must come out."""
        expected = self._work.expected
        if self._to_come:
            return False
        found = sum(1 for records in (self.results(), self.letters()) for _ in records)
        return found >= len(expected.results) + len(expected.letters)

    def committed(self) -> int:
        """Something that grows with what is committed; 0 where that is not looked at."""
        return len(committed_parts(self._disk / "results")) if self._scenario.sink == "files" else 0

    def results(self) -> Iterator[bytes]:
        """The committed results; those of one key in order."""
        return self._read("results")

    def letters(self) -> Iterator[bytes]:
        return self._read("letters" if self._scenario.sink == "kafka" else "dead-letters")

    def _read(self, name: str) -> Iterator[bytes]:
        if self._scenario.sink == "files":
            return read_jsonl_sink(self._disk / name)
        from benchmarks.topic_client import TopicReader

        reader = TopicReader(self._node.bootstrap, f"{self._stem}-{name}")
        return (line for _, line in reader.to_the_end())

    @property
    def _node(self) -> LocalKafka:
        assert self._kafka is not None, "the scenario needs a Kafka"
        return self._kafka

    def _source(self) -> dict[str, Any]:
        events = self._work.events
        match self._scenario.source:
            case "file" | "replay":
                write_events(self._disk / FILE, events)
                return {"type": "jsonl", "path": FILE}
            case "directory":
                step = events_per_file(len(events))
                (self._disk / DIRECTORY).mkdir()
                for n in range(FILES_IN_DIRECTORY):
                    write_events(self._disk / DIRECTORY / f"{n}.jsonl", events[n * step : (n + 1) * step])
                return {"type": "jsonl", "path": DIRECTORY}
            case "csv":
                (self._disk / ROWS).write_text(_csv(events), encoding="utf-8", newline="")
                return {"type": "csv", "path": ROWS}
            case "followed":
                step = -(-len(events) // FILES_FOLLOWED)
                (self._disk / DIRECTORY).mkdir()
                self._to_come = [events[at : at + step] for at in range(0, len(events), step)]
                return {"type": "jsonl", "path": DIRECTORY, "follow": True}
            case "letters":
                (self._disk / LETTERS).write_text("".join(map(_letter, events)), encoding="utf-8")
                return {"type": "dead_letters", "path": LETTERS}
            case "generator":
                return {"type": "generator"}
            case "sse" | "websocket":
                return self._fed(events)
            case "kafka":
                return self._topic(events)

    def _fed(self, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        # Feeds in the wild break off by themselves as well.
        drops = Drops(self._scenario.seed, every=40) if self._scenario.seed % 2 else None
        server = self._stack.enter_context(
            serve(FeedServer(events, drops, inclusive=self._scenario.seed % 3 == 0))
        )
        self.feed = self._stack.enter_context(Link(server.port))
        kind = self._scenario.source
        url = server.events_url if kind == "sse" else server.subscribe_url
        url = url.replace(f":{server.port}/", f":{self.feed.port}/")
        return {"type": kind, "url": url, "limit": len(events), "idle_timeout_s": 5.0}

    def _topic(self, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
        from benchmarks.topic_client import produce

        partitions = 1 if self._scenario.in_order else PARTITIONS
        topic = self._make_topic("events", partitions)
        produce(self._node.bootstrap, topic, (_record(event, partitions) for event in events))
        access = {"type": "kafka", "bootstrap": self._node.bootstrap}
        return {**access, "topics": [topic], "group": topic, "until_latest": True}

    def _make_topic(self, name: str, partitions: int) -> str:
        from benchmarks.topic_client import make_topic

        topic = f"{self._stem}-{name}"
        # A broker refuses records of the day after: a clock that was set ahead would end the run, rightly.
        make_topic(
            self._node.bootstrap, topic, partitions, **{"message.timestamp.after.max.ms": str(2**63 - 1)}
        )
        return topic


def _record(event: Mapping[str, Any], partitions: int) -> dict[str, Any]:
    # All of one key in one partition, or their order would be lost before Forebay reads them.
    key = str(event.get("key") or event.get("user") or event[NUMBER])
    return {"value": orjson.dumps(event), "partition": sum(key.encode()) % partitions}


def _letter(event: Mapping[str, Any]) -> str:
    letter = DeadLetter(raw=orjson.dumps(event), cause="timeout", detail="of an earlier run")
    return dead_letter_json(letter) + "\n"


def _csv(events: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    rows = csv.DictWriter(out, list(events[0]))
    rows.writeheader()
    rows.writerows(events)
    return out.getvalue()
