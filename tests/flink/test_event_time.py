"""Event time: a stream's own clock, what an operator still holds, and which records advance a clock."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.harness.metric_group import Group

from forebay.apps.trends.graph import Post
from forebay.apps.trends.stages import CountStage, counts_of
from forebay.apps.trends.values import TrendSettings
from forebay.clock import Clock
from forebay.codec import decode, encode
from forebay.errors import MalformedRecord
from forebay.flink import event_time, metrics
from forebay.flink.event_time import (
    AHEAD_MS,
    BEFORE_START_MS,
    EARLIEST_MS,
    LATEST_MS,
    NO_TIME_MS,
    REFUSED,
    SPARE,
    UNKNOWN_MS,
    LowWatermark,
    MinTracker,
    RecordTime,
    StreamClock,
    clamp_ms,
    partition_of,
)
from forebay.flink.keying import TextField
from forebay.flink.shards import flink_keys
from forebay.flink.stages import message_key, payload
from forebay.flink.types import END_OF_INPUT_MS
from forebay.records import DeadLetter, Event
from forebay.stateful.stream_time import HELD_EVENTS, StreamTime, Tolerance


class Context:
    def __init__(self) -> None:
        self.clocks: dict[str, bytes] = {}
        self.timers: set[int] = set()
        self.metrics = Group("clock")

    def get_metrics_group(self) -> Group:
        return self.metrics

    def get_map_state(self, _descriptor: Any) -> Any:
        return SimpleNamespace(
            put=self.clocks.__setitem__, remove=self.clocks.__delitem__, items=self.clocks.items
        )

    def timer_service(self) -> Any:
        return SimpleNamespace(register_event_time_timer=self.timers.add)


def text(event: Event) -> bytes:
    if event.fields.get("text") is None:
        raise MalformedRecord("the field 'text' is missing")
    return str(event.fields["text"]).encode()


def opened(context: Context, clock: Clock | None = None) -> StreamClock:
    clock = StreamClock(text, tolerance=Tolerance(5_000, 60_000), shards=4, clock=clock)
    clock.open(context)
    return clock


def event(number: int, time_ms: int | None, of: str = "in", **fields: Any) -> bytes:
    return encode(Event(b"{}", {"text": f"t{number}", **fields}, time_ms, f"{of}@{number}"))


def run(
    records: list[bytes], *, restored: bool = False, every_s: float = 0.1
) -> tuple[list[tuple[bytes, int]], list[DeadLetter]]:
    """Results of records that arrive `every_s`."""
    context, now = Context(), ManualClock()
    clock = opened(context, now)
    outputs = []
    for record in records:
        if restored:
            clock = opened(context, now)
        outputs += clock.process_element(record, context)
        now.advance(every_s)
    outputs += clock.on_timer(END_OF_INPUT_MS, context)
    assert context.timers == {END_OF_INPUT_MS}
    letters = [decode(data) for tag, data in outputs if tag is REFUSED]
    return [output for output in outputs if output[0] is not REFUSED], letters


RECORDS = [
    *(event(number, 1_000 * number) for number in range(40)),
    event(40, 10**14),
    event(41, -(10**14)),
    event(42, None),
    event(43, 40_000, text=None),
    encode(DeadLetter(b"?", "malformed_record", "not JSON")),
    event(44, 41_000),
]


def test_late_posts_are_dead_letters_with_the_reason() -> None:
    messages, letters = run(RECORDS)
    assert [payload(data) for data, _ in messages] == [f"t{n}".encode() for n in (*range(40), 44)]
    causes = [letter.cause for letter in letters]
    # Whether a time far ahead is wrong is not known before the end.
    assert causes == ["late", "no_time", "malformed_record", "malformed_record", "ahead"]
    assert re.fullmatch(r"\d+ s ahead of the stream; ahead_s allows \d+", letters[-1].detail)
    assert re.fullmatch(r"\d+ s behind the stream; late_s allows \d+", letters[0].detail)
    assert letters[-1].raw == b"{}"
    assert letters[-1].position == "in@40"


def test_each_message_carries_a_monotonic_clock() -> None:
    messages, _ = run(RECORDS)
    clocks = [clock for _, clock in messages]
    assert clocks == sorted(clocks)
    assert clocks[-1] > 20_000


def test_messages_are_sharded_by_position() -> None:
    messages, _ = run(RECORDS)
    assert {message_key(data) for data, _ in messages} == set(flink_keys(4))
    assert run(RECORDS)[0] == messages


def test_restore_before_every_record_changes_nothing() -> None:
    assert run(RECORDS, restored=True) == run(RECORDS)


@pytest.mark.parametrize("count", [1, HELD_EVENTS - 1])
def test_stream_that_ends_immediately_loses_nothing(count: int) -> None:
    assert len(run(RECORDS[:count])[0]) == count


@example([0, 5_000, 3_000, 1_500] * 30, 2_000)
@example([0, 8_500, 7_000, 4_500] * 30, 8_000)
@given(st.lists(st.integers(0, 9_000), max_size=150), st.sampled_from([2_000, 8_000]))
def test_each_post_within_late_s_counts_once_and_none_older(behind_ms: list[int], late_ms: int) -> None:
    """Each tick is counted as early as the watermark allows."""
    tolerance, find, context = Tolerance(late_ms=late_ms), TrendSettings(tick_s=1.0), Context()
    function = StreamClock(Post(TextField()), tolerance=tolerance, shards=1, clock=ManualClock())
    function.open(context)  # type: ignore[arg-type]
    posts = [(n, 60_000 + 100 * n - behind) for n, behind in enumerate(behind_ms)]
    stage, time = CountStage(find, 0, 1), StreamTime(tolerance)
    counted, expected = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    refused, older = list[int](), list[int]()

    def count(outputs: Any) -> None:
        for _, data in outputs:
            counts = counts_of(data)
            counted.update({(term, counts.tick): entry[0] for term, entry in counts.terms.items()})

    def run(outputs: Any) -> None:
        for data, clock_ms in outputs:
            if data is REFUSED:
                refused.append(int(decode(clock_ms).position.partition("@")[2]))
            else:
                count(stage.take(payload(data)))
                count(stage.close(clock_ms - tolerance.wait_ms))

    for n, time_ms in posts:
        run(function.process_element(event(n, time_ms), context))  # type: ignore[arg-type]
    run(function.on_timer(END_OF_INPUT_MS, context))  # type: ignore[arg-type]
    count(stage.finish())
    judged = [each for n, time_ms in posts for each in time.see(time_ms, b"%d" % n)]
    for each in [*judged, *time.end()]:
        n, time_ms = posts[int(each.data)]
        assert each.clock_ms is not None
        if time_ms < each.clock_ms - tolerance.late_ms:
            older.append(n)
        else:
            expected[f"t{n}", max(time_ms, each.clock_ms - max(0, late_ms - 5_000)) // 1000] += 1
    assert (counted, refused) == (expected, older)


@pytest.mark.parametrize(("late_ms", "waits_ms"), [(2_000, 0), (5_000, 0), (3_600_000, 3_595_000)])
def test_watermark_waits_for_very_late_posts_alone(
    late_ms: int, waits_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of posts that counted in one tick would look like a burst."""
    behind_ms: list[int] = []
    monkeypatch.setattr(event_time, "_with_times", lambda _, behind, *__: behind_ms.append(behind))
    monkeypatch.setattr(event_time, "side_output", lambda *_: None)
    monkeypatch.setattr(event_time, "BYTES", Mock())
    event_time.clocked(Mock(), text, tolerance=Tolerance(late_ms=late_ms), shards=1, name="clock")
    assert behind_ms == [waits_ms]


