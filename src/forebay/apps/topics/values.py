"""Settings and events of topic detection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forebay.apps.trends.names import name_of
from forebay.apps.trends.terms import terms_of
from forebay.errors import SettingError

BLOCK = 64
"""Texts assigned with one matrix product; word weights settle between blocks."""
NO_TOPIC = -1
MAX_LABEL_CHARS = 60
UNTIMED_STEP_MS = 1000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Similarities are cosines. The defaults suit all measured data sets."""

    join: float = 0.48
    """Minimum similarity to a cluster's centre, plus the cluster's bonus for recency."""
    recency: float = 0.2
    """The bonus of the cluster that the last text joined."""
    recency_texts: float = 700.0
    """The bonus is halved after this many texts without one of the cluster's own."""
    merge: float = 0.61
    """Minimum similarity of two centres that are merged."""
    words: float = 0.4
    word_places: int = 1024
    """Buckets of word vectors: fewer means more collisions, more means more time."""
    birth_texts: int = 8
    patience_texts: int = 10_000
    """A candidate is folded after this many texts without one of its own."""
    review_every: int = 512
    max_clusters: int = 2048
    half_life_s: float = 86_400.0
    """Half-life of a text's weight in its centre and in the topic's history."""
    idle_s: float = 172_800.0
    recent_s: float = 600.0
    emerging_nats: float = 12.0
    """Minimum evidence of a rising share of the stream (`rates.rise`)."""
    emerging_ratio: float = 2.0
    moved: float = 0.8

    def __post_init__(self) -> None:
        for name in ("join", "recency", "merge", "words", "moved"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"topics: {name} is {getattr(self, name)}; expected a number from 0 to 1")
        if not self.recency_texts > 0:
            raise SettingError(f"topics: recency_texts is {self.recency_texts}; expected more than 0")
        if self.review_every < BLOCK or self.review_every % BLOCK:
            raise SettingError(f"topics: review_every is {self.review_every}; expected a multiple of {BLOCK}")
        if self.max_clusters < 4 * BLOCK:
            raise SettingError(f"topics: max_clusters is {self.max_clusters}; expected {4 * BLOCK} or more")


Kind = Literal["born", "grown", "emerging", "moved", "merged", "folded", "died"]


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """An event of a topic.

    `born`: a candidate became a topic. `grown`: twice the texts of its last such event, or any growth at the
    end of the stream. `emerging`: its share rose above its own history, by `score` nats. `moved`: its centre
    left the one of its last event. `merged`: continues as topic `into`. `folded`: a candidate that never
    became a topic; its texts belong to `into`, or to no topic. `died`: idle for too long, or its place was
    needed. `texts`: nearest the centre, and the latest.
    """

    kind: Kind
    topic: int
    time_ms: int
    size: int
    into: int | None = None
    score: float = 0.0
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundTopics:
    """`topics` has one number per text (`NO_TOPIC` if it has no words); `confidences` as in `Assignment`."""

    topics: tuple[int, ...]
    events: tuple[TopicEvent, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The topic of a text when it arrived; None if it has no words. `id` and `time_ms` are the text's.

    `confidence`: the cosine of the text and the topic's centre, 0 if the text founded the topic.
    """

    id: str
    topic: str | None
    confidence: float
    time_ms: int | None


@dataclass(frozen=True, slots=True)
class ShardEvent:
    """Shard and number together identify a topic. If not `timed`, times count `UNTIMED_STEP_MS` per text."""

    shard: int
    event: TopicEvent
    timed: bool = True

    @property
    def name(self) -> str:
        return topic_name(self.shard, self.event.topic)


def topic_name(shard: int, topic: int) -> str:
    return f"{shard}-{topic}" if shard else str(topic)


def phrase_of(texts: Sequence[str]) -> str:
    """A phrase or word that several texts share, else the begin of the first.

    Empty if no text has a letter or digit.
    """
    terms = Counter(term for text in texts for term in terms_of(text))
    shared = {term: number for term, number in terms.items() if number > 1}
    found = name_of(shared, texts) if shared else None
    lines = (" ".join(text.split()) for text in texts if any(map(str.isalnum, text)))
    return found or next(lines, "")[:MAX_LABEL_CHARS]
