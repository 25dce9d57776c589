"""Words and terms of posts, including unusual ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.samples import MAX_WORD_CHARS, distinct_words, keys_of
from forebay.apps.samples import MAX_WORDS as MAX_DISTINCT
from forebay.apps.trends.terms import (
    MAX_TERM_CHARS,
    MAX_WORDS,
    forms,
    part_of,
    same_term,
    terms_of,
)


def test_terms_are_words_phrases_hashtags_and_links() -> None:
    found = terms_of("The storm hits Lisbon! #Storm see https://example.org/a?b=1, again")
    assert found == [
        "storm",
        "hits",
        "storm hits",
        "lisbon",
        "hits lisbon",
        "#storm",
        "see",
        "example.org/a?b=1",
        "again",
    ]


def test_a_phrase_does_not_span_a_stopword_or_a_link() -> None:
    assert terms_of("bank of england") == ["bank", "england"]
    assert terms_of("look http://x.y up") == ["look", "x.y", "up"]


def test_a_term_counts_once_per_post() -> None:
    assert terms_of("no no no #No #no") == ["no", "#no"]


def test_emoji_and_scripts_without_spaces_are_terms() -> None:
    assert {"👏", "👏 bravo"} <= set(terms_of("👏👏 bravo"))
    assert "مرحبا بالعالم" in terms_of("مرحبا بالعالم")
    assert terms_of("漢字") == ["漢", "字", "漢 字"]
    assert distinct_words("漢字 test") == ["漢", "字", "test"]


@given(st.text(max_size=300))
def test_any_text_gives_bounded_terms(text: str) -> None:
    terms = terms_of(text)
    assert len(terms) == len(set(terms)) <= 2 * MAX_WORDS
    assert all(0 < len(term) <= MAX_TERM_CHARS for term in terms)
    words = distinct_words(text)
    assert len(words) == len(set(words)) <= MAX_DISTINCT
    assert all(0 < len(word) <= MAX_WORD_CHARS for word in words)
    assert len(keys_of(words)) == len(words)


@pytest.mark.heavy
def test_a_megabyte_is_bounded() -> None:
    for text in ("x" * 2**20, "x y " * 2**18, "".join(chr(33 + i % 80_000) for i in range(2**20))):
        assert len(terms_of(text)) <= 2 * MAX_WORDS
        assert len(distinct_words(text)) <= MAX_DISTINCT


def test_keys_are_stable_across_processes() -> None:
    # State was hashed by another process.
    assert keys_of(["storm", "🌊", "\ud800"]).tolist() == [2030164039, 2019999519, 2956585793]


def test_equivalent_terms() -> None:
    assert same_term("#fightnight", "fight night")
    assert same_term("storm", "storms")
    assert not same_term("storm", "stormtrooper")
    assert not same_term("4", "40")
    assert not same_term("#race1", "#race12")
    assert not same_term("x.org/story1", "x.org/story12")
    assert part_of("storm", "storm hits")
    assert not part_of("storm", "storms hit")


def test_link_keeps_its_case_and_http_is_a_word() -> None:
    assert terms_of("See HTTPS://t.co/AbC and http errors") == [
        "see",
        "t.co/AbC",
        "http",
        "errors",
        "http errors",
    ]


def test_two_symbols_are_two_terms() -> None:
    assert not same_term("👏", "🐐")
    assert same_term("👏", "👏")


@given(st.text("#ab 👏", max_size=9), st.text("#ab 👏", max_size=9))
def test_equal_terms_share_a_form(one: str, other: str) -> None:
    if same_term(one, other):
        assert set(forms(one)) & set(forms(other))