HOUR_MS = 3_600_000
BEHIND = [
    event(number, (number // 2) * 1_000 + (HOUR_MS if number % 2 else 0), of=f"posts/{number % 2}")
    for number in range(1_000)
]


def test_posts_of_a_lagging_partition_pass() -> None:
    messages, letters = run(BEHIND)
    assert letters == []
    clocks = [clock for _, clock in messages]
    assert clocks == sorted(clocks)
    # The clock begins once all partitions have sent a record; then it is that of the lagging one.
    assert 0 < clocks.count(BEFORE_START_MS) < 400
    assert 400_000 < clocks[-1] < HOUR_MS


def test_downtime_makes_no_partition_idle() -> None:
    context = Context()
    run_on = opened(context, ManualClock(monotonic_s=0.0))
    outputs = [each for record in BEHIND[:900] for each in run_on.process_element(record, context)]
    later = opened(context, ManualClock(monotonic_s=10**6))
    # All of the one that is ahead comes first.
    for record in BEHIND[901::2] + BEHIND[900::2]:
        outputs += later.process_element(record, context)
    assert REFUSED not in [tag for tag, _ in outputs]


@pytest.mark.parametrize(
    ("position", "partition"),
    [
        ("posts/12@345", "posts/12"),
        ("a/b/0@1", "a/b/0"),
        ("in@3", ""),
        ("a/b@3", ""),
        ("x/1@y", ""),
        (None, ""),
    ],
)
def test_partition_is_parsed_from_the_position(position: str | None, partition: str) -> None:
    assert partition_of(position) == partition


def test_each_rejected_record_is_marked_for_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would commit it before the next result."""
    marks: list[int] = []
    monkeypatch.setattr(metrics, "ActivityMarks", lambda _: SimpleNamespace(answered=lambda: marks.append(1)))
    letter = encode(DeadLetter(b"x", "bad_record", "no JSON", 1, 0, "in@0"))
    records = [letter, event(1, None), event(2, 1_000, text=None), event(3, 2_000)]
    assert len(run(records)[1]) == len(marks) == 3


def test_records_and_refusals_are_counted() -> None:
    context = Context()
    clock = opened(context)
    letter = encode(DeadLetter(b"x", "bad_record", "no JSON", 1, 0, "in@0"))
    for record in (letter, event(1, None), event(2, 1_000)):
        list(clock.process_element(record, context))  # type: ignore[arg-type]
    clock.close()
    assert context.metrics.values() == {
        "records": 3,
        "dead_letters": 2,
        "failures_bad_record": 1,
        "failures_no_time": 1,
    }


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_minimum_of_times_not_removed(script: list[tuple[bool, int]]) -> None:
    held, model = MinTracker(), list[int]()
    for add, number in script:
        if add:
            held.add(number)
            model.append(number)
        elif model:
            held.remove(model.pop(number % len(model)))
        assert held.lowest == (min(model) if model else None)


def test_memory_is_proportional_to_held_times() -> None:
    held = MinTracker()
    for time_ms in range(1000):
        held.add(time_ms)
        if time_ms >= 10:
            held.remove(time_ms - 10)
    assert len(held._heap) <= 11


def test_long_held_time_does_not_retain_removed_ones() -> None:
    held = MinTracker()
    held.add(0)
    for time_ms in range(1, 100_000):
        held.add(time_ms)
        held.remove(time_ms)
        assert len(held._heap) <= SPARE + 3
    assert held.lowest == 0


held_times = st.one_of(st.none(), st.integers(-5, 20))
held_steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), held_times),
        st.tuples(st.just("release"), st.integers(0, 1000)),
        st.tuples(st.just("now"), st.integers(-10, 30)),
    ),
    max_size=60,
)


@given(held_steps)
def test_low_watermark_follows_held_and_input_and_never_regresses(
    script: list[tuple[str, int | None]],
) -> None:
    low = LowWatermark()
    held: list[int | None] = []
    highest = UNKNOWN_MS
    for what, number in script:
        if what == "hold":
            held.append(number)
            low.hold(number)
        elif what == "release" and held:
            assert number is not None
            low.release(held.pop(number % len(held)))
        elif what == "now":
            assert number is not None
            highest = max(highest, min([t - 1 for t in held if t is not None] + [number]))
            assert low.now_ms(number) == highest


def test_times_stay_within_the_table_layers_limits() -> None:
    assert [clamp_ms(t) for t in (UNKNOWN_MS, 5, 2**63 - 1)] == [EARLIEST_MS, 5, LATEST_MS]


@pytest.mark.parametrize(
    ("time_ms", "moves"),
    [(1_000, True), (10_000 + AHEAD_MS, True), (10_001 + AHEAD_MS, False), (None, False), (-5, True)],
)
def test_time_far_ahead_does_not_move_the_clock(time_ms: int | None, moves: bool) -> None:
    record = encode(Event(b"", {}, time_ms))
    ((data, time),) = RecordTime(ManualClock(wall_ms=10_000)).process_element(record, None)
    assert data == record
    assert time == (time_ms if moves else NO_TIME_MS)
