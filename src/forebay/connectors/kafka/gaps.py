"""The offsets that a pipeline reads next, and records that Kafka deleted before.

Offsets without a record inside the log are not gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.cluster import Generations
from forebay.errors import SettingError

Kind = Literal["deleted", "recreated", "shrunk"]
MAX_NAMED = 20
LOST_POSITION = ("OffsetOutOfRangeException", "LogTruncationException", "NoOffsetForPartitionException")


@dataclass(frozen=True, slots=True)
class TopicRanges:
    begins: tuple[Place, ...]
    ends: tuple[Place, ...]
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Gap:
    """A partition that does not continue at `offset`: its first record is at `now` (`deleted`), it ends
    there (`shrunk`), or another topic begins there (`recreated`)."""

    kind: Kind
    topic: str
    partition: int
    offset: int
    now: int

    @property
    def records(self) -> int:
        """Upper bound; 0 if unknown."""
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


def find_gaps(places: Iterable[Place], now: TopicRanges, known: Mapping[str, str]) -> tuple[Gap, ...]:
    """`places`: offsets to read next. A missing topic is not a gap."""
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
    known = {(place.topic, place.partition): place for place in committed}
    return tuple((known | {(place.topic, place.partition): place for place in places}).values())


def unread(gaps: Iterable[Gap], answered: Iterable[Place]) -> tuple[Gap, ...]:
    """Gaps without their parts before `answered`."""
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
    return topic in known and topic in now and known[topic] != now[topic]


def moved(places: Iterable[Place], gaps: Iterable[Gap]) -> tuple[Place, ...]:
    skipped = {(gap.topic, gap.partition): gap.now for gap in gaps}
    return tuple(
        Place(at.topic, at.partition, skipped.get((at.topic, at.partition), at.offset)) for at in places
    )


def next_generations(before: Generations, now: Mapping[str, str], gaps: Iterable[Gap]) -> Generations:
    """A topic whose offsets restarted gets its id again."""
    again = {gap.topic for gap in gaps if gap.kind == "shrunk"}
    found = dict(before)
    for topic, id in now.items():
        ids = found.get(topic, ())
        if not ids or ids[-1] != id or topic in again:
            found[topic] = (*ids, id)
    return found


def gaps_text(gaps: Iterable[Gap]) -> str:
    texts = [str(gap) for gap in gaps]
    left = len(texts) - MAX_NAMED
    return "; ".join(texts[:MAX_NAMED]) + (f"; and {left} more partitions" if left > 0 else "")


STATE = "SourceReaderState"
INT = struct.Struct(">i")
NAME_LENGTH = struct.Struct(">H")
SPLIT = struct.Struct(">iqq")
"""Partition, next offset, last offset, after the topic's name in Flink's encoding of a split."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """`places`: offsets to read next, without partitions whose reader has not started."""

    uid: str | None
    places: tuple[Place, ...]


def source_state(metadata: bytes, checkpoint: str) -> SourceState | None:
    """Parse a checkpoint's `_metadata` with Flink's own classes; None: no Kafka source. Raises
    `SettingError`."""
    try:
        for operator in _operators(metadata, checkpoint):
            readers = list(_reader_states(operator))
            if readers:
                found = [place for data, at in readers for place in splits_in(data, at)]
                uid = operator.getOperatorUid()
                return SourceState(str(uid.get()) if uid.isPresent() else None, tuple(found))
    except (Py4JJavaError, struct.error, UnicodeDecodeError) as error:
        raise SettingError(
            f"the Kafka offsets in checkpoint {checkpoint} cannot be read ({type(error).__name__}): the "
            f"checkpoint is damaged; name an earlier one with --from-checkpoint, or start over with --fresh"
        ) from None
    return None


def splits_in(data: bytes, offsets: list[int]) -> Iterator[Place]:
    """Raises `struct.error`."""
    for begin in offsets:
        # Skips the length of the split with its head, the version of its encoding, and its own length.
        at = begin + 3 * INT.size
        (length,) = NAME_LENGTH.unpack_from(data, at)
        name, rest = at + NAME_LENGTH.size, at + NAME_LENGTH.size + length
        topic = data[name:rest].decode()
        partition, offset, _ = SPLIT.unpack_from(data, rest)
        # Negative numbers: offsets that the reader has not looked up yet.
        if offset >= 0:
            yield Place(topic, partition, offset)


def _operators(metadata: bytes, checkpoint: str) -> list[Any]:
    jvm = get_gateway().jvm
    stream = jvm.java.io.DataInputStream(jvm.java.io.ByteArrayInputStream(metadata))
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = jvm.org.apache.flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(
        stream, loader, checkpoint
    )
    return list(found.getOperatorStates().toArray())


def _reader_states(operator: Any) -> Iterator[tuple[bytes, list[int]]]:
    for subtask in operator.getStates().toArray():
        for handle in subtask.getManagedOperatorState().toArray():
            state = handle.getStateNameToPartitionOffsets().get(STATE)
            if state is None:
                continue
            stream = handle.openInputStream()
            try:
                yield bytes(stream.readAllBytes()), list(state.getOffsets())
            finally:
                stream.close()
