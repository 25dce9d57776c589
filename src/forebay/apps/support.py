"""Checks whether texts support what a model wrote about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay.apps.trends.names import COMMON
from forebay.apps.trends.terms import STOPWORDS

WORD = re.compile(r"[#@]?\w+(?:[-.,:–]\d+)*")
SENTENCE = re.compile(r"(?<=[.!?…:])\s+")
QUOTE = re.compile(r"[\"“„«]([^\"“”„«»]{3,})[\"”“»]")
LOOP = re.compile(r"(.{1,60}?)\1{3,}")
WORDS = re.compile(r"\w+")
MIN_LOOP_SHARE = 0.5
MIN_LOOP_CHARS = 12


def unsupported(line: str, texts: Iterable[str]) -> list[str]:
    """The names, numbers and quotes of `line` that are in none of the texts, in lower case.

    Names are words with a capital inside a sentence, hashtags and mentions. Numbers begin with a digit.
    """
    found = "\n".join(texts).lower()
    missing = [name for name in _names(line) if not re.search(rf"(?<!\d){re.escape(name)}(?!\d)", found)]
    words = _words(found)
    quotes = [quote.lower() for quote in QUOTE.findall(line) if _words(quote) not in words]
    return list(dict.fromkeys([*missing, *quotes]))


def loops(line: str) -> bool:
    """Whether half of the line or more repeats one piece, at least four times in a row."""
    words = _words(line)
    least = max(MIN_LOOP_CHARS, MIN_LOOP_SHARE * len(words))
    return any(len(each[0]) >= least for each in LOOP.finditer(words))


def _names(line: str) -> list[str]:
    words = WORD.findall(line)
    # If most words of a line begin with a capital, a capital does not mark a name.
    titled = sum(word[0].isupper() for word in words) > len(words) / 2
    found = [word for word in words if word[0] in "#@" or word[0].isdigit()]
    if not titled:
        for sentence in SENTENCE.split(line):
            found += [word for word in WORD.findall(sentence)[1:] if word[0].isupper()]
    return [word.lower().lstrip("#@") for word in found if word.lower() not in STOPWORDS | COMMON]


def _words(text: str) -> str:
    return f" {' '.join(WORDS.findall(text.lower()))} "
