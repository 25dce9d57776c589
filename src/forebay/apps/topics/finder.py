"""Emerging topics: one-pass clustering of short texts with bounded state.

A text is a vector of its sentence embedding and its words (`Lexicon`). It joins the nearest cluster or starts
one (`Centres`); similar clusters are merged every `review_every` texts. A cluster becomes a topic at
`birth_texts` texts, or is folded into the nearest topic if that takes too long (`TopicLives`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from forebay.apps.samples import Keys, distinct_words, keys_of
from forebay.apps.topics.lives import TopicLives
from forebay.apps.topics.values import (
    BLOCK,
    NO_TOPIC,
    UNTIMED_STEP_MS,
    Assignment,
    FoundTopics,
    ShardEvent,
    TopicEvent,
    TopicSettings,
    topic_name,
)
from forebay.errors import MalformedRecord

Floats = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]

FOUND, ASSIGNED = 0, 1
TABLE = 1 << 16
SMOOTHING = 50.0
MIN_WEIGHT = 0.05


class Lexicon:
    """Word vectors: `width` signed hash buckets (feature hashing, Weinberger et al. 2009).

    Words are weighted by inverse document frequency so far (Spärck Jones 1972); vectors have length 1. A text
    counts as `share` of a document (`learn`), because copies are weaker evidence of a word's frequency.
    `settle` applies what was learned; `fade` decays old counts.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._counts = np.zeros(TABLE, np.float64)
        self._documents = 0.0
        self._pending: list[tuple[Keys, float]] = []

    def keys(self, text: str) -> Keys:
        return keys_of(distinct_words(text))

    def vectors(self, texts: Sequence[Keys]) -> Floats:
        vectors = np.zeros((len(texts), self.width), np.float32)
        keys = np.concatenate(texts) if texts else np.zeros(0, np.uint32)
        rows = np.repeat(np.arange(len(texts)), [len(each) for each in texts])
        seen = self._counts[keys % TABLE]
        weights = np.maximum(np.log((self._documents + SMOOTHING) / (seen + 1)), MIN_WEIGHT)
        signs = np.where((keys >> np.uint32(16)) & 1, 1.0, -1.0)
        np.add.at(vectors, (rows, (keys >> np.uint32(17)) % self.width), (weights * signs).astype(np.float32))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths > 0, lengths, 1)
        return vectors

    def learn(self, keys: Keys, share: float) -> None:
        self._pending.append((keys, share))

    def settle(self) -> None:
        for keys, share in self._pending:
            self._counts[keys % TABLE] += share
            self._documents += share
        self._pending.clear()

    def fade(self, factor: float) -> None:
        self._counts *= factor
        self._documents *= factor

    def state(self) -> list[Any]:
        pending = [[keys.tobytes(), share] for keys, share in self._pending]
        return [self.width, self._documents, self._counts.tobytes(), pending]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Lexicon:
        width, documents, counts, pending = state
        self = cls(width)
        self._documents = documents
        self._counts = np.frombuffer(counts, np.float64).copy()
        self._pending = [(np.frombuffer(keys, np.uint32), share) for keys, share in pending]
        return self


