"""Topic detection with its state for one shard of the texts: batches in, events out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from forebay.apps.topics.finder import TopicFinder
from forebay.apps.topics.values import BLOCK, TopicEvent, TopicSettings
from forebay.errors import MalformedRecord

VERSION = 2
UNTIMED_STEP_MS = 1000
"""Without times, a text is taken to come a second after the one before it."""

Floats = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]


@dataclass(frozen=True, slots=True)
class ShardEvent:
    """What happened to a topic of a shard; a topic is named by both numbers.

    Not `timed`: the texts have no times, and the event's counts `UNTIMED_STEP_MS` for each.
    """

    shard: int
    event: TopicEvent
    timed: bool = True

    @property
    def name(self) -> str:
        """The topic's name over all shards."""
        return topic_name(self.shard, self.event.topic)


def topic_name(shard: int, topic: int) -> str:
    return f"{shard}-{topic}" if shard else str(topic)


def text_bytes(time_ms: int | None, text: str, partition: str = "") -> bytes:
    """A text as `TopicStage` takes it."""
    packed: bytes = msgpack.packb((time_ms, text, partition), unicode_errors="surrogatepass")
    return packed


def shard_event_of(data: bytes) -> ShardEvent:
    """An event as `TopicStage` gave it."""
    shard, values, timed = orjson.loads(data)
    values["texts"] = tuple(values["texts"])
    return ShardEvent(shard, TopicEvent(**values), timed)


class TopicStage:
    """Topics of the texts of one shard.

    Texts are embedded and placed in batches of `BLOCK`; `close` places those that wait. Batches are cut where
    the texts' number says, so that what comes out depends on the texts and their order, and on where `close`
    was called only as far as sums of floating-point numbers do. Blocks while a batch is embedded.
    """

    def __init__(self, settings: TopicSettings, shard: int, embed: Embed, width: int) -> None:
        self._shard = shard
        self._embed = embed
        self._width = width
        self._finder = TopicFinder(settings, width)
        self._waiting: list[tuple[int, str, str]] = []
        self._count = 0
        self._last_ms = 0
        self._timed = True

    def due_ms(self, data: bytes) -> int | None:
        return None

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        time_ms, text, partition = _whole(msgpack.unpackb(data, unicode_errors="surrogatepass"))
        if not self._count:
            self._timed = time_ms is not None
        self._last_ms = self._last_ms + UNTIMED_STEP_MS if time_ms is None else time_ms
        self._waiting.append((self._last_ms, text, partition))
        self._count += 1
        return self.close(0) if self._count % BLOCK == 0 else []

    def close(self, time_ms: int) -> list[tuple[int, bytes]]:
        if not self._waiting:
            return []
        times, texts, partitions = zip(*self._waiting, strict=True)
        self._waiting = []
        return self._outputs(self._finder.add(texts, self._embed(texts), times, partitions).events)

    def finish(self) -> list[tuple[int, bytes]]:
        return self.close(0) + self._outputs(self._finder.finish())

    def _outputs(self, events: Iterable[TopicEvent]) -> list[tuple[int, bytes]]:
        return [(0, _event_bytes(ShardEvent(self._shard, event, self._timed))) for event in events]

    def to_bytes(self) -> bytes:
        counts = (self._count, self._last_ms, self._timed)
        state = (VERSION, self._width, self._finder.to_bytes(), self._waiting, *counts)
        packed: bytes = msgpack.packb(state, unicode_errors="surrogatepass")
        return packed

    def restore(self, data: bytes) -> None:
        try:
            version, *state = msgpack.unpackb(data, unicode_errors="surrogatepass")
            if version != VERSION:
                raise MalformedRecord(f"topics: the state is of version {version}; expected {VERSION}")
            width, finder, waiting, count, last_ms, timed = state
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"topics: not a state: {type(error).__name__}: {error}") from None
        if width != self._width:
            raise MalformedRecord(
                f"topics: the state is of vectors of {width} numbers, the embedding gives {self._width}; "
                f"use the embedding that it was made with, or start over"
            )
        self._finder = TopicFinder.from_bytes(finder)
        self._waiting = [_whole(each) for each in waiting]
        self._count, self._last_ms, self._timed = count, last_ms, timed


def _whole(text: Sequence[Any]) -> tuple[Any, str, str]:
    """A text with its time and its partition, which older versions did not keep."""
    time_ms, words, partition = (*text, "")[:3]
    return time_ms, words, partition


def _event_bytes(found: ShardEvent) -> bytes:
    event = found.event
    values = {f.name: getattr(event, f.name) for f in fields(TopicEvent)}
    values["texts"] = [text.encode("utf-8", "replace").decode() for text in event.texts]
    return orjson.dumps([found.shard, values, found.timed])
