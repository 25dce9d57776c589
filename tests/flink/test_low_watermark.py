"""The low watermark against a model that remembers everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.event_time import EARLIEST_MS, LATEST_MS, UNKNOWN_MS, LowWatermark, clamp_ms

times = st.one_of(st.none(), st.integers(-5, 20))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), times),
        st.tuples(st.just("release"), st.integers(0, 1000)),
        st.tuples(st.just("now"), st.integers(-10, 30)),
    ),
    max_size=60,
)


@given(steps)
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
