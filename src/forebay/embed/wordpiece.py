"""The tokenizer of BERT models: words, then the longest pieces that the vocabulary has (WordPiece)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

MAX_WORD_CHARS = 100
"""Longer words are unknown, as in BERT's own tokenizer."""
MAX_TEXT_CHARS = 8192
"""No more of a text is looked at: it bounds the work that a text can ask for."""
CACHED_WORDS = 65_536


class WordPiece:
    """Token ids of lower-cased texts, as BERT's uncased models expect them.

    `vocabulary` lists the pieces in the order of their ids. A text becomes `[CLS] … [SEP]`, at most
    `max_tokens` ids in all; what is beyond is cut. Texts are normalised as in Devlin et al. 2018: control
    characters go, accents are stripped, punctuation and Chinese characters stand alone.
    """

    def __init__(self, vocabulary: Sequence[str], *, max_tokens: int = 256) -> None:
        self._ids = {piece: index for index, piece in enumerate(vocabulary)}
        self._unknown = self._ids["[UNK]"]
        self._begin, self._end = self._ids["[CLS]"], self._ids["[SEP]"]
        self._max_pieces = max_tokens - 2
        self._pieces = lru_cache(CACHED_WORDS)(self._split)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. The empty text is `[CLS] [SEP]`."""
        ids: list[int] = [self._begin]
        for word in _words(text[:MAX_TEXT_CHARS]):
            ids += self._pieces(word)
            if len(ids) > self._max_pieces:
                break
        return [*ids[: self._max_pieces + 1], self._end]

    def _split(self, word: str) -> tuple[int, ...]:
        if len(word) > MAX_WORD_CHARS:
            return (self._unknown,)
        found: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._ids.get(prefix + word[start:end])
                if piece is not None:
                    found.append(piece)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = "".join(_spaced(character) for character in text)
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    else:
        text = text.lower()
    if text.replace(" ", "").isalnum():
        return text.split()
    return "".join(_apart(character) for character in text).split()


def _spaced(character: str) -> str:
    """Chinese characters are words of their own; control and format characters are nothing."""
    return f" {character} " if _is_chinese(ord(character)) else character


@lru_cache(4096)
def _apart(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if category[0] == "C" or character == "\ufffd":
        return ""
    code = ord(character)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return f" {character} " if ascii_mark or category[0] == "P" else character


CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _is_chinese(code: int) -> bool:
    return code >= 0x3400 and any(low <= code <= high for low, high in CHINESE)
