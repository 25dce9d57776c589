from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.generator.source import Burst, PostSchedule
from forebay.errors import SettingError


def test_a_constant_rate() -> None:
    assert [PostSchedule(10).due_s(i) for i in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_burst_is_denser_and_the_base_rate_continues_after_it() -> None:
    schedule = PostSchedule(2, (Burst(1, 1, factor=3),))
    due = [schedule.due_s(i) for i in range(12)]
    assert due == pytest.approx([0, 0.5, *(1 + i / 6 for i in range(6)), 2, 2.5, 3, 3.5])


def test_which_burst_holds_when() -> None:
    burst = Burst(1, 1)
    assert [PostSchedule(1, (burst,)).burst_at(at) for at in (0.9, 1.0, 1.9, 2.0)] == [
        None,
        burst,
        burst,
        None,
    ]


@given(
    st.floats(0.1, 1000),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0.1, 20), st.floats(0.1, 50)), max_size=4),
)
def test_due_times_never_fall_and_hold_the_rates(rate: float, gaps: list[tuple[float, float, float]]) -> None:
    bursts, at_s = [], 0.0
    for gap_s, duration_s, factor in gaps:
        bursts.append(Burst(at_s + gap_s, duration_s, factor))
        at_s += gap_s + duration_s + 1e-6
    schedule = PostSchedule(rate, tuple(bursts))
    due = [schedule.due_s(i) for i in range(300)]
    assert due == sorted(due)
    for before_s, after_s in pairwise(due):
        rates = [
            rate * b.factor for b in bursts if b.start_s < after_s and before_s < b.start_s + b.duration_s
        ]
        fastest, slowest = max([rate, *rates]), min([rate, *rates])
        assert 1 / fastest * (1 - 1e-6) - 1e-9 <= after_s - before_s <= 1 / slowest * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostSchedule(0),
        lambda: PostSchedule(float("nan")),
        lambda: Burst(-1, 1),
        lambda: Burst(0, 0),
        lambda: Burst(0, 1, factor=0),
        lambda: Burst(0, 1, share=1.1),
        lambda: PostSchedule(1, (Burst(0, 2), Burst(1, 1))),
    ],
)
def test_wrong_settings(make: object) -> None:
    with pytest.raises(SettingError):
        make()
