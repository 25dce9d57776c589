"""The life cycle of topics: birth, growth, emergence, drift, merge and death of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from forebay.apps.samples import SAMPLE_CHARS
from forebay.apps.topics.centres import Centres
from forebay.apps.topics.values import BLOCK, Kind, TopicEvent, TopicSettings
from forebay.stateful.rates import ArrivalPace, SlowestClock, ratio, rise

SAMPLES = 5


@dataclass(slots=True)
class Cluster:
    first_ms: int
    last_ms: int
    pace: ArrivalPace = field(default_factory=ArrivalPace)
    born: bool = False
    emerging: bool = False
    reported: bytes = b""
    reported_size: int = 0
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


class TopicLives:
    def __init__(self, settings: TopicSettings, width: int) -> None:
        self.settings = settings
        self.centres = Centres(width, recency=settings.recency, recency_texts=settings.recency_texts)
        self.clusters: dict[int, Cluster] = {}
        self.clock = SlowestClock()
        self.count = 0
        self._stream = ArrivalPace()
        self._next = 0
        self._short_ms, self._long_ms = settings.recent_s * 1000, settings.half_life_s * 1000

    def name(self) -> int:
        self._next += 1
        return self._next - 1

    def join(self, row: int, similarity: float, text: str, now_ms: int, events: list[TopicEvent]) -> int:
        topic = int(self.centres.ids[row])
        cluster = self.clusters.get(topic)
        if cluster is None:
            cluster = self.clusters[topic] = Cluster(now_ms, now_ms)
        cluster.last_ms = max(cluster.last_ms, now_ms)
        cluster.pace.add(1, now_ms, self._short_ms, self._long_ms)
        self._stream.add(1, now_ms, self._short_ms, self._long_ms)
        cluster.sample(similarity, text)
        if int(self.centres.texts[row]) >= self.settings.birth_texts and not cluster.born:
            self._bear(topic, row, cluster, now_ms, events)
        return topic

    def review(self, events: list[TopicEvent]) -> None:
        since = self.count - self.settings.review_every
        self.merge(events, since)
        self.fold(events, self.settings.patience_texts)
        self._end(events)
        now_ms = self.clock.now_ms
        for row in np.flatnonzero(self.centres.last >= since):
            topic = int(self.centres.ids[row])
            cluster = self.clusters[topic]
            if cluster.born:
                self._add(topic, int(row), cluster, now_ms, events)

    def report_sizes(self, events: list[TopicEvent]) -> None:
        for row, size in enumerate(self.centres.texts.tolist()):
            topic = int(self.centres.ids[row])
            cluster = self.clusters[topic]
            if cluster.born and size > cluster.reported_size:
                cluster.reported_size = size
                events.append(TopicEvent("grown", topic, self.clock.now_ms, size, texts=cluster.texts))

    def _bear(self, topic: int, row: int, cluster: Cluster, now_ms: int, events: list[TopicEvent]) -> None:
        cluster.born = True
        cluster.reported = self.centres.directions([row])[0].astype(np.float16).tobytes()
        size = int(self.centres.texts[row])
        cluster.reported_size = size
        events.append(TopicEvent("born", topic, now_ms, size, texts=cluster.texts))

    def _add(self, topic: int, row: int, cluster: Cluster, now_ms: int, events: list[TopicEvent]) -> None:
        settings = self.settings
        cluster.pace.add(0, now_ms, self._short_ms, self._long_ms)
        self._stream.add(0, now_ms, self._short_ms, self._long_ms)
        mine, whole = cluster.pace, self._stream
        counts = mine.recent, whole.recent, mine.history, whole.history
        score, times = float(rise(*counts)), ratio(*counts)
        size = int(self.centres.texts[row])
        if size >= 2 * cluster.reported_size:
            cluster.reported_size = size
            events.append(TopicEvent("grown", topic, now_ms, size, texts=cluster.texts))
        if not cluster.emerging and score >= settings.emerging_nats and times >= settings.emerging_ratio:
            cluster.emerging = True
            events.append(TopicEvent("emerging", topic, now_ms, size, score=score, texts=cluster.texts))
        elif cluster.emerging and times < settings.emerging_ratio**0.5:
            cluster.emerging = False
        centre = self.centres.directions([row])[0]
        if float(centre @ np.frombuffer(cluster.reported, np.float16).astype(np.float32)) < settings.moved:
            cluster.reported = centre.astype(np.float16).tobytes()
            events.append(TopicEvent("moved", topic, now_ms, size, texts=cluster.texts))

    def merge(self, events: list[TopicEvent], since: int) -> None:
        centres, now_ms = self.centres, self.clock.now_ms

        def merged(kept: int, gone: int) -> None:
            topic, other = int(centres.ids[kept]), int(centres.ids[gone])
            mine, theirs = self.clusters[topic], self.clusters.pop(other)
            sizes = int(centres.texts[kept]), int(centres.texts[gone])
            kind: Kind = "merged" if theirs.born else "folded"
            events.append(TopicEvent(kind, other, now_ms, sizes[1], into=topic, texts=theirs.texts))
            mine.first_ms = min(mine.first_ms, theirs.first_ms)
            mine.last_ms = max(mine.last_ms, theirs.last_ms)
            for pace in (mine.pace, theirs.pace):
                pace.add(0, now_ms, self._short_ms, self._long_ms)
            mine.pace.recent += theirs.pace.recent
            mine.pace.all += theirs.pace.all
            if sum(sizes) >= self.settings.birth_texts and not mine.born:
                mine.born = True
                mine.reported_size = sum(sizes)
                mine.reported = centres.directions([kept])[0].astype(np.float16).tobytes()
                events.append(TopicEvent("born", topic, now_ms, sum(sizes), texts=mine.texts))

        centres.merge(self.settings.merge, since, merged)

    def fold(self, events: list[TopicEvent], patience: int) -> None:
        """Fold stale candidates into the nearest topic; if space is short, the oldest ones too."""
        centres, settings = self.centres, self.settings
        born = np.array([self.clusters[int(topic)].born for topic in centres.ids], bool)
        waiting = np.flatnonzero(~born)
        stale = centres.last[waiting] < self.count - patience
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
            cluster = self.clusters.pop(topic)
            size = int(centres.texts[row])
            events.append(
                TopicEvent("folded", topic, self.clock.now_ms, size, into=into, texts=cluster.texts)
            )
        kept = np.ones(centres.live, bool)
        kept[rows] = False
        centres.keep(kept)

    def _end(self, events: list[TopicEvent]) -> None:
        """End topics without new texts; if space is short, the longest idle ones too."""
        centres, now_ms = self.centres, self.clock.now_ms
        idle_ms = self.settings.idle_s * 1000
        for cluster in self.clusters.values():
            # A time that the clock later corrected must not keep a topic alive.
            cluster.last_ms = min(cluster.last_ms, now_ms)
        kept = np.array(
            [now_ms - self.clusters[int(topic)].last_ms <= idle_ms for topic in centres.ids], bool
        )
        excess = int(kept.sum()) - (self.settings.max_clusters - 2 * BLOCK)
        if excess > 0:
            order = np.argsort(np.where(kept, centres.last, np.iinfo(np.int64).max), kind="stable")
            kept[order[:excess]] = False
        for row in np.flatnonzero(~kept):
            topic = int(centres.ids[row])
            cluster = self.clusters.pop(topic)
            kind: Kind = "died" if cluster.born else "folded"
            events.append(TopicEvent(kind, topic, now_ms, int(centres.texts[row]), texts=cluster.texts))
        centres.keep(kept)

    def state(self) -> list[Any]:
        names = [f.name for f in fields(Cluster) if f.name != "pace"]
        clusters = [
            [topic, *(getattr(c, name) for name in names), [c.pace.recent, c.pace.all, c.pace.at_ms]]
            for topic, c in self.clusters.items()
        ]
        stream = [self._stream.recent, self._stream.all, self._stream.at_ms]
        return [self.centres.state(), clusters, self.clock.state(), stream, self.count, self._next]

    @classmethod
    def restore(cls, settings: TopicSettings, width: int, state: Sequence[Any]) -> TopicLives:
        centres, clusters, clock, stream, count, following = state
        self = cls(settings, width)
        self.centres = Centres.restore(centres)
        self.clock = SlowestClock.restore(clock)
        self._stream = ArrivalPace(*stream)
        self.count, self._next = count, following
        names = [f.name for f in fields(Cluster) if f.name != "pace"]
        for topic, *values, pace in clusters:
            cluster = Cluster(**dict(zip(names, values, strict=True)), pace=ArrivalPace(*pace))
            cluster.near = [(similarity, text) for similarity, text in cluster.near]
            self.clusters[topic] = cluster
        return self
