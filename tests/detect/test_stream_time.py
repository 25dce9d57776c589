"""The stream's clock: what single wrong times do to it, and that it says the same after a restore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.detect.stream_time import HELD_EVENTS, Judged, StreamTime, Tolerance
from forebay.errors import MalformedRecord

TOLERANCE = Tolerance(late_ms=5_000, ahead_ms=60_000)
YEARS_MS = 10**12
times = st.lists(
    st.one_of(st.integers(0, 200_000), st.sampled_from([-YEARS_MS, YEARS_MS, 10**14])), max_size=80
)


def judge(moments: list[int], *, restore_at: int | None = None) -> list[Judged]:
    time = StreamTime(TOLERANCE)
    found: list[Judged] = []
    for index, moment in enumerate(moments):
        if index == restore_at:
            saved, time = time.to_bytes(), StreamTime(TOLERANCE)
            time.restore(saved)
        found += time.see(moment, str(index).encode())
    return found + list(time.end())


@given(times, st.integers(0, 80))
def test_every_event_is_judged_once_and_the_same_after_a_restore(moments: list[int], at: int) -> None:
    found = judge(moments)
    assert [int(each.data) for each in found] == list(range(len(moments)))
    assert judge(moments, restore_at=at) == found


@given(times)
def test_the_clock_never_goes_back_and_nothing_in_time_is_behind_the_watermark(moments: list[int]) -> None:
    clock = None
    for moment, each in zip(moments, judge(moments), strict=True):
        assert clock is None or each.clock_ms >= clock
        clock = each.clock_ms
        if each.verdict == "in time":
            assert each.clock_ms - TOLERANCE.late_ms <= moment <= each.clock_ms + TOLERANCE.ahead_ms


@pytest.mark.parametrize("wrong_ms", [-YEARS_MS, YEARS_MS])
@pytest.mark.parametrize("place", [0, 1, HELD_EVENTS - 1, HELD_EVENTS, 50])
def test_one_event_years_away_makes_no_other_late(wrong_ms: int, place: int) -> None:
    moments = [1000 * second for second in range(100)]
    moments.insert(place, wrong_ms)
    verdicts = [each.verdict for each in judge(moments)]
    assert verdicts.pop(place) == ("late" if wrong_ms < 0 else "ahead")
    assert set(verdicts) == {"in time"}


def test_a_stream_that_goes_on_after_a_day_is_taken_up_again() -> None:
    moments = [1000 * second for second in range(50)] + [86_400_000 + 1000 * second for second in range(50)]
    verdicts = [each.verdict for each in judge(moments)]
    assert verdicts.count("ahead") == 16
    assert set(verdicts[70:]) == {"in time"}


def test_a_late_event_within_the_tolerance_counts() -> None:
    moments = [1000 * second for second in range(50)] + [47_000, 20_000]
    assert [each.verdict for each in judge(moments)[-2:]] == ["in time", "late"]


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x94\x63\x00\x00\x00", b"junk"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="clock: "):
        StreamTime(TOLERANCE).restore(data)
