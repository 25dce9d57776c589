"""Find, describe and skip records that Kafka deleted before the pipeline read them.

Compares positions with the topic now. Offsets without a record inside the log (compaction, transaction
markers) are not gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.start import Generations

Kind = Literal["deleted", "recreated", "shrunk"]
MAX_NAMED = 20
LOST_POSITION = ("OffsetOutOfRangeException", "LogTruncationException", "NoOffsetForPartitionException")
"""Errors of Kafka's consumer if its position is no longer in the topic."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Now: each partition's first offset and the one after its newest record, and ids by name."""

    begins: tuple[Place, ...]
    ends: tuple[Place, ...]
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Gap:
    """A partition that does not continue at `offset`, the next one to read.

    `deleted`: its first record is now at `now`. `shrunk`: it ends at `now`. `recreated`: the topic has
    another id, and begins at `now`.
    """

    kind: Kind
    topic: str
    partition: int
    offset: int
    now: int

    @property
    def records(self) -> int:
        """Upper bound (some offsets may have had none); 0 if unknown."""
        return self.now - self.offset if self.kind == "deleted" else 0

    def __str__(self) -> str:
        where = f"{self.topic}/{self.partition}"
        if self.kind == "deleted":
            count = f"{self.records} records at most" if self.records > 1 else "one record at most"
            return f"{where}: offsets {self.offset} to {self.now - 1} were deleted unread ({count})"
        if self.kind == "shrunk":
            return f"{where}: it ends at offset {self.now}, before the next offset to read, {self.offset}"
        return (
            f"{where}: the topic was deleted and created again; what the old one had from offset "
            f"{self.offset} on is gone, and the new one begins at offset {self.now}"
        )


def find_gaps(places: Iterable[Place], now: Topics, known: Mapping[str, str]) -> tuple[Gap, ...]:
    """`places`: offsets to read next. `known`: the topic ids when they were read. A topic that no longer
    exists is not a gap.
    """
    begins = {(place.topic, place.partition): place.offset for place in now.begins}
    ends = {(place.topic, place.partition): place.offset for place in now.ends}
    found = []
    for place in sorted(places, key=lambda each: (each.topic, each.partition)):
        at = (place.topic, place.partition)
        if place.topic not in now.ids:
            continue
        kind: Kind | None = None
        goes_on = begins.get(at, 0)
        if changed(place.topic, known, now.ids):
            kind = "recreated"
        elif at not in ends or place.offset > ends[at]:
            kind, goes_on = "shrunk", ends.get(at, 0)
        elif place.offset < begins[at]:
            kind = "deleted"
        if kind is not None:
            found.append(Gap(kind, place.topic, place.partition, place.offset, goes_on))
    return tuple(found)


def with_committed(places: Iterable[Place], committed: Iterable[Place]) -> tuple[Place, ...]:
    """`places`, plus those of `committed` in other partitions."""
    known = {(place.topic, place.partition): place for place in committed}
    return tuple((known | {(place.topic, place.partition): place for place in places}).values())


def unread(gaps: Iterable[Gap], answered: Iterable[Place]) -> tuple[Gap, ...]:
    """Gaps without their parts before `answered`, up to which all results are committed."""
    done = {(place.topic, place.partition): place.offset for place in answered}
    found = []
    for gap in gaps:
        offset = done.get((gap.topic, gap.partition), 0)
        if gap.kind != "deleted" or offset <= gap.offset:
            found.append(gap)
        elif offset < gap.now:
            found.append(replace(gap, offset=offset))
    return tuple(found)


def changed(topic: str, known: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """The topic was created again."""
    return topic in known and topic in now and known[topic] != now[topic]


def moved(places: Iterable[Place], gaps: Iterable[Gap]) -> tuple[Place, ...]:
    """Skip the gaps."""
    skipped = {(gap.topic, gap.partition): gap.now for gap in gaps}
    return tuple(
        Place(at.topic, at.partition, skipped.get((at.topic, at.partition), at.offset)) for at in places
    )


def next_generations(before: Generations, now: Mapping[str, str], gaps: Iterable[Gap]) -> Generations:
    """Add new ids; a topic whose offsets restarted gets its id again."""
    again = {gap.topic for gap in gaps if gap.kind == "shrunk"}
    found = dict(before)
    for topic, id in now.items():
        ids = found.get(topic, ())
        if not ids or ids[-1] != id or topic in again:
            found[topic] = (*ids, id)
    return found


def gaps_text(gaps: Iterable[Gap]) -> str:
    """At most `MAX_NAMED`."""
    texts = [str(gap) for gap in gaps]
    left = len(texts) - MAX_NAMED
    return "; ".join(texts[:MAX_NAMED]) + (f"; and {left} more partitions" if left > 0 else "")
