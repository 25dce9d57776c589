"""Picks a few diverse posts that represent many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

MAX_SAMPLES = 12
SAMPLE_CHARS = 280
KEPT_FIRST = 4
RELEVANCE = 0.6
"""Weight of similarity to all posts, against dissimilarity to those picked."""


def keep(known: Sequence[str], new: Sequence[str]) -> list[str]:
    texts = list(dict.fromkeys([*known, *(text[:SAMPLE_CHARS] for text in new)]))
    if len(texts) <= MAX_SAMPLES:
        return texts
    return texts[:KEPT_FIRST] + texts[KEPT_FIRST - MAX_SAMPLES :]


def pick(texts: Sequence[str], count: int) -> list[str]:
    """The most representative posts, by maximal marginal relevance over words (Carbonell and Goldstein 1998).

    Deterministic. Copies count once.
    """
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


Keys = npt.NDArray[np.uint32]

MAX_CHARS = 4096
MAX_WORDS = 128
MAX_WORD_CHARS = 48

# Runs of letters and digits; emoji and Chinese or Japanese characters are words of their own.
WORD = re.compile(
    r"[\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003134f]"
    r"|(?:(?![\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003134f])\w)+"
)


def distinct_words(text: str) -> list[str]:
    found = dict.fromkeys(word[:MAX_WORD_CHARS] for word in WORD.findall(text[:MAX_CHARS].lower()))
    return list(found)[:MAX_WORDS]


def keys_of(words: Iterable[str]) -> Keys:
    """32-bit keys of words, stable across processes and saved states."""
    codes = np.fromiter([crc32(word.encode("utf-8", "surrogatepass")) for word in words], np.uint32)
    # The finalizer of MurmurHash3 spreads the bits; otherwise similar words have similar checksums.
    codes ^= codes >> np.uint32(16)
    codes *= np.uint32(0x85EBCA6B)
    codes ^= codes >> np.uint32(13)
    codes *= np.uint32(0xC2B2AE35)
    return codes ^ (codes >> np.uint32(16))
