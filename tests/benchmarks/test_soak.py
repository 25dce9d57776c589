"""Tests of `soak`: what counts as growth, and how the figures of a JVM are read."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from benchmarks.soak import SERIES, points, read_native, soak_picture, trend

HEAP = """4711:
 def new generation   total 29504K, used 500K [0x1, 0x2, 0x3)
  eden space 26240K,  70% used [0x1, 0x2, 0x3)
 tenured generation   total 229376K, used 1500K [0x1, 0x2, 0x3)
   the space 229376K,  15% used [0x1, 0x2, 0x3)
 Metaspace       used 77229K, committed 78272K, reserved 1179648K
  class space    used 10063K, committed 10560K, reserved 1048576K
"""
NATIVE = """4711:
Total: reserved=2621590KB, committed=421826KB
       malloc: 50350KB #250163
       mmap:   reserved=2571240KB, committed=371476KB
-                     Class (reserved=1050181KB, committed=12165KB)
                            (classes #14622)
                            (malloc=1605KB #41971) (at peak)
-                    Thread (reserved=91547KB, committed=9199KB)
                            (threads #83)
"""


def test_what_jcmd_prints_is_read() -> None:
    assert read_native(HEAP + NATIVE) == {
        "heap_mb": pytest.approx(2.048),
        "metaspace_mb": pytest.approx(79.08, abs=0.01),
        "malloc_mb": pytest.approx(51.56, abs=0.01),
        "classes": 14622,
        "threads": 83,
    }
    assert read_native(HEAP) is None


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (lambda x: 400.0, True),
        (lambda x: 400 + 130e-6 * x, False),
        (lambda x: 400 + min(x, 400_000) * 130e-6, True),
        (lambda x: 400 - 130e-6 * x, True),
    ],
    ids=["flat", "grows", "levels off in the first half", "shrinks"],
)
def test_growth_of_the_second_half_counts(value: Callable[[int], float], level: bool) -> None:
    draw = random.Random(1)
    found = trend([(x, value(x) + draw.gauss(0, 2)) for x in range(0, 1_000_000, 5000)])
    assert found is not None
    assert found.level is level
    assert found.low < found.slope < found.high


def test_too_few_samples_have_no_trend() -> None:
    assert trend([(x, 400.0) for x in range(30)]) is None
    assert trend([(5, 400.0)] * 100) is None


def test_samples_are_drawn_by_part() -> None:
    samples = [
        {"part": part, "events": 10, "restarts": n, "hours": n / 10, **dict.fromkeys(SERIES, 100.0 + n)}
        for part in ("restarts", "rest")
        for n in range(3)
    ]
    assert points(samples, "rest", "jvm_mb") == [(0.0, 100.0), (0.1, 101.0), (0.2, 102.0)]
    assert "<svg" in soak_picture({"samples": samples}).svg()
