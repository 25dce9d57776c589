"""A worker's shard has a timer that a checkpoint finds, whatever pauses came before it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.operators.inference import InferenceFunction, Shard

PAUSE_MS = 16_000


class Timers:
    """Stands in for Flink's context and its timers."""

    def __init__(self) -> None:
        self.set_ms: list[int] = []

    def timer_service(self) -> Timers:
        return self

    def register_processing_time_timer(self, time_ms: int) -> None:
        self.set_ms.append(time_ms)


def kept(touched_ms: list[int]) -> tuple[Timers, list[int]]:
    """The timers of a shard that was touched at these times, and how many there were after each."""
    operator: Any = InferenceFunction(None, capacity=1)  # type: ignore[arg-type]
    timers, shard, counts = Timers(), Shard(), []
    for now_ms in touched_ms:
        operator._keep(shard, timers, now_ms)
        counts.append(len(timers.set_ms))
    return timers, counts


@given(
    start_ms=st.integers(0, 2**41),
    pauses_ms=st.lists(st.integers(0, PAUSE_MS) | st.integers(0, 300), min_size=2, max_size=50),
)
def test_what_was_set_before_a_pause_is_still_to_come_after_it(start_ms: int, pauses_ms: list[int]) -> None:
    touched_ms = [start_ms + sum(pauses_ms[:n]) for n in range(len(pauses_ms))]
    timers, counts = kept(touched_ms)
    for now_ms, count in zip(touched_ms[1:], counts, strict=False):
        assert max(timers.set_ms[:count]) > now_ms


def test_a_restore_takes_a_shard_up_within_seconds_where_nothing_paused() -> None:
    touched_ms = list(range(0, 60_000, 100))
    timers, counts = kept(touched_ms)
    for now_ms, count in zip(touched_ms[1:], counts, strict=False):
        assert any(0 < set_ms - now_ms <= 2_000 for set_ms in timers.set_ms[:count])


def test_keepers_are_few() -> None:
    timers, _ = kept(list(range(0, 3_600_000, 20)))
    assert len(timers.set_ms) <= 3_600 + 3_600 // 16 + 4
