"""Names a trend: a phrase, a hashtag or a word, never a common word, a number or an emoji alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from forebay.apps.trends.terms import STOPWORDS, TERM

MAX_OF = 0.3
"""Minimum share of the most frequent term's posts for a phrase or hashtag that names the trend."""
MIN_SHARE = 0.25
MIN_TEXTS = 2
NUMBERS = re.compile(r"\d+(?: \d+)*")

COMMON_WORDS = """
about after again ain't all already also always am amazing another any anyone anything around ass away
awesome back bad been before being best better big bitch bro can can't come coming could couldn't crazy
damn dat day dead did didn't die do does doesn't doing don't done down dude easy else end enough even ever
every everyone everybody everything far feel few finally first fuck fucking gave get gets getting give go
goes going gone gonna good got gotta great guess guy guys had happy hard has hate haven't he'll he's hell
here here's hey him hope how i'd i'll i'm i've into isn't it's just keep knew know last late later least
less let let's life like literally live lmao lmfao lol long look looking looks lot love mad made make
makes making man many may maybe me mean men might mine more most much must near need needs never new next
nice night no nobody nothing now off oh ok okay old omg once one only other out over own part people
please pretty put rather really retweet right same saw say says see seen shit should show since some
someone something soon start started still stop such sure take takes tell than thank thanks that's them
then there there's these they're thing things think this those thought though thru till time today told
tomorrow tonight too try trying twitter two under until up us use used very wait wanna want wanted wants
watch watching way we're well went were weren't what what's whatever when where which while who who's
whole why won't work world would wow wtf y'all ya yall yeah year yes yet yo you're yours al algo así
aunque bien como con cuando de del donde el ella ellos en era eres es esa ese eso esta este esto está
están hasta hay la las le lo los más mi mientras muy nada ni nos o para pero por porque que qué quien se
ser si sí sin sobre solo son su sus también te tiene todo todos tu un una uno va vamos y au aux avec ce
ces cette dans des du elle est et il ils je les leur mais même moi mon ne nous ont ou par pas plus pour
qu'il qui sa sans ses sont sur toi ton très une vous aber als auch auf aus bei das dass dem den der doch
ein eine einen er für hat ich ihr im ist ja kein mal mit nach nicht noch nur oder schon sein sich sie sind
und von vor war wenn wie wir zu zum zur ao as da dele dos ela ele em essa isso já mas meu muito na não nas
num os pela pelo quando são seu sua tá tem uma você
"""
COMMON = frozenset(COMMON_WORDS.split())


def is_informative(term: str) -> bool:
    return any(_is_informative_word(word) for word in term.split(" "))


def name_of(terms: Mapping[str, int], texts: Sequence[str]) -> str | None:
    """The best name of a trend, or None if neither its terms nor its posts have one.

    `terms`: numbers of posts. `texts`: some posts.
    """
    ranked = sorted(terms, key=lambda term: (-terms[term], term))
    most = terms[ranked[0]]
    for term in ranked:
        if terms[term] >= MAX_OF * most and (" " in term or term[0] == "#"):
            if is_informative(term):
                return _without_emoji(term)
            if (found := _as_written(term, texts)) is not None:
                return found
    for term in ranked:
        if (found := _phrase_with(term, texts)) is not None:
            return found
        if is_informative(term):
            return term
    return None


def _is_informative_word(word: str) -> bool:
    plain = word.lstrip("#")
    return (
        any(c.isalpha() for c in plain)
        and plain not in COMMON
        and plain not in STOPWORDS
        and (len(plain) > 2 or not plain.isascii())
    )


def _as_written(term: str, texts: Iterable[str]) -> str | None:
    """Join numbers as the posts do, such as `50-0`."""
    if not NUMBERS.fullmatch(term) or " " not in term:
        return None
    pattern = re.compile(r"(?<!\d)" + term.replace(" ", r"[-–:/]") + r"(?!\d)")
    found = Counter(hit for text in texts for hit in pattern.findall(text)[:1])
    return max(found, key=lambda hit: (found[hit], hit)) if found else None


def _phrase_with(term: str, texts: Sequence[str]) -> str | None:
    if " " in term or term[0] == "#" or "/" in term:
        return None
    found: Counter[str] = Counter()
    total = 0
    for text in texts:
        phrases = set(_phrases(text, term))
        found.update(phrases)
        total += bool(phrases)
    least = max(MIN_TEXTS, MIN_SHARE * total)
    good = [phrase for phrase, number in found.items() if number >= least and is_informative(phrase)]
    return _without_emoji(min(good, key=lambda phrase: (-found[phrase], phrase))) if good else None


def _without_emoji(phrase: str) -> str:
    return " ".join(word for word in phrase.split(" ") if any(c.isalnum() for c in word))


def _phrases(text: str, term: str) -> Iterator[str]:
    words = [word.lower() for word in TERM.findall(text)]
    for one, two in pairwise(words):
        plain = one[0] != "#" != two[0] and "/" not in one + two and not STOPWORDS & {one, two}
        if plain and term in (one, two) and one != two:
            yield f"{one} {two}"
