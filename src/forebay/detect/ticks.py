"""The first stage of counting: what came in a tick, by term, ready to be added to other counts of that tick.

Any number of counters may share a stream. A hot term is one entry of each counter's partial count, however
often it came; the second stage is keyed by term and adds the entries up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgpack

from forebay.errors import MalformedRecord

MAX_HELD_TERMS = 1 << 16
"""Occurrences that a counter holds before it hands over what it has."""
VERSION = 1


Entry = tuple[int, int, int]
"""A term in a tick: how many posts, the number of the first and of the last."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What came in one tick: posts in all; per term how many, and the number of the first and the last post.

    Posts are numbered by their counter, so that two terms with the same first and last posts came together.
    """

    tick: int
    posts: int
    terms: dict[str, Entry]


def joined(one: Entry, other: Entry) -> Entry:
    """Two entries of one term as one: the posts together, the least first and the greatest last number."""
    return one[0] + other[0], min(one[1], other[1]), max(one[2], other[2])


@dataclass(slots=True)
class _Tick:
    posts: list[list[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    held: int = 0


class TickCounter:
    """Counts of one subtask by event time. Not thread-safe.

    Ticks last `tick_ms`. A post of a closed tick is not counted: `late` says how many. At most `open_ticks`
    are open; past that the farthest ahead is forgotten: `ahead` says how many posts. Memory: at most
    `MAX_HELD_TERMS` occurrences per open tick; past that, `add` hands the tick's counts over early.
    """

    def __init__(self, *, tick_ms: int = 5000, open_ticks: int = 32, counter: int = 0) -> None:
        self.tick_ms = tick_ms
        self.late = 0
        self.ahead = 0
        self._open_ticks = open_ticks
        self._counter = counter
        self._open: dict[int, _Tick] = {}
        self._closed: int | None = None
        self._next = 0

    def add(self, terms: list[str], time_ms: int) -> Counts | None:
        """Count a post. Gives counts where the tick held too much; they add to what `close` gives later."""
        tick = time_ms // self.tick_ms
        if self._closed is None:
            self._closed = tick - 1
        if tick <= self._closed:
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
        held.held += len(terms) + 1
        self._next += 1
        return self._counts(tick) if held.held >= MAX_HELD_TERMS else None

    def close(self, watermark_ms: int) -> list[Counts]:
        """The counts of all ticks that end at or before the watermark, in order; those that had posts."""
        through = watermark_ms // self.tick_ms - 1
        if self._closed is None or through <= self._closed:
            return []
        self._closed = through
        return [self._counts(tick) for tick in sorted(self._open) if tick <= through]

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
        return Counts(tick, len(held.posts), together)

    def to_bytes(self) -> bytes:
        """The whole state. `from_bytes` gives a counter that goes on exactly as this one would."""
        opened = [[tick, held.posts, held.numbers, held.held] for tick, held in self._open.items()]
        packed: bytes = msgpack.packb(
            [VERSION, self.tick_ms, self._open_ticks, self._counter, self.late, self.ahead, self._closed,
             self._next, opened],
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
            _, tick_ms, open_ticks, counter, late, ahead, closed, following, opened = document
            self = cls(tick_ms=tick_ms, open_ticks=open_ticks, counter=counter)
            self.late, self.ahead, self._closed, self._next = late, ahead, closed, following
            self._open = {tick: _Tick(posts, numbers, held) for tick, posts, numbers, held in opened}
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"ticks: not a state: {type(error).__name__}: {error}") from None
        return self
