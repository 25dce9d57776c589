"""The demo between two topics: what is written, when, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.clock import ManualClock

from forebay.cli.demo import kafka as module
from forebay.cli.demo.kafka import Feeder, between_topics, due, pace_of, posts
from forebay.cli.demo.plan import Demo, DemoOptions, plan_demo
from forebay.connectors.files.source import ReplaySpeed
from forebay.connectors.kafka.admin import KafkaAway
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.settings import KafkaSink, KafkaSource
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.snapshot import Snapshot
from forebay.testing.waiting import wait_until


def plan(folder: Path, text: str | None = None, name: str = "in.jsonl", **options: Any) -> Demo:
    """The demo for an input file with the content `text`."""
    if text is not None:
        options["input"] = folder / name
        options["input"].write_text(text)
    return plan_demo(DemoOptions(out=folder / "demo", **options))


def test_lines_are_sent_unchanged_and_rows_as_json(tmp_path: Path) -> None:
    lines = '{"text": "a", "time": "2026-01-01T00:00:00Z"}\nno json\n{"text":  "b"}\n{"text": "c"}\n'
    assert [value for value, _ in posts(plan(tmp_path, lines, events=3))] == lines.encode().splitlines()[:3]
    rows = plan(tmp_path, 'text,n\nhello,1\n"a,\nb",2\nonly one\n', "in.csv")
    assert [value for value, _ in posts(rows)] == [
        b'{"text":"hello","n":"1"}',
        b'{"text":"a,\\nb","n":"2"}',
        b"only one",
    ]


def test_too_large_record_is_sent_cut_but_still_too_large(tmp_path: Path) -> None:
    (_, (value, _)) = posts(plan(tmp_path, '{"text": "a"}\n{"text": "' + "x" * 3_000_000 + '"}\n'))
    assert len(value) == 1_048_577


def test_posts_are_sent_at_once_or_at_their_recorded_times(tmp_path: Path) -> None:
    timed = [(b"a", 1000), (b"b", None), (b"c", 5000), (b"d", 3000), (b"e", 600_000)]
    assert [at for _, at in due(timed, None)] == [0.0] * 5
    assert [at for _, at in due(timed, ReplaySpeed(2.0))] == [0.0, 0.0, 2.0, 2.0, 62.0]
    line = '{"text": "a", "date": "2026-01-01"}'
    assert pace_of(plan(tmp_path, line, speed=60.0)) == ReplaySpeed(60.0)
    assert pace_of(plan(tmp_path, line)) is None
    assert pace_of(plan(tmp_path)) is None


def test_demo_has_its_own_topics_group_and_transactions(tmp_path: Path) -> None:
    line = '{"body": "a", "date": "2026-01-01"}'
    demo, topics = between_topics(plan(tmp_path, line), "h:1", "demo-7")
    source, spec = demo.spec.source, demo.spec
    assert isinstance(source, KafkaSource)
    assert (source.topics, source.start) == ((topics.posts,), "earliest")
    assert (source.time, source.time_format) == ("date", "iso8601")
    assert (spec.name, source.group_of(spec.name)) == ("demo-7", "forebay-demo-7")
    assert isinstance(spec.sink, KafkaSink)
    assert (topics.answers, spec.sink.guarantee) == (spec.sink.topic, "exactly-once")
    assert isinstance(spec.dead_letters, KafkaSink)
    assert len({topics.posts, topics.answers, spec.dead_letters.topic}) == 3
    assert between_topics(plan(tmp_path), "h:1", "demo-7")[0].spec.source.time == "time"  # type: ignore[union-attr]


class Writer:
    """A topic that records writes; `refused` at the end."""

    def __init__(self, refused: bool = False) -> None:
        self.values: list[bytes] = []
        self._refused = refused

    def write(self, value: bytes) -> None:
        self.values.append(value)

    def flush(self) -> None:
        if self._refused:
            raise KafkaAway("gone")


def feeder(
    monkeypatch: pytest.MonkeyPatch, writer: Writer, clock: ManualClock, *due: tuple[bytes, float]
) -> Feeder:
    @contextmanager
    def opened(cluster: object, topic: str) -> Iterator[Writer]:
        yield writer

    monkeypatch.setattr(module, "kafka_writer", opened)
    return Feeder(KafkaCluster("h:1"), "t", due, clock)


def snapshot(records: int | None, age_s: float = 0.0, state: str = "RUNNING") -> Snapshot:
    backlog = None if records is None else TopicBacklog(records, None, None, age_s)
    return Snapshot(1.0, state, backlog=backlog)


def test_demo_ends_if_a_count_after_the_last_post_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, writer = ManualClock(), Writer()
    feeding = feeder(monkeypatch, writer, clock, (b"a", 0.0), (b"b", 0.0))
    assert not feeding.enough(snapshot(0, state="CREATED"))
    assert writer.values == []
    feeding.enough(snapshot(0))
    wait_until(lambda: feeding._written_s is not None)
    assert writer.values == [b"a", b"b"]
    clock.advance(5.0)
    assert not feeding.enough(snapshot(None))
    assert not feeding.enough(snapshot(1, age_s=1.0))
    assert not feeding.enough(snapshot(0, age_s=5.0))
    assert feeding.enough(snapshot(0, age_s=4.0))
    feeding.close()


def test_kafka_that_accepts_no_posts_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding = feeder(monkeypatch, Writer(refused=True), ManualClock(), (b"a", 0.0))
    feeding.enough(snapshot(0))
    feeding._thread.join()
    with pytest.raises(KafkaAway, match="gone"):
        feeding.enough(snapshot(0))


def test_replay_ends_with_its_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    feeding = feeder(monkeypatch, writer, ManualClock(), (b"a", 0.0), (b"b", 3600.0))
    feeding.enough(snapshot(0))
    wait_until(lambda: bool(writer.values))
    feeding.close()
    assert writer.values == [b"a"]
    assert not feeding.enough(snapshot(0))


def test_made_up_posts_are_those_of_the_generator(tmp_path: Path) -> None:
    found = list(posts(plan(tmp_path, events=20)))
    assert len(found) == 20
    assert all({"text", "time"} <= orjson.loads(value).keys() for value, _ in found)
    assert found == list(posts(plan(tmp_path, events=20)))
    assert found != list(posts(plan(tmp_path, events=20, seed=2)))