class TopicFinder:
    """Topics of one stream. Not thread-safe. Deterministic for the same texts in the same calls.

    >>> finder = TopicFinder(TopicSettings(), embedding_width=3)
    >>> vectors = np.eye(3, dtype=np.float32)
    >>> finder.add(["storm hits Lisbon", "late goal", "Lisbon flooded"], vectors, [0, 1000, 2000]).topics
    (0, 1, 2)
    >>> TopicFinder.from_bytes(finder.to_bytes()).to_bytes() == finder.to_bytes()
    True
    """

    def __init__(self, settings: TopicSettings, embedding_width: int) -> None:
        self.settings = settings
        self._width = embedding_width
        self._lexicon = Lexicon(settings.word_places)
        self._lives = TopicLives(settings, embedding_width + settings.word_places)
        self._copies = np.zeros(TABLE, np.uint16)
        self._scaled_ms: int | None = None

    @property
    def live(self) -> int:
        return self._lives.centres.live

    def open_now(self) -> int:
        return sum(cluster.born for cluster in self._lives.clusters.values())

    def add(
        self,
        texts: Sequence[str],
        vectors: Floats,
        times_ms: Sequence[int],
        partitions: Sequence[str] | None = None,
    ) -> FoundTopics:
        """Assign texts to topics, in order.

        `vectors` holds one embedding of length 1 per row. `partitions` are those of the source; time is
        ordered within each. Blocks for about 0.1 ms per text. Raises `ValueError` if lengths or shapes do not
        match.
        """
        partitions = [""] * len(texts) if partitions is None else partitions
        if vectors.shape != (len(texts), self._width) or not len(texts) == len(times_ms) == len(partitions):
            raise ValueError(
                f"{len(texts)} texts, {len(times_ms)} times, {len(partitions)} partitions, vectors of shape "
                f"{vectors.shape}"
            )
        times = list(zip(times_ms, partitions, strict=True))
        topics: list[int] = []
        events: list[TopicEvent] = []
        confidences: list[float] = []
        start = 0
        while start < len(texts):
            end = min(len(texts), start + BLOCK - self._lives.count % BLOCK)
            placed = self._place(texts[start:end], vectors[start:end], times[start:end], events)
            topics += [topic for topic, _ in placed]
            confidences += [confidence for _, confidence in placed]
            self._lives.count += end - start
            if self._lives.count % BLOCK == 0:
                self._lexicon.settle()
                crowded = self.live > self.settings.max_clusters - BLOCK
                if crowded or self._lives.count % self.settings.review_every == 0:
                    self._review(events)
            start = end
        return FoundTopics(tuple(topics), tuple(events), tuple(confidences))

    def finish(self) -> tuple[TopicEvent, ...]:
        events: list[TopicEvent] = []
        self._lives.merge(events, since=0)
        self._lives.fold(events, patience=-1)
        self._lives.report_sizes(events)
        return tuple(events)

    def _place(
        self,
        texts: Sequence[str],
        embedded: Floats,
        times: Sequence[tuple[int, str]],
        events: list[TopicEvent],
    ) -> list[tuple[int, float]]:
        settings = self.settings
        keys = [self._lexicon.keys(text) for text in texts]
        vectors = np.concatenate(
            [
                embedded * np.float32((1 - settings.words) ** 0.5),
                self._lexicon.vectors(keys) * np.float32(settings.words**0.5),
            ],
            axis=1,
        )
        weights = []
        for index, each in enumerate(keys):
            if not len(each):
                vectors[index] = 0
            weights.append(1 / self._copy(each))
        placed = [(NO_TOPIC, 0.0)] * len(texts)
        lives = self._lives
        clocks = [lives.clock.see(time_ms, partition) for time_ms, partition in times]

        def joined(index: int, row: int, similarity: float) -> None:
            self._lexicon.learn(keys[index], weights[index] / int(lives.centres.texts[row]) ** 0.5)
            topic = lives.join(row, similarity, texts[index], clocks[index], events)
            founded = int(lives.centres.texts[row]) == 1
            placed[index] = topic, 0.0 if founded else min(max(similarity, 0.0), 1.0)

        lives.centres.assign(
            vectors, weights, lives.count, threshold=settings.join, name=lives.name, joined=joined
        )
        return placed

    def _copy(self, keys: Keys) -> int:
        slot = int(np.bitwise_xor.reduce(keys * np.uint32(2654435761))) % TABLE if len(keys) else 0
        if self._copies[slot] < np.iinfo(np.uint16).max:
            self._copies[slot] += 1
        return int(self._copies[slot])

    def _review(self, events: list[TopicEvent]) -> None:
        self._lives.review(events)
        self._age(self._lives.clock.now_ms)

    def _age(self, now_ms: int) -> None:
        if self._scaled_ms is not None and now_ms > self._scaled_ms:
            self._lives.centres.scale(
                0.5 ** min((now_ms - self._scaled_ms) / (self.settings.half_life_s * 1000), 20)
            )
        self._scaled_ms = now_ms
        self._lexicon.fade(0.5 ** (self.settings.review_every / 100_000))
        if self._lives.count % (self.settings.review_every * 64) == 0:
            self._copies >>= 1

    def to_bytes(self) -> bytes:
        document = [
            [getattr(self.settings, f.name) for f in fields(TopicSettings)],
            self._width,
            self._lexicon.state(),
            self._lives.state(),
            self._copies.tobytes(),
            self._scaled_ms,
        ]
        return _packed(document)

    @classmethod
    def from_bytes(cls, data: bytes, settings: TopicSettings | None = None) -> TopicFinder:
        """With other `settings` from now on, if given.

        Raises `MalformedRecord` for bytes that are not from `to_bytes`.
        """
        try:
            document = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
            saved, width, lexicon, lives, copies, scaled_ms = document
            self = cls(settings or TopicSettings(*saved), width)
            self._lexicon = Lexicon.restore(lexicon)
            self._lives = TopicLives.restore(self.settings, self._lives.centres.width, lives)
            self._copies = np.frombuffer(copies, np.uint16).copy()
            self._scaled_ms = scaled_ms
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"topics: not a saved state: {type(error).__name__}: {error}") from None
        return self


