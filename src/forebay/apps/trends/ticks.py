"""The first stage of counting: what came in a tick, by term, ready to be added to other counts of that tick.

Any number of counters may share a stream. A hot term is one entry of each counter's partial count, however
often it came; the second stage is keyed by term and adds the entries up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgpack

from forebay.detect.samples import SAMPLE_CHARS, keys_of
from forebay.errors import MalformedRecord

MAX_HELD_TERMS = 1 << 16
"""Occurrences that a counter holds before it hands over what it has."""
VERSION = 2


Entry = tuple[int, int, int]
"""A term in a tick: how many posts, the number of the first and of the last."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What came in one tick: posts in all; per term how many, and the number of the first and the last post.

    Posts are numbered by their counter, so that two terms with the same first and last posts came together.
    `texts` are some of those posts.
    """

    tick: int
    posts: int
    terms: dict[str, Entry]
    texts: dict[int, str] = field(default_factory=dict)

    def split(self, shards: int) -> list[Counts]:
        """The counts of each shard of the terms; every one knows of all posts."""
        names = list(self.terms)
        parts: list[dict[str, Entry]] = [{} for _ in range(shards)]
        for term, shard in zip(names, (keys_of(names) % shards).tolist(), strict=True):
            parts[shard][term] = self.terms[term]
        return [Counts(self.tick, self.posts, terms, self._texts_of(terms)) for terms in parts]

    def _texts_of(self, terms: dict[str, Entry]) -> dict[int, str]:
        numbers = (number for entry in terms.values() for number in entry[1:])
        return {number: self.texts[number] for number in numbers if number in self.texts}


def joined(one: Entry, other: Entry) -> Entry:
    """Two entries of one term as one: the posts together, the least first and the greatest last number."""
    return one[0] + other[0], min(one[1], other[1]), max(one[2], other[2])


def added(parts: Iterable[Counts]) -> Counts:
    """Counts of one tick by several counters as one; their order does not matter."""
    terms: dict[str, Entry] = {}
    texts: dict[int, str] = {}
    posts = tick = 0
    for part in parts:
        tick, posts = part.tick, posts + part.posts
        for term, entry in part.terms.items():
            known = terms.get(term)
            terms[term] = entry if known is None else joined(known, entry)
        texts.update(part.texts)
    return Counts(tick, posts, dict(sorted(terms.items())), texts)


@dataclass(slots=True)
class _Tick:
    posts: list[list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    held: int = 0


class TickCounter:
    """Counts of one subtask by event time. Not thread-safe.

    Ticks last `tick_ms`. A post of a closed tick is not counted: `late` says how many. At most `open_ticks`
    are open; past that the farthest ahead is forgotten: `ahead` says how many posts. Memory: at most
    `MAX_HELD_TERMS` occurrences per open tick; past that, `add` hands the tick's counts over early. Of the
    texts at most `samples` go with a tick's counts: those in which its most frequent terms came first or
    last.
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

    def add(self, terms: list[str], time_ms: int, text: str = "") -> Counts | None:
        """Count a post. Gives counts where the tick held too much; they add to what `close` gives later."""
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
        """The counts of all ticks that end at or before the watermark, in order; those that had posts."""
        through = watermark_ms // self.tick_ms - 1
        if self._closed is not None and through <= self._closed:
            return []
        self._closed = through
        return [self._counts(tick) for tick in sorted(self._open) if tick <= through]

    def finish(self) -> list[Counts]:
        """The counts of all open ticks, in order."""
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
        """The whole state. `from_bytes` gives a counter that goes on exactly as this one would."""
        opened = [[tick, h.posts, h.numbers, h.texts, h.held] for tick, h in self._open.items()]
        packed: bytes = msgpack.packb(
            [VERSION, self.tick_ms, self._open_ticks, self._counter, self._samples, self.late, self.ahead,
             self._closed, self._next, opened],
            unicode_errors="surrogatepass",
        )  # fmt: skip
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> TickCounter:
        """What `to_bytes` gave. Raises `MalformedRecord` for other bytes, or those of another version."""
        document: Any
        try:
            document = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
            if document[0] != VERSION:
                raise MalformedRecord(f"ticks: the state is of version {document[0]}; expected {VERSION}")
            _, tick_ms, open_ticks, counter, samples, late, ahead, closed, following, opened = document
            self = cls(tick_ms=tick_ms, open_ticks=open_ticks, counter=counter, samples=samples)
            self.late, self.ahead, self._closed, self._next = late, ahead, closed, following
            self._open = {tick: _Tick(*held) for tick, *held in opened}
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"ticks: not a state: {type(error).__name__}: {error}") from None
        return self
