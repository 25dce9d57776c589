"""What topic detection is set to, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.errors import SettingError

BLOCK = 64
"""Texts that are placed with one matrix product; word weights settle between blocks."""
NO_TOPIC = -1
UNTIMED_STEP_MS = 1000
"""Without times, a text is taken to come a second after the one before it."""


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
    """End a topic after this long without a new text."""
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


Kind = Literal["born", "grown", "emerging", "moved", "merged", "folded", "died"]


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """What happened to a topic.

    `born`: a candidate has become a topic. `grown`: it has twice the texts that it had when that was last
    told, or more at the stream's end. `emerging`: its share of the stream has risen beyond its own
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
