"""The factors of `python -m benchmarks interplay`: one at a time around a base point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from forebay.errors import SettingError

BASE = "base"
KV_CACHE_GIB = 1.0
SMALL_KV_CACHE_GIB = 0.02
"""About 900 tokens of the packaged model: room for four sequences of the default sizes."""


@dataclass(frozen=True, slots=True)
class Events:
    shared: float = 0.0
    keys: int = 64
    skewed: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one factor; everything else is as in the base point.

    `settings`: keys of the pipeline file, as dotted paths; `kv_cache_gib`: of the engine.
    """

    factor: str
    value: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    events: Events = Events()
    kv_cache_gib: float = KV_CACHE_GIB

    @property
    def name(self) -> str:
        return f"{self.factor}: {self.value}"


BASE_POINT, BASE_AGAIN = Point(BASE, "first"), Point(BASE, "again")
BASE_SETTINGS: Mapping[str, Any] = {
    "capacity": 16,
    "checkpoint.interval_s": 1.0,
    "ordering": "unordered",
    "parallelism": 1,
    "task_managers": 1,
}
BUNDLE = "flink.python.fn-execution.bundle"

APPLICATION = "application"


def tumbling(size_s: float) -> Mapping[str, Any]:
    """Settings that summarise each key's events per window, instead of a call for each event."""
    return {
        f"{APPLICATION}.type": "summary",
        f"{APPLICATION}.size_s": size_s,
        f"{APPLICATION}.chunk_tokens": 1000,
        f"{APPLICATION}.partial_tokens": 50,
        f"{APPLICATION}.summary_tokens": 60,
        "event_time.out_of_orderness_s": 0.2,
        "engine.api": "chat",
        "prompt": None,
        "answer_tokens": None,
    }


WINDOWS_CONTEXT = 2048
"""Tokens that the engine must hold of such a call."""

FACTORS: Mapping[str, Sequence[Point]] = {
    "capacity": [Point("capacity", str(count), {"capacity": count}) for count in (1, 4, 64)],
    "checkpoint": [
        Point("checkpoint", f"every {interval_s:g} s", {"checkpoint.interval_s": interval_s})
        for interval_s in (0.2, 5.0)
    ],
    "ordering": [
        Point("ordering", "by key, 64 keys", {"ordering": "key"}),
        Point("ordering", "by key, 4 keys", {"ordering": "key"}, Events(keys=4)),
        Point("ordering", "by key, half of all on one", {"ordering": "key"}, Events(keys=4, skewed=True)),
    ],
    "prefix": [
        Point("prefix", "a third of each prompt shared", events=Events(shared=1 / 3)),
        Point("prefix", "two thirds shared", events=Events(shared=2 / 3)),
    ],
    "kv-cache": [Point("kv-cache", f"{SMALL_KV_CACHE_GIB} GiB", kv_cache_gib=SMALL_KV_CACHE_GIB)],
    "subtasks": [
        Point("subtasks", "2 subtasks, one JVM", {"parallelism": 2, "capacity": 8}),
        Point("subtasks", "2 task managers", {"parallelism": 2, "capacity": 8, "task_managers": 2}),
    ],
    "windows": [
        Point("windows", "tumbling, 3 s, 2 keys", tumbling(3.0), Events(keys=2)),
        Point("windows", "tumbling, 6 s, 2 keys", tumbling(6.0), Events(keys=2)),
        Point("windows", "tumbling, 6 s, 8 keys", tumbling(6.0), Events(keys=8)),
        Point(
            "windows",
            "sliding, 6 s every 2 s, 2 keys",
            {**tumbling(6.0), f"{APPLICATION}.window": "sliding", f"{APPLICATION}.step_s": 2.0},
            Events(keys=2),
        ),
    ],
    "bundle": [
        Point("bundle", "10 ms", {f"{BUNDLE}.time": 10}),
        Point("bundle", "5 s, 10,000 records", {f"{BUNDLE}.time": 5000, f"{BUNDLE}.size": 10_000}),
    ],
}


def points(factors: Sequence[str]) -> list[Point]:
    """The base point, those of the factors, and the base point again: the difference of both is the noise.

    Points that need the same engine, and then the same pipeline, are adjacent. Raises `SettingError` for an
    unknown factor.
    """
    if unknown := [name for name in factors if name not in FACTORS]:
        raise SettingError(f"--factor: expected {', '.join(FACTORS)}, found {unknown[0][:80]!r}")
    varied = [point for name in FACTORS if name in factors for point in FACTORS[name]]
    if not varied:
        return []
    first = [point for point in varied if not point.settings and point.kv_cache_gib == KV_CACHE_GIB]
    later = [point for point in varied if point.settings and point.kv_cache_gib == KV_CACHE_GIB]
    last = [point for point in varied if point.kv_cache_gib != KV_CACHE_GIB]
    return [BASE_POINT, *first, *later, BASE_AGAIN, *last]


def by_engine(found: Sequence[Point]) -> Iterator[tuple[float, list[Point]]]:
    """Adjacent points with the same KV cache."""
    for kv_cache_gib, group in groupby(found, key=lambda point: point.kv_cache_gib):
        yield kv_cache_gib, list(group)


def by_pipeline(found: Sequence[Point]) -> Iterator[tuple[Mapping[str, Any], list[Point]]]:
    for settings, group in groupby(found, key=lambda point: dict(point.settings)):
        yield settings, list(group)
