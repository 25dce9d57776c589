"""The pipeline of a point, and its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from benchmarks.grid.cells import EXPONENTIAL, tail_lengths
from benchmarks.grid.streamed import Session
from forebay.bench.load.schedules import Constant, check_rate, check_requests, fresh_nonce
from forebay.bench.load.workloads import WORDS, Exactly, RandomWords
from forebay.bench.stream.events import EventLoad, StreamOptions
from forebay.bench.stream.measure import StreamSession
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
    """The base point, those of the factors, and the base point again: the difference of both is the
    noise."""
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


MIN_WARM_EVENTS = 6
WARM_PER_S = 10.0
WARM_SHARE = 5
"""Warm-up events: this fraction (1/5) of the measured ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterplayOptions:
    """Sizes of every point."""

    factors: tuple[str, ...]
    model: str = "default"
    events: int = 100
    prompt_tokens: int = 96
    mean_tokens: float = 24.0
    limit_tokens: int = 128
    load: float = 0.7
    rate_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_requests(self.events)
        Exactly(self.prompt_tokens)
        tail_lengths(EXPONENTIAL, self.events, self.mean_tokens, self.limit_tokens)
        if not 0 < self.load <= 10:
            raise SettingError(f"--load: expected more than 0 and at most 10, found {self.load:g}")
        if self.rate_per_s is not None:
            check_rate("--rate", self.rate_per_s)

    def max_model_len(self, kv_cache_gib: float) -> int:
        """The tokens of one sequence that the engine must hold: with a small KV cache it does not start for
        more."""
        one = 2 * (self.prompt_tokens + self.limit_tokens)
        return (
            max(one, WINDOWS_CONTEXT) if "windows" in self.factors and kv_cache_gib == KV_CACHE_GIB else one
        )


def point_pipeline(
    url: str, model: str | None, options: InterplayOptions, settings: Mapping[str, Any]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": "interplay",
        "source": {"type": "generator"},
        "prompt": "{{ text }}",
        "key": "{{ user }}",
        "engine": {"url": url, "model": model, "api": "completions"},
        "sampling": {"max_tokens": options.limit_tokens, "extra": {"ignore_eos": True}},
        # Events before the first load are made-up posts.
        "answer_tokens": "{{ tokens | default(8) }}",
        "sink": {"type": "jsonl", "path": "unused"},
    }
    for path, value in {**BASE_SETTINGS, **settings}.items():
        first, _, rest = path.partition(".")
        if rest:
            document.setdefault(first, {})[rest] = value
        else:
            document[first] = value
    return document


MIN_WINDOWS = 6
"""The least number of consecutive windows that are measured."""


def sized(options: InterplayOptions, settings: Mapping[str, Any], rate_per_s: float) -> InterplayOptions:
    """The options for a point: the common rate, and events for at least `MIN_WINDOWS`."""
    span_s = MIN_WINDOWS * settings.get(f"{APPLICATION}.size_s", 0.0)
    return replace(options, rate_per_s=rate_per_s, events=max(options.events, math.ceil(span_s * rate_per_s)))


@contextmanager
def open_pipeline(
    url: str, model: str | None, options: InterplayOptions, settings: Mapping[str, Any]
) -> Iterator[Session]:
    with_windows = f"{APPLICATION}.type" in settings
    with TemporaryDirectory(prefix="forebay-interplay-") as folder:
        warm = write_events(Path(folder) / "warm.jsonl", options, Events())
        stream = StreamOptions(
            pipeline=point_pipeline(url, model, options, settings),
            engine=(url,),
            load=EventLoad(
                # Windows need their time; otherwise a few calls are enough.
                schedule=Constant(options.rate_per_s or WARM_PER_S if with_windows else WARM_PER_S),
                events=options.events,
                data=warm,
                seed=options.seed,
            ),
            warm_events=max(MIN_WARM_EVENTS, options.events // WARM_SHARE),
            patience_s=300.0,
        )
        with StreamSession(stream) as session:
            session.warm_up()
            yield session


def write_events(path: Path, options: InterplayOptions, events: Events) -> Path:
    """Write the events of a point: `text`, `tokens` and `user`, the key."""
    lengths = tail_lengths(
        EXPONENTIAL, options.events, options.mean_tokens, options.limit_tokens, options.seed
    )
    nonce, random = fresh_nonce(), Random(f"keys {options.seed}")
    shared = round(options.prompt_tokens * events.shared)
    words = RandomWords(Exactly(max(1, options.prompt_tokens - shared)), Exactly(1))
    texts = words.requests(options.events, seed=options.seed, nonce=nonce)
    prefix = " ".join(Random(nonce).choices(WORDS, k=shared))
    lines = []
    for text, tokens in zip(texts, lengths, strict=True):
        first = events.skewed and random.random() < 0.5
        user = 0 if first else random.randrange(events.keys)
        lines.append({"text": f"{prefix} {text.prompt}".strip(), "tokens": tokens, "user": f"u{user}"})
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path
