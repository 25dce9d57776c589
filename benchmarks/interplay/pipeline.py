"""The pipeline of a point, and its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from benchmarks.grid.streamed import Session
from benchmarks.grid.tails import EXPONENTIAL, tail_lengths
from benchmarks.interplay.factors import (
    APPLICATION,
    BASE_SETTINGS,
    KV_CACHE_GIB,
    WINDOWS_CONTEXT,
    Events,
)
from forebay.bench.load.lengths import Exactly
from forebay.bench.load.plan import fresh_nonce
from forebay.bench.load.schedules import Constant, check_rate, check_requests
from forebay.bench.load.workloads import WORDS, RandomWords
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.options import EventLoad, StreamOptions
from forebay.errors import SettingError

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
    """The pipeline file's value, with `settings` over those of the base point."""
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
    """The warm pipeline of a point. Raises as `StreamSession` does."""
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
