"""Emerging topics: short texts clustered as they come, one pass, bounded state.

A text is a vector of two parts of stated weight: its meaning (a sentence embedding) and its words
(`Lexicon`). It joins the cluster with the nearest centre or founds one (`Centres`). Every `review_every`
texts, clusters that have grown alike are merged. A cluster is a candidate until it has `birth_texts` texts;
then a topic is born. A candidate that waits too long folds into the nearest topic. All that is kept is
bounded, whatever comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import msgpack
import numpy as np
import numpy.typing as npt

from forebay.detect.centres import Centres
from forebay.detect.lexicon import TABLE, Lexicon
from forebay.detect.rates import EventClock, Pace, ratio, rise
from forebay.detect.words import Keys
from forebay.errors import MalformedRecord, SettingError

Floats = npt.NDArray[np.float32]

BLOCK = 64
"""Texts that are placed with one matrix product; word weights settle between blocks."""
SAMPLE_CHARS = 280
SAMPLES = 5
NO_TOPIC = -1
VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How topics are found. Similarities are cosines; one setting serves all measured data sets."""

    join: float = 0.33
    """Least similarity of a text with the centre of the cluster it joins."""
    merge: float = 0.58
    """Least similarity of two centres that are merged."""
    words: float = 0.4
    """Weight of the words against the embedding, 0 to 1."""
    word_places: int = 1024
    """Places of the word vectors: fewer mix more words, more cost more."""
    birth_texts: int = 8
    patience_texts: int = 10_000
    """A candidate folds when so many texts of the stream have passed since its last."""
    review_every: int = 512
    max_clusters: int = 2048
    half_life_s: float = 86_400.0
    """Older texts weigh less in a centre, and make less history."""
    idle_s: float = 172_800.0
    """A topic without a text for so long dies."""
    recent_s: float = 600.0
    """Half-life of what counts as now where a topic's rate is compared with its history."""
    emerging_nats: float = 12.0
    """Least evidence that a topic's share of the stream has risen (`rates.rise`)."""
    emerging_ratio: float = 2.0
    moved: float = 0.8
    """A topic has moved when its centre's cosine with where it was last told of is below this."""

    def __post_init__(self) -> None:
        for name in ("join", "merge", "words", "moved"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"topics: {name} is {getattr(self, name)}; expected a number from 0 to 1")
        if self.review_every < BLOCK or self.review_every % BLOCK:
            raise SettingError(f"topics: review_every is {self.review_every}; expected a multiple of {BLOCK}")
        if self.max_clusters < 4 * BLOCK:
            raise SettingError(f"topics: max_clusters is {self.max_clusters}; expected {4 * BLOCK} or more")


Kind = Literal["born", "emerging", "moved", "merged", "folded", "died"]


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """What happened to a topic.

    `born`: a candidate has become a topic. `emerging`: its share of the stream has risen beyond its own
    history, by `score` nats. `moved`: its centre is no longer where it was last told of. `merged`: it goes on
    as topic `into`. `folded`: a candidate that never became a topic; its texts belong to `into`, or to no
    topic. `died`: nothing came for too long, or its place was needed. `texts` are samples: near the centre,
    and the latest.
    """

    kind: Kind
    topic: int
    time_ms: int
    size: int
    into: int | None = None
    score: float = 0.0
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a batch gave: a topic's number per text (`NO_TOPIC` for texts without words), and events."""

    topics: tuple[int, ...]
    events: tuple[TopicEvent, ...]


@dataclass(slots=True)
class _Cluster:
    """What is known of a live cluster beside its centre."""

    first_ms: int
    last_ms: int
    pace: Pace = field(default_factory=Pace)
    born: bool = False
    emerging: bool = False
    told: bytes = b""
    near: list[tuple[float, str]] = field(default_factory=list)
    latest: list[str] = field(default_factory=list)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(text for _, text in self.near), *reversed(self.latest)]))

    def sample(self, similarity: float, text: str) -> None:
        text = text[:SAMPLE_CHARS]
        if all(text != known for _, known in self.near):
            self.near.append((similarity, text))
            if len(self.near) > SAMPLES:
                self.near.remove(min(self.near))
        self.latest = [*self.latest[-1:], text]


