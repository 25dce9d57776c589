"""Extracts the terms of a post: words, phrases of two words, hashtags, links."""

from __future__ import annotations

import re

MAX_CHARS = 4096
MAX_WORDS = 64
MAX_TERM_CHARS = 96

# Links, hashtags and words; emoji and Chinese or Japanese characters are single-character terms.
LONE = r"\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003134f"
TERM = re.compile(rf"(?i:https?)://\S+|#\w+|[{LONE}]|[^\W{LONE}]+(?:['’][^\W{LONE}]+)?")

COMMON = (
    "a an and are as at be but by for from has have he her his i if in is it its me my not of on or our she"
    " so that the their they this to was we were will with you your"
)
STOPWORDS = frozenset(COMMON.split())


def terms_of(post: str) -> list[str]:
    """The distinct terms of a post, in order, in lower case (links keep their case and lose their scheme).

    A phrase is two adjacent words.
    """
    words = TERM.findall(post[:MAX_CHARS])[:MAX_WORDS]
    terms: dict[str, None] = {}
    before = ""
    for found in words:
        word = found.lower()
        if "://" in found:
            terms[found.partition("://")[2].rstrip(".,;:!?)…\"'/")[:MAX_TERM_CHARS]] = None
            before = ""
        elif word in STOPWORDS:
            before = ""
        else:
            terms[word[:MAX_TERM_CHARS]] = None
            if word[0] == "#":
                before = ""
                continue
            if before and before != word:
                terms[f"{before} {word}"[:MAX_TERM_CHARS]] = None
            before = word
    terms.pop("", None)
    return list(terms)


def same_term(one: str, other: str) -> bool:
    """Whether two terms differ only by `#`, spaces or an ending, like `#fightnight` and `fight night`."""
    short, long = sorted((_plain(one), _plain(other)), key=len)
    ending = long[len(short) :]
    return short == long or (
        len(short) >= 4 and long.startswith(short) and ending.isalpha() and len(ending) <= 2
    )


def forms(term: str) -> list[str]:
    plain = _plain(term)
    return [plain, *(plain[:-cut] for cut in (1, 2) if len(plain) - cut >= 4)]


def _plain(term: str) -> str:
    return "".join(c for c in term if c.isalnum()) or term


def part_of(one: str, other: str) -> bool:
    return one in other.split() or other in one.split()