def text_bytes(time_ms: int | None, text: str, partition: str = "", id: str = "") -> bytes:
    return _packed((time_ms, text, partition, id))


def assignments_of(data: bytes) -> list[Assignment]:
    return [Assignment(*values) for values in msgpack.unpackb(data, unicode_errors="surrogatepass")]


def shard_event_of(data: bytes) -> ShardEvent:
    shard, values, timed = orjson.loads(data)
    values["texts"] = tuple(values["texts"])
    return ShardEvent(shard, TopicEvent(**values), timed)


class TopicStage:
    """Topics of the texts of one shard. Blocks while a batch is embedded.

    Batches of `BLOCK` texts are cut by text number; `close` processes an incomplete one. Outputs are of kind
    `FOUND` or `ASSIGNED`. They depend only on the texts and their order, except that `close` affects
    floating-point rounding.
    """

    def __init__(self, settings: TopicSettings, shard: int, embed: Embed, width: int) -> None:
        self._settings = settings
        self._shard = shard
        self._embed = embed
        self._width = width
        self._finder = TopicFinder(settings, width)
        self._waiting: list[tuple[int, str, str, str, int | None]] = []
        self._count = 0
        self._last_ms = 0
        self._timed = True

    def due_ms(self, data: bytes) -> int | None:
        return None

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        time_ms, text, partition, id = msgpack.unpackb(data, unicode_errors="surrogatepass")
        if not self._count:
            self._timed = time_ms is not None
        self._last_ms = self._last_ms + UNTIMED_STEP_MS if time_ms is None else time_ms
        self._waiting.append((self._last_ms, text, partition, id, time_ms))
        self._count += 1
        return self.close(0) if self._count % BLOCK == 0 else []

    def close(self, time_ms: int) -> list[tuple[int, bytes]]:
        if not self._waiting:
            return []
        times, texts, partitions, ids, given_ms = zip(*self._waiting, strict=True)
        self._waiting = []
        found = self._finder.add(texts, self._embed(texts), times, partitions)
        topics = [None if topic == NO_TOPIC else topic_name(self._shard, topic) for topic in found.topics]
        assigned = _packed(list(zip(ids, topics, found.confidences, given_ms, strict=True)))
        return [(ASSIGNED, assigned), *self._outputs(found.events)]

    def finish(self) -> list[tuple[int, bytes]]:
        return self.close(0) + self._outputs(self._finder.finish())

    def open_now(self) -> int:
        return self._finder.open_now()

    def _outputs(self, events: Iterable[TopicEvent]) -> list[tuple[int, bytes]]:
        return [(FOUND, _event_bytes(ShardEvent(self._shard, event, self._timed))) for event in events]

    def to_bytes(self) -> bytes:
        counts = (self._count, self._last_ms, self._timed)
        return _packed((self._width, self._finder.to_bytes(), self._waiting, *counts))

    def restore(self, data: bytes) -> None:
        try:
            width, finder, waiting, count, last_ms, timed = msgpack.unpackb(
                data, unicode_errors="surrogatepass"
            )
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"topics: not a saved state: {type(error).__name__}: {error}") from None
        if width != self._width:
            raise MalformedRecord(
                f"topics: the state has vectors of {width} numbers, but the embedding has {self._width}; "
                f"use the embedding that the job started with, or start over"
            )
        self._finder = TopicFinder.from_bytes(finder, self._settings)
        self._waiting = [tuple(values) for values in waiting]
        self._count, self._last_ms, self._timed = count, last_ms, timed


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _event_bytes(found: ShardEvent) -> bytes:
    event = found.event
    values = {f.name: getattr(event, f.name) for f in fields(TopicEvent)}
    values["texts"] = [text.encode("utf-8", "replace").decode() for text in event.texts]
    return orjson.dumps([found.shard, values, found.timed])