class TopicFinder:
    """Topics of one stream. Not thread-safe. The same texts in the same calls give the same topics."""

    def __init__(self, settings: TopicSettings, embedding_width: int) -> None:
        self.settings = settings
        self._width = embedding_width
        self._lexicon = Lexicon(settings.word_places)
        self._centres = Centres(embedding_width + settings.word_places)
        self._copies = np.zeros(TABLE, np.uint16)
        self._clusters: dict[int, _Cluster] = {}
        self._clock = EventClock()
        self._stream = Pace()
        self._count = 0
        self._next = 0
        self._scaled_ms: int | None = None

    @property
    def live(self) -> int:
        """Clusters held now, candidates included."""
        return self._centres.live

    def add(self, texts: Sequence[str], vectors: Floats, times_ms: Sequence[int]) -> Found:
        """Place texts in their order. `vectors`: their embeddings, of length 1, a row each.

        Blocks for about 0.1 ms per text. Raises `ValueError` where the three do not fit together.
        """
        if vectors.shape != (len(texts), self._width) or len(times_ms) != len(texts):
            raise ValueError(f"{len(texts)} texts, {len(times_ms)} times, vectors of shape {vectors.shape}")
        topics: list[int] = []
        events: list[TopicEvent] = []
        start = 0
        while start < len(texts):
            end = min(len(texts), start + BLOCK - self._count % BLOCK)
            self._place(texts[start:end], vectors[start:end], times_ms[start:end], topics, events)
            self._count += end - start
            if self._count % BLOCK == 0:
                self._lexicon.settle()
                crowded = self._centres.live > self.settings.max_clusters - BLOCK
                if crowded or self._count % self.settings.review_every == 0:
                    self._review(events)
            start = end
        return Found(tuple(topics), tuple(events))

    def finish(self) -> tuple[TopicEvent, ...]:
        """At a stream's end: a last review in which no candidate is waited for."""
        events: list[TopicEvent] = []
        self._merge(events, since=0)
        self._fold(events, patience=-1)
        return tuple(events)

    def _place(
        self,
        texts: Sequence[str],
        embedded: Floats,
        times_ms: Sequence[int],
        topics: list[int],
        events: list[TopicEvent],
    ) -> None:
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
        first = len(topics)
        topics += [NO_TOPIC] * len(texts)
        clocks = [self._clock.see(time_ms) for time_ms in times_ms]
        short_ms, long_ms = settings.recent_s * 1000, settings.half_life_s * 1000

        def name() -> int:
            self._next += 1
            return self._next - 1

        def joined(index: int, row: int, similarity: float) -> None:
            topic = int(self._centres.ids[row])
            size = int(self._centres.texts[row])
            now_ms = clocks[index]
            topics[first + index] = topic
            cluster = self._clusters.get(topic)
            if cluster is None:
                cluster = self._clusters[topic] = _Cluster(now_ms, now_ms)
            cluster.last_ms = max(cluster.last_ms, now_ms)
            cluster.pace.add(1, now_ms, short_ms, long_ms)
            self._stream.add(1, now_ms, short_ms, long_ms)
            cluster.sample(similarity, texts[index])
            self._lexicon.learn(keys[index], weights[index] / size**0.5)
            if size >= settings.birth_texts and not cluster.born:
                self._bear(topic, row, cluster, now_ms, events)

        self._centres.assign(vectors, weights, self._count, threshold=settings.join, name=name, joined=joined)

    def _copy(self, keys: Keys) -> int:
        """How often texts of exactly these words have come, this time included."""
        slot = int(np.bitwise_xor.reduce(keys * np.uint32(2654435761))) % TABLE if len(keys) else 0
        if self._copies[slot] < np.iinfo(np.uint16).max:
            self._copies[slot] += 1
        return int(self._copies[slot])

    def _bear(self, topic: int, row: int, cluster: _Cluster, now_ms: int, events: list[TopicEvent]) -> None:
        cluster.born = True
        cluster.told = self._centres.directions([row])[0].astype(np.float16).tobytes()
        size = int(self._centres.texts[row])
        events.append(TopicEvent("born", topic, now_ms, size, texts=cluster.texts))

    def _review(self, events: list[TopicEvent]) -> None:
        settings = self.settings
        since = self._count - settings.review_every
        self._merge(events, since)
        self._fold(events, settings.patience_texts)
        self._end(events)
        now_ms = self._clock.now_ms
        for row in np.flatnonzero(self._centres.last >= since):
            topic = int(self._centres.ids[row])
            cluster = self._clusters[topic]
            if cluster.born:
                self._tell(topic, int(row), cluster, now_ms, events)
        self._age(now_ms)

    def _tell(self, topic: int, row: int, cluster: _Cluster, now_ms: int, events: list[TopicEvent]) -> None:
        """Whether the topic emerges, and whether it has moved."""
        settings = self.settings
        short_ms, long_ms = settings.recent_s * 1000, settings.half_life_s * 1000
        cluster.pace.add(0, now_ms, short_ms, long_ms)
        self._stream.add(0, now_ms, short_ms, long_ms)
        mine, whole = cluster.pace, self._stream
        counts = mine.recent, whole.recent, mine.history, whole.history
        score, times = float(rise(*counts)), ratio(*counts)
        size = int(self._centres.texts[row])
        if not cluster.emerging and score >= settings.emerging_nats and times >= settings.emerging_ratio:
            cluster.emerging = True
            events.append(TopicEvent("emerging", topic, now_ms, size, score=score, texts=cluster.texts))
        elif cluster.emerging and times < settings.emerging_ratio**0.5:
            cluster.emerging = False
        centre = self._centres.directions([row])[0]
        if float(centre @ np.frombuffer(cluster.told, np.float16).astype(np.float32)) < settings.moved:
            cluster.told = centre.astype(np.float16).tobytes()
            events.append(TopicEvent("moved", topic, now_ms, size, texts=cluster.texts))

    def _merge(self, events: list[TopicEvent], since: int) -> None:
        centres, now_ms = self._centres, self._clock.now_ms

        def merged(kept: int, gone: int) -> None:
            topic, other = int(centres.ids[kept]), int(centres.ids[gone])
            mine, theirs = self._clusters[topic], self._clusters.pop(other)
            sizes = int(centres.texts[kept]), int(centres.texts[gone])
            kind: Kind = "merged" if theirs.born else "folded"
            events.append(TopicEvent(kind, other, now_ms, sizes[1], into=topic, texts=theirs.texts))
            mine.first_ms = min(mine.first_ms, theirs.first_ms)
            mine.last_ms = max(mine.last_ms, theirs.last_ms)
            short_ms, long_ms = self.settings.recent_s * 1000, self.settings.half_life_s * 1000
            for pace in (mine.pace, theirs.pace):
                pace.add(0, now_ms, short_ms, long_ms)
            mine.pace.recent += theirs.pace.recent
            mine.pace.all += theirs.pace.all
            if sum(sizes) >= self.settings.birth_texts and not mine.born:
                mine.born = True
                mine.told = centres.directions([kept])[0].astype(np.float16).tobytes()
                events.append(TopicEvent("born", topic, now_ms, sum(sizes), texts=mine.texts))

        centres.merge(self.settings.merge, since, merged)

    def _fold(self, events: list[TopicEvent], patience: int) -> None:
        """Candidates that wait too long, and the longest waiting where room is needed, go to the nearest
        topic.
        """
        centres, settings = self._centres, self.settings
        born = np.array([self._clusters[int(topic)].born for topic in centres.ids], bool)
        waiting = np.flatnonzero(~born)
        stale = centres.last[waiting] < self._count - patience
        excess = centres.live - (settings.max_clusters - 2 * BLOCK)
        if excess > 0:
            stale[np.argsort(centres.last[waiting], kind="stable")[:excess]] = True
        rows = waiting[stale]
        if not len(rows):
            return
        homes = np.flatnonzero(born)
        nearest: list[int | None] = [None] * len(rows)
        if len(homes):
            cosines = centres.directions(rows) @ centres.directions(homes).T
            nearest = [int(centres.ids[homes[each]]) for each in cosines.argmax(axis=1)]
        for row, into in zip(rows, nearest, strict=True):
            topic = int(centres.ids[row])
            cluster = self._clusters.pop(topic)
            size = int(centres.texts[row])
            events.append(
                TopicEvent("folded", topic, self._clock.now_ms, size, into=into, texts=cluster.texts)
            )
        kept = np.ones(centres.live, bool)
        kept[rows] = False
        centres.keep(kept)

    def _end(self, events: list[TopicEvent]) -> None:
        """Topics with nothing new for too long die, and the longest idle where room is needed."""
        centres, now_ms = self._centres, self._clock.now_ms
        idle_ms = self.settings.idle_s * 1000
        kept = np.array(
            [now_ms - self._clusters[int(topic)].last_ms <= idle_ms for topic in centres.ids], bool
        )
        excess = int(kept.sum()) - (self.settings.max_clusters - 2 * BLOCK)
        if excess > 0:
            order = np.argsort(np.where(kept, centres.last, np.iinfo(np.int64).max), kind="stable")
            kept[order[:excess]] = False
        for row in np.flatnonzero(~kept):
            topic = int(centres.ids[row])
            cluster = self._clusters.pop(topic)
            kind: Kind = "died" if cluster.born else "folded"
            events.append(TopicEvent(kind, topic, now_ms, int(centres.texts[row]), texts=cluster.texts))
        centres.keep(kept)

    def _age(self, now_ms: int) -> None:
        """Old texts weigh less: sums shrink with time, word counts and copies with texts."""
        if self._scaled_ms is not None and now_ms > self._scaled_ms:
            self._centres.scale(
                0.5 ** min((now_ms - self._scaled_ms) / (self.settings.half_life_s * 1000), 20)
            )
        self._scaled_ms = now_ms
        self._lexicon.fade(0.5 ** (self.settings.review_every / 100_000))
        if self._count % (self.settings.review_every * 64) == 0:
            self._copies >>= 1

    def to_bytes(self) -> bytes:
        """The whole state. `from_bytes` gives a finder that goes on exactly as this one would."""
        clusters = [
            [topic, *(getattr(c, f.name) for f in fields(_Cluster) if f.name != "pace"),
             [c.pace.recent, c.pace.all, c.pace.at_ms]]
            for topic, c in self._clusters.items()
        ]  # fmt: skip
        document = {
            "version": VERSION,
            "settings": [getattr(self.settings, f.name) for f in fields(TopicSettings)],
            "width": self._width,
            "lexicon": self._lexicon.state(),
            "centres": self._centres.state(),
            "copies": self._copies.tobytes(),
            "clusters": clusters,
            "clock": self._clock.state(),
            "stream": [self._stream.recent, self._stream.all, self._stream.at_ms],
            "count": self._count,
            "next": self._next,
            "scaled_ms": self._scaled_ms,
        }
        packed: bytes = msgpack.packb(document, unicode_errors="surrogatepass")
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> TopicFinder:
        """What `to_bytes` gave. Raises `MalformedRecord` for other bytes, or those of another version."""
        try:
            document = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
            if document["version"] != VERSION:
                raise MalformedRecord(
                    f"topics: the state is of version {document['version']}; expected {VERSION}"
                )
            self = cls(TopicSettings(*document["settings"]), document["width"])
            self._lexicon = Lexicon.restore(document["lexicon"])
            self._centres = Centres.restore(document["centres"])
            self._copies = np.frombuffer(document["copies"], np.uint16).copy()
            self._clock = EventClock.restore(document["clock"])
            self._stream = Pace(*document["stream"])
            self._count, self._next = document["count"], document["next"]
            self._scaled_ms = document["scaled_ms"]
            names = [f.name for f in fields(_Cluster) if f.name != "pace"]
            for topic, *values, pace in document["clusters"]:
                cluster = _Cluster(**dict(zip(names, values, strict=True)), pace=Pace(*pace))
                cluster.near = [(similarity, text) for similarity, text in cluster.near]
                self._clusters[topic] = cluster
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"topics: not a state: {type(error).__name__}: {error}") from None
        return self
