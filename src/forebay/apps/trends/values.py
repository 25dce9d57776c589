"""What the stages of trend detection hand to each other, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay.detect.samples import keys_of


@dataclass(frozen=True, slots=True)
class TrendSettings:
    """How trends are found."""

    tick_s: float = 5.0
    windows_s: tuple[float, ...] = (15.0, 60.0, 240.0)
    """Half-lives of what counts as now."""
    history_s: float = 7200.0
    """Half-life of what counts as the past."""
    least_nats: float = 15.0
    """Least evidence: below one false trend per million independent tests."""
    least_ratio: float = 2.5
    """Least ratio of a term's share now to that of its past."""
    least_posts: float = 5.0
    """Least decayed number of posts in a window."""
    together: float = 0.3
    """Least share of common posts (Jaccard) at which two rising terms are one trend."""
    end_share: float = 0.2
    """A trend ends when its excess has fallen below this share of the peak's."""
    end_s: float = 60.0
    """… and stayed there for so long."""
    width_bits: int = 18
    max_warm: int = 4096
    max_trends: int = 512
    max_terms: int = 24
    """Terms that are kept of one trend."""
    changed_ratio: float = 2.0
    """A trend has changed when its rate is this many times that at which it was last told of, or fewer than
    one in this many of its terms were told."""
    changed_s: float = 30.0
    """… at least so long after it was last told of."""

    @property
    def tick_ms(self) -> int:
        return int(self.tick_s * 1000)


Entry = tuple[int, int, int]
"""A term in a tick: how many posts, the number of the first and of the last."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What came in one tick: posts in all; per term how many, and the number of the first and the last post.

    Posts are numbered by their counter, so that two terms with the same first and last posts came together.
    `texts` are some of those posts.
    """

    tick: int
    posts: int
    terms: dict[str, Entry]
    texts: dict[int, str] = field(default_factory=dict)

    def split(self, shards: int) -> list[Counts]:
        """The counts of each shard of the terms; every one knows of all posts."""
        names = list(self.terms)
        parts: list[dict[str, Entry]] = [{} for _ in range(shards)]
        for term, shard in zip(names, (keys_of(names) % shards).tolist(), strict=True):
            parts[shard][term] = self.terms[term]
        return [Counts(self.tick, self.posts, terms, self._texts_of(terms)) for terms in parts]

    def _texts_of(self, terms: dict[str, Entry]) -> dict[int, str]:
        numbers = (number for entry in terms.values() for number in entry[1:])
        return {number: self.texts[number] for number in numbers if number in self.texts}


def joined(one: Entry, other: Entry) -> Entry:
    """Two entries of one term as one: the posts together, the least first and the greatest last number."""
    return one[0] + other[0], min(one[1], other[1]), max(one[2], other[2])


def added(parts: Iterable[Counts]) -> Counts:
    """Counts of one tick by several counters as one; their order does not matter."""
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
    """That a term rises: the evidence, its shares of the posts before and now, since when."""

    score: float
    base: float
    share: float
    onset_ms: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A term in a tick. `counts`: its decayed counts, one per window and then its history's."""

    entry: Entry
    counts: tuple[float, ...]
    rise: Rise | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a tick had to say of the terms that rise, or did lately. `texts`: posts by their numbers."""

    tick: int
    posts_per_s: float
    terms: Mapping[str, Seen]
    texts: Mapping[int, str] = field(default_factory=dict)


def whole(reports: Iterable[Report]) -> Report:
    """The reports of one tick over all shards of terms as one; their order does not matter."""
    parts = list(reports)
    terms = {term: seen for part in parts for term, seen in part.terms.items()}
    texts = {number: text for part in parts for number, text in part.texts.items()}
    return Report(
        parts[0].tick,
        max(part.posts_per_s for part in parts),
        dict(sorted(terms.items())),
        dict(sorted(texts.items())),
    )


TrendKind = Literal["born", "changed", "peaked", "ended", "merged"]


@dataclass(frozen=True, slots=True)
class TrendEvent:
    """What happened to a trend.

    `onset_ms` is an estimate, `time_ms` the end of the tick in which this was seen, `rate_per_s` the smoothed
    rate of posts then, at `peaked` and `ended` that of the peak. `posts` are numbers of posts with it, as its
    counter numbered them; `texts` are some of them, representative and unlike each other, where texts were
    given. `changed`: it is much greater, or about more, than when it was last told of. `merged`: it goes on
    as trend `into`.
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
