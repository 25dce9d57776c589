"""Start positions in topics, with a scripted Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.kafka.fake_kafka import FakeKafka, spec, use

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.gaps import SourceState
from forebay.errors import PipelineFailed
from forebay.pipeline.kafka import start as module
from forebay.pipeline.kafka.start import KafkaStart, begin, read_before, resumed
from forebay.pipeline.state_store import RunState


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()
    use(fake, monkeypatch)
    return fake


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("earliest", [10, 11]),
        ("latest", [90, 91]),
        ("2026-01-31T12:00:00Z", [50, 51]),
        ("committed", [10, 70]),
    ],
)
def test_first_start_commits_its_position(kafka: FakeKafka, start: str, offsets: list[int]) -> None:
    kafka.groups["forebay-p"] = (Place("a", 1, 70), Place("b", 0, 3))
    assert begin(spec(start=start), {}, first=True).ends == (Place("a", 0, 90), Place("a", 1, 91))
    for group in ("forebay-p", "forebay-p-read"):
        assert [place.offset for place in kafka.groups[group]] == offsets


@pytest.mark.parametrize("start", ["earliest", "latest", "committed"])
def test_later_start_begins_at_unanswered_records(kafka: FakeKafka, start: str) -> None:
    kafka.groups["forebay-p"] = (Place("a", 0, 30), Place("a", 1, 40))
    kafka.groups["forebay-p-read"] = (Place("a", 0, 60), Place("a", 1, 70))
    begin(spec(start=start), {}, first=False)
    assert [place.offset for place in kafka.groups["forebay-p-read"]] == [30, 40]


def test_until_latest_ends_where_topics_ended_at_its_first_start() -> None:
    topics = KafkaStart(ends=(Place("a", 0, 90), Place("a", 1, 5)))
    noted = (("a", 0, 30), ("a", 1, 9), ("b", 0, 2))
    ended = RunState(ends=noted, settings={"source": {"until_latest": True}})
    assert topics.ends_of(ended) == (Place("a", 0, 30), Place("a", 1, 5))
    # Otherwise records that arrived during an endless run would stay without answers.
    endless = RunState(ends=noted, settings={"source": {"until_latest": False}})
    for state in (endless, RunState(ends=noted), RunState()):
        assert topics.ends_of(state) == topics.ends


def test_read_offsets_are_known_until_the_next_start(kafka: FakeKafka) -> None:
    assert read_before(spec()) == ()
    begin(spec(), {}, first=True)
    kafka.groups["forebay-p-read"] = read = (Place("a", 0, 60), Place("a", 1, 70))
    assert read_before(spec()) == read
    begin(spec(), {}, first=False)
    assert [place.offset for place in read_before(spec())] == [10, 11]


def test_slow_kafka_does_not_end_the_start(kafka: FakeKafka) -> None:
    begin(spec(), {}, first=True)
    assert kafka.timeouts_s == [60.0]


def test_pattern_matches_whole_names(kafka: FakeKafka) -> None:
    begun = begin(spec(topics=[], pattern="a.?", group="g"), {}, first=True)
    assert [end.topic for end in begun.ends] == ["a", "a", "ab"]
    assert [place.offset for place in kafka.groups["g"]] == [10, 11, 10]


def test_later_start_skips_records_only_if_allowed(kafka: FakeKafka) -> None:
    kafka.groups["forebay-p"] = (Place("a", 0, 30), Place("a", 1, 40))
    kafka.begin = 35
    with pytest.raises(PipelineFailed, match="a/0: offsets 30 to 34 were deleted unread"):
        begin(spec(), {}, first=False)
    assert "forebay-p-read" not in kafka.groups
    begun = begin(spec(on_gap="continue"), {}, first=False)
    assert sum(gap.records for gap in begun.gaps) == 5
    assert [place.offset for place in kafka.groups["forebay-p-read"]] == [35, 40]


def test_unread_partition_may_have_a_gap(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint lacks its reader's start position: that is the committed offset."""
    monkeypatch.setattr(module, "metadata_of", lambda checkpoint: b"")

    def resume(state: SourceState | None) -> KafkaStart:
        monkeypatch.setattr(module, "source_state", lambda metadata, name: state)
        kafka.groups["forebay-p-read"] = (Place("a", 0, 10), Place("a", 1, 4), Place("b", 0, 1))
        given = spec(on_gap="continue")
        return resumed(given, Path("chk-7"), {"a": ("id-a",)}, "new" * 20, chosen=False)

    found = resume(SourceState("kafka", (Place("a", 0, 60),)))
    assert [str(gap) for gap in found.gaps] == [
        "a/1: offsets 4 to 10 were deleted unread (7 records at most)"
    ]
    assert kafka.groups["forebay-p-read"] == (Place("a", 0, 60), Place("a", 1, 11))
    # A job whose source has come to its end reads no more.
    assert resume(None).gaps == ()


def test_first_start_at_the_first_record_is_not_a_gap(kafka: FakeKafka) -> None:
    kafka.begin = 35
    assert begin(spec(start="earliest"), {}, first=True).gaps == ()


def test_recreated_topic_gets_a_generation(kafka: FakeKafka) -> None:
    kafka.groups["forebay-p"] = (Place("a", 0, 30), Place("a", 1, 40))
    before = {"a": ("id-before",)}
    with pytest.raises(PipelineFailed, match="created again"):
        begin(spec(), before, first=False)
    again = begin(spec(on_gap="continue"), before, first=False)
    assert again.start.generations == {"a": ("id-before", "id-a")}
    assert [place.offset for place in kafka.groups["forebay-p-read"]] == [10, 11]
    assert begin(spec(start="earliest"), before, first=True).start.generations["a"][-1] == "id-a"


def test_missing_topic_keeps_its_id(kafka: FakeKafka) -> None:
    """Otherwise a later topic of that name would give the same positions."""
    begun = begin(spec(topics=[], pattern="a"), {"away": ("id-1", "id-2")}, first=False)
    assert begun.ids == {"a": "id-a", "away": "id-2"}


def test_only_the_platform_can_see_a_checkpoint(kafka: FakeKafka) -> None:
    kafka.groups["forebay-p"] = (Place("a", 0, 30), Place("a", 1, 40))
    kafka.begin = 35
    begun = begin(spec(), {}, first=False, strict=False)
    assert len(begun.gaps) == 1
    assert not begun.start.watched
