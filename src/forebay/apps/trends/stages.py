"""The three stages of trend detection, each with the state of one shard, in event time.

`CountStage` counts terms per tick and shard of posts, which are spread evenly. `RateStage` finds rising terms
per shard of terms. A single `BookStage` groups them. Outputs do not depend on the order of inputs within a
tick. The number of shards is fixed for the life of a pipeline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import msgpack
import orjson

from forebay.apps.samples import SAMPLE_CHARS
from forebay.apps.trends.book import TrendBook
from forebay.apps.trends.rising import RisingTerms
from forebay.apps.trends.terms import terms_of
from forebay.apps.trends.values import (
    Counts,
    Entry,
    Rise,
    TermSeen,
    TickReport,
    TrendEvent,
    TrendSettings,
    added,
    whole,
)
from forebay.errors import MalformedRecord

OPEN_TICKS = 1 << 20
EARLIEST_MS = -(1 << 62)
MAX_SAMPLES_PER_TICK = 256
MAX_HELD_TERMS = 1 << 16
"""Beyond this many occurrences a counter emits a tick's counts early."""

Output = tuple[int, bytes]


def post_bytes(time_ms: int, text: str) -> bytes:
    return _packed((time_ms, text))


def event_of(data: bytes) -> TrendEvent:
    values = orjson.loads(data)
    for name in ("terms", "posts", "texts"):
        values[name] = tuple(values[name])
    return TrendEvent(**values)


@dataclass(slots=True)
class _Tick:
    posts: list[list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    held: int = 0


class TickCounter:
    """Counts of one subtask by event time. Not thread-safe.

    Posts of closed ticks are dropped and counted in `late`. Beyond `open_ticks` open ticks, the one farthest
    ahead is dropped and counted in `ahead`. Beyond `MAX_HELD_TERMS` occurrences in a tick, `add` returns its
    counts early. At most `samples` texts, of its most frequent terms, accompany a tick's counts.
    """

    def __init__(
        self, *, tick_ms: int = 5000, open_ticks: int = 32, counter: int = 0, samples: int = 0
    ) -> None:
        self.tick_ms = tick_ms
        self.late = 0
        self.ahead = 0
        self._open_ticks = open_ticks
        self._counter = counter
        self._samples = samples
        self._open: dict[int, _Tick] = {}
        self._closed: int | None = None
        self._next = 0

    @property
    def open_ms(self) -> int:
        return EARLIEST_MS if self._closed is None else (self._closed + 1) * self.tick_ms

    def add(self, terms: list[str], time_ms: int, text: str = "") -> Counts | None:
        """Count a post. Returns the tick's counts early if there are too many; `close` returns the rest."""
        tick = time_ms // self.tick_ms
        if self._closed is not None and tick <= self._closed:
            self.late += 1
            return None
        held = self._open.get(tick)
        if held is None:
            if len(self._open) == self._open_ticks:
                farthest = max(*self._open, tick)
                self.ahead += 1 if farthest == tick else len(self._open.pop(farthest).posts)
                if farthest == tick:
                    return None
            held = self._open[tick] = _Tick()
        held.posts.append(terms)
        held.numbers.append(self._next)
        if self._samples:
            held.texts.append(text[:SAMPLE_CHARS])
        held.held += len(terms) + 1
        self._next += 1
        return self._counts(tick) if held.held >= MAX_HELD_TERMS else None

    def close(self, watermark_ms: int) -> list[Counts]:
        through = watermark_ms // self.tick_ms - 1
        if self._closed is not None and through <= self._closed:
            return []
        self._closed = through
        return [self._counts(tick) for tick in sorted(self._open) if tick <= through]

    def finish(self) -> list[Counts]:
        return self.close((max(self._open) + 1) * self.tick_ms) if self._open else []

    def _counts(self, tick: int) -> Counts:
        held = self._open.pop(tick)
        number = Counter(chain.from_iterable(held.posts))
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for post, terms in zip(held.numbers, held.posts, strict=True):
            last.update(dict.fromkeys(terms, post))
        for post, terms in zip(reversed(held.numbers), reversed(held.posts), strict=True):
            first.update(dict.fromkeys(terms, post))
        base = self._counter << 48
        together = {term: (count, base + first[term], base + last[term]) for term, count in number.items()}
        return Counts(tick, len(held.posts), together, self._chosen(held, together))

    def _chosen(self, held: _Tick, terms: dict[str, Entry]) -> dict[int, str]:
        if not self._samples:
            return {}
        base = self._counter << 48
        by_number = {base + number: text for number, text in zip(held.numbers, held.texts, strict=True)}
        if len(by_number) <= self._samples:
            return by_number
        chosen: dict[int, str] = {}
        for _, (_, first, last) in sorted(terms.items(), key=lambda each: (-each[1][0], each[0])):
            if len(chosen) + 2 > self._samples:
                break
            chosen[first], chosen[last] = by_number[first], by_number[last]
        return chosen

    def to_bytes(self) -> bytes:
        opened = [[tick, h.posts, h.numbers, h.texts, h.held] for tick, h in self._open.items()]
        return _packed(
            [self.tick_ms, self._open_ticks, self._counter, self._samples, self.late,
             self.ahead, self._closed, self._next, opened]
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes) -> TickCounter:
        """Raises `MalformedRecord` for bytes that are not from `to_bytes`."""
        try:
            tick_ms, open_ticks, counter, samples, late, ahead, closed, following, opened = _unpacked(data)
            self = cls(tick_ms=tick_ms, open_ticks=open_ticks, counter=counter, samples=samples)
            self.late, self.ahead, self._closed, self._next = late, ahead, closed, following
            self._open = {tick: _Tick(*held) for tick, *held in opened}
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"ticks: not a saved state: {type(error).__name__}: {error}") from None
        return self


