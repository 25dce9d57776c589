"""Which posts stand for many: representative ones that are unlike each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forebay.detect.words import distinct_words

MAX_SAMPLES = 12
SAMPLE_CHARS = 280
"""No more of a post is kept."""
KEPT_FIRST = 4
RELEVANCE = 0.6
"""Weight of being like the rest, against being unlike what is picked."""


def keep(known: Sequence[str], new: Sequence[str]) -> list[str]:
    """At most `MAX_SAMPLES` distinct posts: the first few, and the latest."""
    texts = list(dict.fromkeys([*known, *(text[:SAMPLE_CHARS] for text in new)]))
    if len(texts) <= MAX_SAMPLES:
        return texts
    return texts[:KEPT_FIRST] + texts[KEPT_FIRST - MAX_SAMPLES :]


def pick(texts: Sequence[str], count: int) -> list[str]:
    """The most telling posts, by maximal marginal relevance (Carbonell and Goldstein 1998) over their words:
    each next one has the most words that many posts have, and the fewest of those picked before. Copies
    count once. The same texts in the same order give the same."""
    left = list(dict.fromkeys(text for text in texts if text.strip()))
    words = {text: set(distinct_words(text)) for text in left}
    common = Counter(word for each in words.values() for word in each)
    total = len(left)
    picked: list[str] = []

    def worth(text: str) -> float:
        mine = words[text]
        relevance = sum(common[word] for word in mine) / (total * max(len(mine), 4))
        alike = max((_jaccard(mine, words[other]) for other in picked), default=0.0)
        return RELEVANCE * relevance - (1 - RELEVANCE) * alike

    while left and len(picked) < count:
        picked.append(max(left, key=worth))
        left.remove(picked[-1])
    return picked


def _jaccard(one: set[str], other: set[str]) -> float:
    both = len(one & other)
    return both / (len(one) + len(other) - both) if both else 0.0
