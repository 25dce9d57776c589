import pytest

from forebay.testing.clock import ManualClock


async def test_time_passes_only_when_told_to() -> None:
    clock = ManualClock(monotonic_s=5.0, wall_ms=1000)
    assert (clock.monotonic_s(), clock.wall_ms()) == (5.0, 1000)
    clock.advance(1.5)
    await clock.sleep(0.25)
    assert (clock.monotonic_s(), clock.wall_ms()) == (6.75, 2750)
    assert clock.slept_s == [0.25]


def test_it_never_goes_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(-1.0)
