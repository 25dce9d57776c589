"""A hang is detected whether it waits or computes; a busy machine does not count as one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from . import bounds
from .bounds import STUCK_S, TICK_S, Standstill


class Times:
    """Readings of the clock and of the processor time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.computed_s = 0.0
        clocks = SimpleNamespace(monotonic=lambda: self.now_s, process_time=lambda: self.computed_s)
        monkeypatch.setattr(bounds, "time", clocks)

    def pass_(self, wall_s: float, computed_s: float = 0.0) -> None:
        self.now_s += wall_s
        self.computed_s += computed_s


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def test_five_seconds_of_waiting_is_a_hang(times: Times) -> None:
    still = Standstill()
    for _ in range(int(STUCK_S / TICK_S) - 1):
        times.pass_(TICK_S)
        still.look()
    times.pass_(TICK_S)
    with pytest.raises(AssertionError, match=r"nothing has come of it for 5\.0 s"):
        still.look()


def test_five_seconds_of_computing_is_a_hang(times: Times) -> None:
    still = Standstill()
    times.pass_(6.0, computed_s=5.5)
    with pytest.raises(AssertionError, match=r"nothing has come of it for 5\.5 s"):
        still.look()


def test_time_without_a_processor_is_no_hang(times: Times) -> None:
    still = Standstill()
    for _ in range(9):
        times.pass_(60.0, computed_s=0.01)
        still.look()


def test_progress_is_no_hang(times: Times) -> None:
    still = Standstill()
    for _ in range(100):
        times.pass_(TICK_S)
        still.look()
        still.progress()
