"""The stream's clock: what wrong times do to it, separate clocks of partitions, and equal
verdicts after a restore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ForebayError
from forebay.stateful.stream_time import HELD_EVENTS, Judged, StreamTime, Tolerance

TOLERANCE = Tolerance(late_ms=5_000, ahead_ms=60_000, idle_ms=30_000)
YEARS_MS = 10**12
HOUR_MS = 3_600_000
Seen = tuple[int, str, int]
"""An event: time, partition, and delay after the previous one."""

moments = st.lists(
    st.one_of(st.integers(0, 200_000), st.sampled_from([-YEARS_MS, YEARS_MS, 10**14])), max_size=120
)
streams = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 200_000), st.sampled_from([-YEARS_MS, YEARS_MS, YEARS_MS + 1, 10**14])),
        st.sampled_from(["t/0", "t/1", "t/2"]),
        st.sampled_from([0, 10, 900, 90_000]),
    ),
    max_size=150,
)


class Kept:
    """A clock whose state goes through a checkpoint."""

    def __init__(self) -> None:
        self.time = StreamTime(TOLERANCE)
        self.states: dict[str, bytes] = {}

    def see(self, seen: Seen, number: int) -> list[Judged]:
        time_ms, partition, passed_ms = seen
        judged = list(self.time.see(time_ms, str(number).encode(), partition, passed_ms=passed_ms))
        for name, data in self.time.changes():
            self.states.pop(name, None)
            if data is not None:
                self.states[name] = data
        return judged

    def restore(self) -> None:
        self.time = StreamTime(TOLERANCE)
        self.time.restore(self.states)


def judge(stream: Sequence[Seen], *, restore_at: Iterable[int] = ()) -> dict[int, Judged]:
    """The verdict on each event by its place, in the order of verdicts."""
    kept, found = Kept(), []
    for number, seen in enumerate(stream):
        if number in restore_at:
            kept.restore()
        found += kept.see(seen, number)
    found += kept.time.end()
    judged = {int(each.data): each for each in found}
    assert len(judged) == len(found)
    return judged


def one(times: Iterable[int]) -> list[Seen]:
    return [(time_ms, "", 0) for time_ms in times]


def verdicts(judged: dict[int, Judged]) -> list[str]:
    """By the events' places."""
    return [judged[number].verdict for number in sorted(judged)]


@given(st.one_of(moments.map(one), streams), st.sets(st.integers(0, 150)))
def test_events_are_judged_once_and_equally_after_restores(stream: list[Seen], at: set[int]) -> None:
    found = judge(stream)
    assert sorted(found) == list(range(len(stream)))
    assert judge(stream, restore_at=at) == found


@given(st.one_of(moments.map(one), streams))
def test_clock_never_goes_back_and_punctual_events_are_not_late(stream: list[Seen]) -> None:
    clock = None
    for number, each in judge(stream).items():
        if clock is not None:
            assert each.clock_ms is not None
            assert each.clock_ms >= clock
        clock = each.clock_ms
        if clock is not None and each.verdict == "in time":
            assert stream[number][0] >= clock - TOLERANCE.late_ms
            assert each.time_ms == max(stream[number][0], clock)


@pytest.mark.parametrize("wrong_ms", [-YEARS_MS, YEARS_MS])
@pytest.mark.parametrize("place", [0, 1, HELD_EVENTS - 1, HELD_EVENTS, 50, 99])
def test_event_years_ahead_makes_no_other_late(wrong_ms: int, place: int) -> None:
    times = [1000 * second for second in range(100)]
    times.insert(place, wrong_ms)
    text = verdicts(judge(one(times)))
    assert text.pop(place) == ("late" if wrong_ms < 0 else "ahead")
    assert set(text) == {"in time"}


@given(st.integers(0, 60), st.integers(1, 29), st.integers(0, 60), st.booleans())
def test_few_events_from_the_future_do_not_move_the_clock(
    before: int, wrong: int, after: int, alike: bool
) -> None:
    """Like a batch from a machine with a wrong clock: most of the last 33 may be wrong."""
    begin = before + HELD_EVENTS
    times = [1000 * second for second in range(begin + after)]
    times[begin:begin] = [YEARS_MS + (0 if alike else number * YEARS_MS) for number in range(wrong)]
    text = verdicts(judge(one(times)))
    assert text[begin : begin + wrong] == ["ahead"] * wrong
    assert set(text[:begin] + text[begin + wrong :]) == {"in time"}


