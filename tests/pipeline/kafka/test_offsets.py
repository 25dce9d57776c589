"""A pipeline's progress in its topics, with a scripted Kafka."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.pipeline.kafka.fake_kafka import FakeKafka, spec, use

from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused, Place
from forebay.flink.job import Checkpoints
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.pipeline.kafka.offsets import GroupOffsets, OffsetObservation, OffsetSettlement
from forebay.pipeline.kafka.start import KafkaStart, begin, read_before
from forebay.pipeline.load import parse_spec
from forebay.pipeline.messages import JobLost
from forebay.pipeline.snapshot import Snapshot

NOTHING = 10**15


class Looks:
    """Consecutive looks at a job; each changes values of the previous one."""

    def __init__(self, settling: OffsetSettlement[int]) -> None:
        self._settling = settling
        self._sight = OffsetObservation(
            0.0, 1000, 0, newest=5, newest_done=5, newest_clear=5, oldest_read_ms=NOTHING
        )
        self.read = 0

    def __call__(self, seconds: float = 1.0, **changes: int) -> int | None:
        old = self._sight
        values = {
            "restarts": old.restarts,
            "newest": old.newest,
            "newest_done": old.newest_done,
            "newest_clear": old.newest_clear,
            "oldest_read_ms": old.oldest_read_ms,
            **changes,
        }
        time_s = old.monotonic_s + seconds
        self._sight = OffsetObservation(time_s, 1000 + round(time_s * 1000), **values)
        return self._settling.look(self._sight, self.read)


def test_offsets_settle_step_by_step() -> None:
    look = Looks(OffsetSettlement(metrics_s=3.0))
    look.read = 100
    assert look() is None  # 100 is found, at 2000 ms.
    look.read = 200
    assert look(newest=6, newest_done=6) is None, "checkpoint counts may be as old as the offsets"
    assert look(2.0, newest=7) is None  # From here on, 8 is a later one.
    assert look(newest_done=7) is None
    assert look(newest=8, newest_done=8, oldest_read_ms=1900) is None
    assert look(oldest_read_ms=NOTHING) is None, "metrics may be as old as the offsets"
    assert look(2.0, oldest_read_ms=2000) is None, "an event is awaited that was read before"
    assert look(oldest_read_ms=2001) is None
    assert look(newest=9, newest_done=9) is None, "9 may have been triggered before that was known"
    assert look(2.0) is None
    assert look(newest=10, newest_done=10) is None, "the sinks commit what is in 10 after it completes"
    assert look(newest=11) is None
    assert look(newest_done=11) == 100
    assert look() is None  # 200 is found.


def test_settled_offsets_do_not_settle_again() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0))
    found = [look(newest=n, newest_done=n) for n in range(6, 40)]
    assert [offsets for offsets in found if offsets is not None] == [0]


def test_restart_takes_answers_back() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0))
    look.read = 1
    for n in range(6, 10):
        assert look(newest=n, newest_done=n) is None
    look.read = 2
    assert look(restarts=1) is None
    found = [look(newest=n, newest_done=n) for n in range(10, 20)]
    assert [offsets for offsets in found if offsets is not None] == [2]


def test_unknown_values_are_awaited() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0, skew_ms=500))
    assert not any(look(newest=n, newest_done=n, oldest_read_ms=0) for n in range(6, 50))
    look.read = 3
    assert not any(look(newest=n, newest_done=n, oldest_read_ms=2400) for n in range(50, 99))
    assert 0 in [look(newest=n, newest_done=n, oldest_read_ms=2600) for n in range(100, 120)]


@given(st.lists(st.sampled_from(["read", "answer", "checkpoint", "metrics", "look", "look"]), max_size=200))
def test_offset_settles_only_after_earlier_answers_commit(steps: list[str]) -> None:
    """A job with one operator, answered in order: `read` and `answer` advance it; a checkpoint takes the
    current state and commits the previous one's.
    """
    settling: OffsetSettlement[int] = OffsetSettlement(metrics_s=0.0)
    read_ms: deque[int] = deque()
    now_ms = done = read = checkpoint = 0
    answered = held = committed = offsets = 0
    oldest = NOTHING
    for step in steps:
        now_ms += 10
        if step == "read":
            read += 1
            read_ms.append(now_ms)
            # An idle subtask reports at once that it is busy.
            oldest = min(oldest, read_ms[0])
        elif step == "answer" and read_ms:
            read_ms.popleft()
            answered += 1
        elif step == "checkpoint":
            checkpoint += 1
            # The sinks commit what the one before held before this one begins.
            committed, held, done = held, answered, checkpoint
            offsets = read
        elif step == "metrics":
            oldest = read_ms[0] if read_ms else NOTHING
        elif step == "look":
            sight = OffsetObservation(now_ms / 1000, now_ms, 0, checkpoint, done, done, oldest)
            settled = settling.look(sight, offsets)
            assert settled is None or settled <= committed


def test_many_readers_need_a_checkpoint_without_records_in_flight() -> None:
    look = Looks(OffsetSettlement(metrics_s=0.0, many_readers=True))
    assert not any(look(newest=n, newest_done=n) for n in range(6, 30))
    look.read = 4
    found = [look(newest=n, newest_done=n, newest_clear=n if n == 35 else 5) for n in range(30, 60)]
    assert [offsets for offsets in found if offsets is not None] == [0]


@given(
    st.lists(
        st.sampled_from(["read 0", "read 1", "take 0", "take 1", "answer", "checkpoint", "metrics", "look"]),
        max_size=200,
    )
)
@example(
    # A record of the first reader stays on its way while those of the second are taken and answered.
    ["read 0", "read 1", "checkpoint", "look", "metrics", "look"] + ["checkpoint", "metrics", "look"] * 8
)
def test_offset_does_not_settle_with_an_earlier_record_in_flight(steps: list[str]) -> None:
    """Two readers in front of one operator, which takes from either in any order."""
    settling: OffsetSettlement[tuple[int, ...]] = OffsetSettlement(metrics_s=0.0, many_readers=True)
    ways: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
    read = [0, 0]
    held: list[tuple[int, int, int]] = []
    answered: set[tuple[int, int]] = set()
    in_checkpoint = committed = frozenset[tuple[int, int]]()
    offsets = (0, 0)
    now_ms = checkpoint = clear = 0
    oldest = NOTHING
    for step in steps:
        now_ms += 10
        word, _, reader = step.partition(" ")
        if word == "read":
            way = int(reader)
            ways[way].append((now_ms, read[way]))
            read[way] += 1
        elif word == "take" and ways[int(reader)]:
            read_ms, number = ways[int(reader)].popleft()
            held.append((read_ms, int(reader), number))
            oldest = min(oldest, read_ms)
        elif word == "answer" and held:
            _, way, number = held.pop(0)
            answered.add((way, number))
        elif word == "checkpoint":
            checkpoint += 1
            committed, in_checkpoint = in_checkpoint, frozenset(answered)
            offsets = (read[0], read[1])
            clear = clear if any(ways) else checkpoint
        elif word == "metrics":
            oldest = min(held)[0] if held else NOTHING
        elif word == "look":
            sight = OffsetObservation(now_ms / 1000, now_ms, 0, checkpoint, checkpoint, clear, oldest)
            settled = settling.look(sight, offsets) or (0, 0)
            assert all((way, n) in committed for way in (0, 1) for n in range(settled[way]))


IDLE = Snapshot(1.0, "RUNNING")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()
    use(fake, monkeypatch)
    return fake


class Run:
    """Looks at a run once a second; checkpoints complete in between."""

    def __init__(self, **source: Any) -> None:
        self.clock = ManualClock()
        self.spec = spec(**source)
        self.ends = begin(self.spec, {}, first=True).ends
        self._checkpoints = 0
        self.seen: dict[str, str] = {}
        self._offsets = GroupOffsets(
            self.spec,
            self.ends,
            self._look,
            OffsetSettlement(0.0),
            ids={"a": "id-a"},
            seen=self.seen.update,
            clock=self.clock,
        )

    def __call__(self, **now: Any) -> bool:
        if not now:
            now = {"oldest_read_ms": NOTHING_READ_MS}
        self.clock.advance(1.0)
        assert not self._offsets(Snapshot(1.0, "RUNNING", **now)), (
            "the snapshot may be older than Kafka's answer"
        )
        return self._offsets(Snapshot(1.0, "RUNNING", **now))

    def finished(self) -> None:
        self._offsets.finished()

    def _look(self) -> Checkpoints:
        self._checkpoints += 1
        return Checkpoints(0, 0, (), newest=self._checkpoints, newest_done=self._checkpoints)


def test_other_sources_have_no_offsets(kafka: FakeKafka) -> None:
    document = {"name": "p", "source": {"type": "jsonl", "path": "in"}, "prompt": "{{ text }}"}
    other = parse_spec({**document, "sink": {"type": "jsonl", "path": "out"}})
    assert begin(other, {}, first=True) == KafkaStart()
    clock = ManualClock()
    offsets = GroupOffsets(other, (), lambda: pytest.fail("asked"), OffsetSettlement(0.0), clock=clock)
    clock.advance(10.0)
    assert not offsets(IDLE)
    offsets.finished()
    assert kafka.groups == {}


def test_end_is_reached_once_all_is_read_and_answered(kafka: FakeKafka) -> None:
    run = Run(until_latest=True)
    assert not run()
    kafka.groups["forebay-p-read"] = run.ends
    assert not run(in_flight=1), "the offsets have just moved"
    assert not run(in_flight=1)
    assert not run(pending=1)
    assert not run(in_flight=1, oldest_read_ms=run.clock.wall_ms() - 2000)
    assert run(in_flight=1, oldest_read_ms=run.clock.wall_ms() + 1000)
    assert run()
    run.finished()
    assert kafka.groups["forebay-p"] == run.ends


@pytest.mark.parametrize("step_s", [-3600.0, 86_400.0])
def test_clock_that_is_set_neither_ends_nor_prolongs_a_run(kafka: FakeKafka, step_s: float) -> None:
    run = Run(until_latest=True)
    assert not run()
    kafka.groups["forebay-p-read"] = run.ends
    assert not run(oldest_read_ms=0)
    assert not run(oldest_read_ms=0)
    run.clock.step_wall(step_s)
    assert not run(oldest_read_ms=0)
    assert [run(oldest_read_ms=0) for _ in range(12)][-1]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_set_clock_does_not_hide_that_only_newer_events_are_awaited(kafka: FakeKafka, step_s: float) -> None:
    run = Run(until_latest=True)
    kafka.groups["forebay-p-read"] = run.ends
    before_ms = run.clock.wall_ms()
    assert not run(in_flight=1, oldest_read_ms=before_ms)
    assert not run(in_flight=1, oldest_read_ms=before_ms)
    run.clock.step_wall(step_s)
    assert not run(in_flight=1, oldest_read_ms=before_ms + min(0, round(step_s * 1000)))
    assert run(in_flight=1, oldest_read_ms=run.clock.wall_ms() + 1000)


def test_run_does_not_end_before_its_counts_arrive(kafka: FakeKafka) -> None:
    """Otherwise a run that only wrote to topics would report no input."""
    run = Run(until_latest=True)
    assert not run()
    kafka.groups["forebay-p-read"] = run.ends
    assert not run(oldest_read_ms=0)
    assert not run(oldest_read_ms=0)
    # Not every application has them.
    assert [run(oldest_read_ms=0) for _ in range(4)][-1]


@pytest.mark.parametrize("failure", [KafkaAway("away"), KafkaRefused("no longer")])
def test_end_is_not_reached_while_kafka_is_away(kafka: FakeKafka, failure: Exception) -> None:
    run = Run(until_latest=True)
    kafka.groups["forebay-p-read"] = run.ends
    kafka.failure = failure
    assert not run()
    assert not run()
    kafka.failure = None
    assert not run()
    assert run()


def test_flink_is_polled_about_once_a_second(kafka: FakeKafka) -> None:
    clock = ManualClock()
    asked = []

    def checkpoints() -> Checkpoints:
        asked.append(clock.monotonic_s())
        return Checkpoints(0, 0, ())

    offsets = GroupOffsets(spec(), (), checkpoints, OffsetSettlement(0.0), clock=clock)
    for _ in range(40):
        clock.advance(0.25)
        offsets(IDLE)
    assert len(asked) == 10


def test_unbounded_source_has_no_end(kafka: FakeKafka) -> None:
    run = Run()
    kafka.groups["forebay-p-read"] = run.ends
    assert not any(run(oldest_read_ms=NOTHING_READ_MS) for _ in range(5))


def test_failed_commit_is_repeated_later(kafka: FakeKafka) -> None:
    run = Run()
    kafka.groups["forebay-p-read"] = read = (Place("a", 0, 20), Place("a", 1, 21))
    kafka.refuses = True
    for _ in range(30):
        run(oldest_read_ms=NOTHING_READ_MS)
    assert kafka.groups["forebay-p"] != read
    kafka.refuses = False
    run()
    assert kafka.groups["forebay-p"] == read


def test_group_offsets_follow_committed_answers(kafka: FakeKafka) -> None:
    run = Run()
    begun = kafka.groups["forebay-p"]
    read = (Place("a", 0, 20), Place("a", 1, 21))
    kafka.groups["forebay-p-read"] = read
    for _ in range(20):
        assert not run(oldest_read_ms=0)
    assert kafka.groups["forebay-p"] == begun
    for _ in range(20):
        assert not run(oldest_read_ms=NOTHING_READ_MS)
    assert kafka.groups["forebay-p"] == read


def test_topic_recreated_during_a_run_ends_the_attempt(kafka: FakeKafka) -> None:
    run = Run()
    assert not run()
    kafka.ids["a"] = "another"
    with pytest.raises(JobLost, match="'a' was deleted and created again"):
        run()


def test_new_topics_of_a_pattern_are_reported_once(kafka: FakeKafka) -> None:
    run = Run(topics=[], pattern="a.?")
    assert not run()
    assert run.seen == {"ab": "id-ab"}
    run.seen.clear()
    assert not run()
    assert run.seen == {}


def test_offsets_in_unread_topics_do_not_matter(kafka: FakeKafka) -> None:
    """An earlier pipeline of the name read part of topic `b`."""
    left = Place("b", 0, 5)
    run = Run()
    read = (Place("a", 0, 20), Place("a", 1, 21))
    kafka.groups["forebay-p-read"] = (*read, left)
    kafka.only_markers = True
    for _ in range(10):
        assert not run()
        assert left not in kafka.groups["forebay-p"]
    assert kafka.groups["forebay-p"] == run.ends
    kafka.groups["forebay-p-read"] = (*run.ends, left)
    run.finished()
    assert kafka.groups["forebay-p"] == run.ends
    assert read_before(run.spec) == run.ends


@pytest.mark.parametrize("only_markers", [True, False])
def test_settled_group_passes_transaction_markers(kafka: FakeKafka, only_markers: bool) -> None:
    """Otherwise Kafka deletes the transaction marker, and it looks like an unread record."""
    run = Run()
    read = kafka.groups["forebay-p-read"] = (Place("a", 0, 20), Place("a", 1, 21))
    kafka.only_markers = only_markers
    while kafka.groups["forebay-p"] != read and not kafka.compared:
        assert not run(oldest_read_ms=NOTHING_READ_MS)
    for _ in range(5):
        assert not run(oldest_read_ms=NOTHING_READ_MS)
    assert kafka.groups["forebay-p"] == (run.ends if only_markers else read)
    assert kafka.compared == 1, "each comparison makes a client"
    run.finished()
    assert kafka.groups["forebay-p"] == (run.ends if only_markers else read)
