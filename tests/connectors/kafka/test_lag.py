"""The number of waiting records, computed from reports of Flink and Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.lag import LagProbe, first_known, is_place, places
from forebay.connectors.kafka.source import TopicSource


def metric(topic: str, partition: int) -> str:
    reader = "Source__KafkaSource-*anonymous_kafka$1*.KafkaSourceReader"
    return f"{reader}.topic.{topic}.partition.{partition}.currentOffset"


def test_source_reports_its_last_record() -> None:
    ends = [Place("a.b", 0, 10), Place("a.b", 1, 10), Place("c", 0, 10), Place("c", 1, 5)]
    text = {metric("a_b", 0): 6.0, metric("a_b", 1): -1.0, metric("c", 0): float("nan"), metric("d", 0): 3.0}
    assert places(text, ends) == (Place("a.b", 0, 7),)
    assert all(is_place(name) for name in text)
    assert not is_place(metric("c", 0).replace("current", "committed"))


def test_first_report_of_a_partition_is_trusted() -> None:
    found = first_known([Place("a", 0, 7)], [Place("a", 0, 3), Place("a", 1, 2)], [Place("b", 0, 1)])
    assert set(found) == {Place("a", 0, 7), Place("a", 1, 2), Place("b", 0, 1)}


class Answers:
    """A Kafka with two partitions of ten records; the first four are deleted."""

    def __init__(self, committed: tuple[Place, ...] = ()) -> None:
        self._committed = committed
        self.asked: list[tuple[str, ...]] = []

    def topics(self) -> frozenset[str]:
        return frozenset(("a", "ab", "b"))

    def ends(self, topics: Iterable[str]) -> tuple[Place, ...]:
        return self.offsets(topics, "latest")

    def offsets(self, topics: Iterable[str], at: str | int) -> tuple[Place, ...]:
        self.asked.append(tuple(sorted(topics)))
        offset = {"earliest": 4, "latest": 14}.get(str(at), 9)
        return tuple(Place(topic, partition, offset) for topic in topics for partition in (0, 1))

    def committed(self, group: str) -> tuple[Place, ...]:
        assert group == "g"
        return self._committed


def waits(
    answers: Answers, said: dict[str, float] | None = None, *, restored: bool = False, **source: Any
) -> int:
    source = {"topics": ("a",), "group": "g", **source}
    config = TopicSource(KafkaCluster("h:1"), **source)
    admin: Any = answers
    return LagProbe(config, lambda: said or {}, restored=restored).count(admin)


@pytest.mark.parametrize(("start", "records"), [("committed", 20), ("earliest", 20), ("latest", 0), (5, 10)])
def test_unread_topic_is_backlog_from_the_start(start: Any, records: int) -> None:
    assert waits(Answers(), start=start) == records


def test_committed_offsets_count_until_the_source_reports_more() -> None:
    answers = Answers((Place("a", 0, 10), Place("a", 1, 14)))
    assert waits(answers) == 4
    assert waits(answers, {metric("a", 0): 12.0}) == 1
    assert waits(answers, {metric("a", 0): 4.0}) == 9


def test_an_earlier_runs_offsets_do_not_count_if_reading_starts_elsewhere() -> None:
    answers = Answers((Place("a", 0, 14), Place("a", 1, 14)))
    assert waits(answers, start="earliest") == 20
    assert waits(answers, start="earliest", restored=True) == 0
    assert waits(answers, {metric("a", 1): 13.0}, start="earliest") == 10


def test_already_read_records_are_no_backlog_after_an_offset_reset() -> None:
    """Until the source reports that it reads them again."""
    admin: Any = Answers((Place("a", 0, 4), Place("a", 1, 13)))
    config, text = TopicSource(KafkaCluster("h:1"), topics=("a",), group="g"), dict[str, float]()
    before = (Place("a", 0, 14), Place("a", 1, 12))
    probe = LagProbe(config, lambda: text, restored=True, before=before)
    assert (probe.count(admin), probe.read) == (1, 0)
    text[metric("a", 0)] = 4.0
    assert (probe.count(admin), probe.read) == (10, 0)
    text[metric("a", 0)] = 6.0
    assert (probe.count(admin), probe.read) == (8, 2)


def test_later_partition_is_backlog_from_its_first_record() -> None:
    answers, text = Answers(), {metric("a", 0): 13.0, metric("a", 1): 13.0}
    config = TopicSource(KafkaCluster("h:1"), topics=("a",), group="g", start="latest")
    probe = LagProbe(config, lambda: text, restored=False)
    admin: Any = answers
    assert probe.count(admin) == 0
    more = answers.ends
    answers.ends = lambda topics: (*more(topics), Place("a", 2, 3))  # type: ignore[method-assign]
    assert probe.count(admin) == 3


def test_records_read_add_up_and_count_again_after_a_restart() -> None:
    answers, text = Answers((Place("a", 0, 6),)), dict[str, float]()
    config = TopicSource(KafkaCluster("h:1"), topics=("a",), group="g")
    probe = LagProbe(config, lambda: text, restored=True)
    admin: Any = answers

    def read(**partitions: int) -> int:
        text.clear()
        text.update({metric("a", int(name[1:])): float(last) for name, last in partitions.items()})
        probe.count(admin)
        return probe.read

    # Nothing was read yet: one continues at 6, the other begins at 4.
    assert read() == 0
    assert read(p0=7) == 2
    assert read(p0=9, p1=5) == 6
    # No report for a while; then a restart set both back, and one has continued.
    assert read() == 6
    assert read(p0=6, p1=8) == 9
    assert read(p0=9, p1=8) == 12
    # Of one that came later it is not known where it began.
    more = answers.ends
    answers.ends = lambda topics: (*more(topics), Place("a", 7, 200))  # type: ignore[method-assign]
    assert read(p0=9, p1=8, p7=100) == 12
    assert read(p0=9, p1=8, p7=103) == 15


def test_pattern_matches_whole_names() -> None:
    answers = Answers()
    assert waits(answers, topics=(), pattern="a.?") == 40
    assert answers.asked[0] == ("a", "ab")
