"""The words of a text, as the detectors count them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from zlib import crc32

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint32]

MAX_CHARS = 4096
"""No more of a text is looked at."""
MAX_WORDS = 128
"""No more distinct words of a text are counted."""
MAX_WORD_CHARS = 48
"""Longer words are cut."""

# Runs of letters and digits; signs that stand for something (emoji) and Chinese or Japanese characters alone.
WORD = re.compile(
    r"[\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003134f]"
    r"|(?:(?![\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003134f])\w)+"
)


def distinct_words(text: str) -> list[str]:
    """The distinct words of a text in the order of their first place, lower-cased; bounded as above."""
    found = dict.fromkeys(word[:MAX_WORD_CHARS] for word in WORD.findall(text[:MAX_CHARS].lower()))
    return list(found)[:MAX_WORDS]


def keys_of(words: Iterable[str]) -> Keys:
    """32 bits that name each word: the same in every process, and in state that was written by another."""
    codes = np.fromiter([crc32(word.encode("utf-8", "surrogatepass")) for word in words], np.uint32)
    # The finalizer of MurmurHash3 spreads the bits: sums of similar words are similar.
    codes ^= codes >> np.uint32(16)
    codes *= np.uint32(0x85EBCA6B)
    codes ^= codes >> np.uint32(13)
    codes *= np.uint32(0xC2B2AE35)
    return codes ^ (codes >> np.uint32(16))
