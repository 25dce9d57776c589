"""The three stages of trend detection, each with its state for one shard, by event time.

1. `CountStage`, one per shard of the posts: counts of terms by tick. Posts are dealt out evenly, so a hot
   term is one entry per tick and shard of each's counts, however often it comes.
2. `RateStage`, one per shard of the terms: which of them rise.
3. `BookStage`, one: trends.

A stage takes inputs in any order within a tick, and closes a tick when it is told that event time has passed
it. What it gives depends on the inputs alone, not on how they arrive. Shards are numbers that are fixed for
the life of a pipeline; which machine holds which does not matter.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import msgpack
import orjson

from forebay.apps.trends.book import TrendBook
from forebay.apps.trends.rising import RisingTerms
from forebay.apps.trends.terms import terms_of
from forebay.apps.trends.ticks import Counts, TickCounter, added
from forebay.apps.trends.values import Report, Rise, Seen, TrendEvent, TrendSettings, whole
from forebay.errors import MalformedRecord

VERSION = 1
OPEN_TICKS = 1 << 20
"""No limit of its own: what is too far ahead never comes this far."""
MAX_SAMPLES_PER_TICK = 256

Output = tuple[int, bytes]
"""The shard of the next stage that it is for, and the message."""


def post_bytes(time_ms: int, text: str) -> bytes:
    """A post as `CountStage` takes it."""
    packed: bytes = msgpack.packb((time_ms, text), unicode_errors="surrogatepass")
    return packed


def event_of(data: bytes) -> TrendEvent:
    """An event as `BookStage` gave it."""
    values = orjson.loads(data)
    for name in ("terms", "posts", "texts"):
        values[name] = tuple(values[name])
    return TrendEvent(**values)


class CountStage:
    """Counts of the posts of shard `shard`, for each of `shards` shards of the terms."""

    def __init__(self, settings: TrendSettings, shard: int, shards: int) -> None:
        self._shards = shards
        self._counter = TickCounter(
            tick_ms=settings.tick_ms, open_ticks=OPEN_TICKS, counter=shard, samples=MAX_SAMPLES_PER_TICK
        )

    def due_ms(self, data: bytes) -> int:
        """When the tick of a post ends: the time to call `close`."""
        time_ms, _ = msgpack.unpackb(data, unicode_errors="surrogatepass")
        return int((time_ms // self._counter.tick_ms + 1) * self._counter.tick_ms)

    def take(self, data: bytes) -> list[Output]:
        time_ms, text = msgpack.unpackb(data, unicode_errors="surrogatepass")
        early = self._counter.add(terms_of(text), time_ms, text)
        return [] if early is None else self._outputs(early)

    def close(self, time_ms: int) -> list[Output]:
        return [output for counts in self._counter.close(time_ms) for output in self._outputs(counts)]

    def finish(self) -> list[Output]:
        return [output for counts in self._counter.finish() for output in self._outputs(counts)]

    def _outputs(self, counts: Counts) -> list[Output]:
        return [(shard, counts_bytes(part)) for shard, part in enumerate(counts.split(self._shards))]

    def to_bytes(self) -> bytes:
        return self._counter.to_bytes()

    def restore(self, data: bytes) -> None:
        self._counter = TickCounter.from_bytes(data)


class RateStage:
    """Which terms of one of `shards` shards rise. The shards' sketches together are as large as one would be
    that held all terms."""

    def __init__(self, settings: TrendSettings, shards: int) -> None:
        self._settings = replace(settings, width_bits=max(8, settings.width_bits - (shards - 1).bit_length()))
        self._rising = RisingTerms(self._settings)
        self._pending: dict[int, list[Counts]] = {}

    def due_ms(self, data: bytes) -> int:
        return (int(_unpacked(data)[0]) + 1) * self._settings.tick_ms

    def take(self, data: bytes) -> list[Output]:
        counts = counts_of(data)
        self._pending.setdefault(counts.tick, []).append(counts)
        return []

    def close(self, time_ms: int) -> list[Output]:
        through = time_ms // self._settings.tick_ms - 1
        outputs = []
        for tick in sorted(tick for tick in self._pending if tick <= through):
            self._rising.add(added(self._pending.pop(tick)))
            report = self._rising.close()
            if report is not None:
                outputs.append((0, report_bytes(report)))
        return outputs

    def finish(self) -> list[Output]:
        return self.close((max(self._pending) + 1) * self._settings.tick_ms) if self._pending else []

    def to_bytes(self) -> bytes:
        pending = [counts_bytes(part) for parts in self._pending.values() for part in parts]
        return _packed([VERSION, self._rising.state(), pending])

    def restore(self, data: bytes) -> None:
        rising, pending = _checked(data, "rates")
        self._rising = RisingTerms.restore(self._settings, rising)
        self._pending = {}
        for each in pending:
            self.take(each)


class BookStage:
    """The trends; its outputs are the bytes of `TrendEvent`s (JSON)."""

    def __init__(self, settings: TrendSettings) -> None:
        self._settings = settings
        self._book = TrendBook(settings)
        self._pending: dict[int, list[Report]] = {}

    def due_ms(self, data: bytes) -> int:
        return (int(_unpacked(data)[0]) + 1) * self._settings.tick_ms

    def take(self, data: bytes) -> list[Output]:
        report = report_of(data)
        self._pending.setdefault(report.tick, []).append(report)
        return []

    def close(self, time_ms: int) -> list[Output]:
        through = time_ms // self._settings.tick_ms - 1
        return [
            _event(event)
            for tick in sorted(tick for tick in self._pending if tick <= through)
            for event in self._book.take(whole(self._pending.pop(tick)))
        ]

    def finish(self) -> list[Output]:
        closed = self.close((max(self._pending) + 1) * self._settings.tick_ms) if self._pending else []
        return closed + [_event(event) for event in self._book.finish()]

    def to_bytes(self) -> bytes:
        pending = [report_bytes(report) for reports in self._pending.values() for report in reports]
        return _packed([VERSION, self._book.state(), pending])

    def restore(self, data: bytes) -> None:
        book, pending = _checked(data, "trends")
        self._book = TrendBook.restore(self._settings, book)
        self._pending = {}
        for each in pending:
            self.take(each)


def counts_bytes(counts: Counts) -> bytes:
    return _packed([counts.tick, counts.posts, counts.terms, counts.texts])


def counts_of(data: bytes) -> Counts:
    tick, posts, terms, texts = _unpacked(data)
    return Counts(tick, posts, {term: (n, first, last) for term, (n, first, last) in terms.items()}, texts)


def report_bytes(report: Report) -> bytes:
    terms = {
        term: [
            seen.entry,
            seen.counts,
            None if seen.rise is None else [getattr(seen.rise, name) for name in Rise.__slots__],
        ]
        for term, seen in report.terms.items()
    }
    return _packed([report.tick, report.posts_per_s, terms, report.texts])


def report_of(data: bytes) -> Report:
    tick, posts_per_s, terms, texts = _unpacked(data)
    seen = {
        term: Seen((entry[0], entry[1], entry[2]), tuple(counts), None if rise is None else Rise(*rise))
        for term, (entry, counts, rise) in terms.items()
    }
    return Report(tick, posts_per_s, seen, texts)


def _event(event: TrendEvent) -> Output:
    return 0, orjson.dumps(_valid(asdict(event)))


def _valid(value: Any) -> Any:
    """`value` without halves of characters, which JSON cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _valid(each) for name, each in value.items()}
    return [_valid(each) for each in value] if isinstance(value, list | tuple) else value


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)


def _checked(data: bytes, what: str) -> Any:
    try:
        version, *values = _unpacked(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedRecord(f"{what}: not a state: {type(error).__name__}: {error}") from None
    if version != VERSION:
        raise MalformedRecord(f"{what}: the state is of version {version}; expected {VERSION}")
    return values