def test_stream_that_resumes_after_a_day_loses_nothing() -> None:
    times = [1000 * second for second in range(50)] + [86_400_000 + 1000 * second for second in range(50)]
    judged = judge(one(times))
    assert set(verdicts(judged)) == {"in time"}
    assert judged[99].clock_ms >= 86_400_000
    assert list(judged) == list(range(100))


def test_late_event_within_the_tolerance_counts() -> None:
    times = [1000 * second for second in range(50)] + [47_000, 20_000]
    assert verdicts(judge(one(times)))[-2:] == ["in time", "late"]


def read(*partitions: Iterable[int], passed_ms: int = 100) -> list[Seen]:
    """Partitions read in turn, one event each, in order."""
    rows: list[Seen] = []
    rest = {f"t/{number}": iter(times) for number, times in enumerate(partitions)}
    while rest:
        for name in list(rest):
            time_ms = next(rest[name], None)
            if time_ms is None:
                del rest[name]
            else:
                rows.append((time_ms, name, passed_ms))
    return rows


@pytest.mark.parametrize("behind_ms", [10_000, HOUR_MS, 5 * HOUR_MS])
def test_events_of_a_lagging_partition_are_not_late(behind_ms: int) -> None:
    now = [10 * HOUR_MS + 1000 * second for second in range(900)]
    stream = read(now, [time_ms - behind_ms for time_ms in now])
    assert set(verdicts(judge(stream))) == {"in time"}


def test_clock_follows_the_slowest_partition() -> None:
    fast, slow = [1000 * second for second in range(600)], [100 * tenth for tenth in range(600)]
    judged = judge(read(fast, slow))
    clocks = [each.clock_ms for each in judged.values() if each.clock_ms is not None]
    assert 40_000 < clocks[-1] <= 60_000


@pytest.mark.heavy
def test_sparse_partition_holds_the_clock_until_its_next_event() -> None:
    """Its clock is its newest event's, not the median of the last 33, which are half an hour old."""
    many = [(100 * tenth, "t/0", 100) for tenth in range(36_000)]
    few = [(20_000 * number, "t/1", 0) for number in range(180)]
    judged = judge(sorted(many + few))
    assert set(verdicts(judged)) == {"in time"}
    assert judged[len(judged) - 1].clock_ms >= HOUR_MS - 21_000


def test_silent_partition_holds_the_clock_until_it_is_idle() -> None:
    stream = read([1000 * second for second in range(100)], [1000 * second for second in range(100)])
    stream += [(1000 * second, "t/0", 100) for second in range(100, 1000)]
    judged = judge(stream)
    assert judged[200 + 290].clock_ms < 100_000
    assert judged[len(stream) - 1].clock_ms > 900_000
    assert set(verdicts(judged)) == {"in time"}


def test_backpressure_makes_no_partition_idle() -> None:
    """Afterwards the partitions are read as before, one slightly later than the other."""
    times = [1000 * second for second in range(400)]
    stream = read(times[:200], times[:200])
    stream += [(time_ms, "t/0", 0 if number else HOUR_MS) for number, time_ms in enumerate(times[200:])]
    stream += [(time_ms, "t/1", 100) for time_ms in times[200:]]
    assert set(verdicts(judge(stream))) == {"in time"}


def test_batch_from_the_future_moves_its_partitions_clock_only() -> None:
    """However many there are: the other partitions determine the time."""
    right = read(*[[1000 * second for second in range(900)]] * 2)
    stream = [*right[:600], *((YEARS_MS + number, "t/1", 0) for number in range(200)), *right[600:]]
    for number, each in judge(stream).items():
        assert each.verdict == "in time"
        assert each.clock_ms is None or each.clock_ms < HOUR_MS
        assert number in range(600, 800) or stream[number][0] < HOUR_MS


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x94\x63\x00\x00\x00", b"junk", msgpack.packb((2, 1, 1))])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(ForebayError, match="the checkpoint's clock"):
        StreamTime(TOLERANCE).restore({"": data})
