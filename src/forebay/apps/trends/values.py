"""Values passed between the stages of trend detection, and their output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay.apps.samples import keys_of


@dataclass(frozen=True, slots=True)
class TrendSettings:
    tick_s: float = 5.0
    windows_s: tuple[float, ...] = (15.0, 60.0, 240.0)
    """Half-lives of the windows that count as now."""
    history_s: float = 7200.0
    """Half-life of the past."""
    least_nats: float = 15.0
    """Minimum evidence: below one false trend per million independent tests."""
    least_ratio: float = 2.5
    """Minimum ratio of a term's present share to its past share."""
    least_posts: float = 5.0
    """Minimum decayed number of posts in a window."""
    together: float = 0.3
    """Minimum share of common posts (Jaccard) for two rising terms to be one trend."""
    end_share: float = 0.2
    """A trend ends if its excess stays below this share of the peak's for `end_s`."""
    end_s: float = 60.0
    width_bits: int = 18
    max_warm: int = 4096
    max_trends: int = 512
    max_terms: int = 24
    changed_ratio: float = 2.0
    """A trend has changed if its rate or number of terms grew by this factor since its last event."""
    changed_s: float = 30.0
    return_s: float = 7200.0
    """An ended trend is remembered this long."""

    @property
    def tick_ms(self) -> int:
        return int(self.tick_s * 1000)


Entry = tuple[int, int, int]
"""A term in a tick: number of posts, first and last post number."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one tick: all posts; per term the number of posts, first and last post.

    Each counter numbers its posts, so two terms with the same first and last post appeared together. `texts`
    are some of those posts.
    """

    tick: int
    posts: int
    terms: dict[str, Entry]
    texts: dict[int, str] = field(default_factory=dict)

    def split(self, shards: int) -> list[Counts]:
        names = list(self.terms)
        parts: list[dict[str, Entry]] = [{} for _ in range(shards)]
        for term, shard in zip(names, (keys_of(names) % shards).tolist(), strict=True):
            parts[shard][term] = self.terms[term]
        return [Counts(self.tick, self.posts, terms, self._texts_of(terms)) for terms in parts]

    def _texts_of(self, terms: dict[str, Entry]) -> dict[int, str]:
        numbers = (number for entry in terms.values() for number in entry[1:])
        return {number: self.texts[number] for number in numbers if number in self.texts}


def joined(one: Entry, other: Entry) -> Entry:
    return one[0] + other[0], min(one[1], other[1]), max(one[2], other[2])


def added(parts: Iterable[Counts]) -> Counts:
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


@dataclass(frozen=True, slots=True)
class Rise:
    score: float
    base: float
    share: float
    onset_ms: int


@dataclass(frozen=True, slots=True)
class TermSeen:
    entry: Entry
    counts: tuple[float, ...]
    rise: Rise | None = None


@dataclass(frozen=True, slots=True)
class TickReport:
    tick: int
    posts_per_s: float
    terms: Mapping[str, TermSeen]
    texts: Mapping[int, str] = field(default_factory=dict)


def whole(reports: Iterable[TickReport]) -> TickReport:
    parts = list(reports)
    terms = {term: seen for part in parts for term, seen in part.terms.items()}
    texts = {number: text for part in parts for number, text in part.texts.items()}
    return TickReport(
        parts[0].tick,
        max(part.posts_per_s for part in parts),
        dict(sorted(terms.items())),
        dict(sorted(texts.items())),
    )


TrendKind = Literal["born", "returned", "changed", "peaked", "ended", "merged"]


@dataclass(frozen=True, slots=True)
class TrendEvent:
    """An event of a trend.

    `onset_ms` is an estimate; `time_ms` is the end of the tick; `rate_per_s` is the smoothed rate of posts,
    or the peak rate for `peaked` and `ended`. `posts` are numbers assigned by the counter; `texts` are a
    diverse sample. `changed`: much larger or broader than at its last event. `merged`: continues as trend
    `into`. `returned`: an ended trend rises again and continues its entry, with a new onset and peak. `score`
    is the highest evidence of this rise so far. `rank` orders the live trends by their present evidence; 1 is
    the strongest.
    """

    kind: TrendKind
    trend: int
    name: str
    terms: tuple[str, ...]
    time_ms: int
    onset_ms: int
    peak_ms: int
    rate_per_s: float
    base_per_s: float
    score: float
    into: int | None = None
    posts: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    now_per_s: float = 0.0
    peak_per_s: float = 0.0
    rank: int = 1
    rises: int = 1
