"""Samples before, during and after a block; a failing source ends nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from forebay.bench.records import EngineSample
from forebay.bench.sampling import Sampler
from forebay.errors import LaunchError


class Ticks:
    """Waits that end at once, a given number of times; then only with the block."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = threading.Event()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        assert seconds == 0.5
        if self._left:
            self._left -= 1
            return False
        self.done.set()
        return ended.wait()


def test_samples_are_in_seconds_after_the_run_began() -> None:
    moments = iter([1767225599.5, 1767225600.0, 1767225600.5, 1767225601.25])
    values = iter([{"running": 0.0}, {"running": 1.0}, {"running": 2.0}, {"running": 0.0}])
    ticks = Ticks(2)
    with Sampler(
        [lambda: next(values)], every_s=0.5, now_s=lambda: next(moments), wait=ticks.wait
    ) as sampler:
        ticks.done.wait()
    assert sampler.samples("2026-01-01T00:00:00.250000+00:00") == (
        EngineSample(-0.75, {"running": 0.0}),
        EngineSample(-0.25, {"running": 1.0}),
        EngineSample(0.25, {"running": 2.0}),
        EngineSample(1.0, {"running": 0.0}),
    )


def test_what_one_source_lacks_another_still_gives() -> None:
    def gone() -> Mapping[str, float]:
        raise ConnectionRefusedError

    def ended() -> Mapping[str, float]:
        raise LaunchError("the process 7, which was measured, has ended")

    ticks = Ticks(0)
    with Sampler(
        [gone, lambda: {"a": 1.0}, ended], every_s=0.5, now_s=lambda: 0.0, wait=ticks.wait
    ) as sampler:
        pass
    assert [dict(each.values) for each in sampler.samples("1970-01-01T00:00:00+00:00")] == [
        {"a": 1.0},
        {"a": 1.0},
    ]
    with Sampler([gone], every_s=0.5, wait=Ticks(0).wait) as sampler:
        pass
    assert sampler.samples("1970-01-01T00:00:00+00:00") == ()