class CountStage:
    def __init__(self, settings: TrendSettings, shard: int, shards: int) -> None:
        self._shards = shards
        self._counter = TickCounter(
            tick_ms=settings.tick_ms, open_ticks=OPEN_TICKS, counter=shard, samples=MAX_SAMPLES_PER_TICK
        )

    def due_ms(self, data: bytes) -> int:
        time_ms, _ = self._post(data)
        return int((time_ms // self._counter.tick_ms + 1) * self._counter.tick_ms)

    def take(self, data: bytes) -> list[Output]:
        time_ms, text = self._post(data)
        early = self._counter.add(terms_of(text), time_ms, text)
        return [] if early is None else self._outputs(early)

    def _post(self, data: bytes) -> tuple[int, str]:
        # If `late_s` grew since the last run, a post may belong to a tick that has closed.
        time_ms, text = _unpacked(data)
        return max(time_ms, self._counter.open_ms), text

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
    """All shards' sketches together are as large as a single one would be."""

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
        return _packed([self._rising.state(), pending])

    def restore(self, data: bytes) -> None:
        rising, pending = _restored(data, "rates")
        self._rising = RisingTerms.restore(self._settings, rising)
        self._pending = {}
        for each in pending:
            self.take(each)


class BookStage:
    def __init__(self, settings: TrendSettings) -> None:
        self._settings = settings
        self._book = TrendBook(settings)
        self._pending: dict[int, list[TickReport]] = {}

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

    def open_now(self) -> int:
        return self._book.open_now()

    def to_bytes(self) -> bytes:
        pending = [report_bytes(report) for reports in self._pending.values() for report in reports]
        return _packed([self._book.state(), pending])

    def restore(self, data: bytes) -> None:
        book, pending = _restored(data, "trends")
        self._book = TrendBook.restore(self._settings, book)
        self._pending = {}
        for each in pending:
            self.take(each)


def counts_bytes(counts: Counts) -> bytes:
    return _packed([counts.tick, counts.posts, counts.terms, counts.texts])


def counts_of(data: bytes) -> Counts:
    tick, posts, terms, texts = _unpacked(data)
    return Counts(tick, posts, {term: (n, first, last) for term, (n, first, last) in terms.items()}, texts)


def report_bytes(report: TickReport) -> bytes:
    terms = {
        term: [
            seen.entry,
            seen.counts,
            None if seen.rise is None else [getattr(seen.rise, name) for name in Rise.__slots__],
        ]
        for term, seen in report.terms.items()
    }
    return _packed([report.tick, report.posts_per_s, terms, report.texts])


def report_of(data: bytes) -> TickReport:
    tick, posts_per_s, terms, texts = _unpacked(data)
    seen = {
        term: TermSeen((entry[0], entry[1], entry[2]), tuple(counts), None if rise is None else Rise(*rise))
        for term, (entry, counts, rise) in terms.items()
    }
    return TickReport(tick, posts_per_s, seen, texts)


def _event(event: TrendEvent) -> Output:
    return 0, orjson.dumps(_valid(asdict(event)))


def _valid(value: Any) -> Any:
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


def _restored(data: bytes, what: str) -> Any:
    try:
        state, pending = _unpacked(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedRecord(f"{what}: not a saved state: {type(error).__name__}: {error}") from None
    return state, pending
