"""A trend is named by a phrase, a hashtag or a word of its posts that means something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.trends.names import is_informative, name_of


@pytest.mark.parametrize("term", ["the", "had", "10", "4", "50 0", "👏", "🐐 👏", "ya", "#10", "ok 3"])
def test_common_words_numbers_and_emoji_are_not_informative(term: str) -> None:
    assert not is_informative(term)


@pytest.mark.parametrize("term", ["storm", "round 9", "#storm", "good fight", "雨", "it's raining"])
def test_rare_word_is_informative(term: str) -> None:
    assert is_informative(term)


def test_a_frequent_phrase_or_hashtag_is_the_name() -> None:
    assert name_of({"storm": 20, "storm hits": 9, "#storm": 8, "x.y/z": 20}, []) == "storm hits"
    assert name_of({"storm": 20, "storm hits": 2, "#storm": 8}, []) == "#storm"
    assert name_of({"storm": 20, "storm hits": 2}, []) == "storm"


def test_word_is_named_by_a_phrase_of_its_posts() -> None:
    posts = ["He looks tired now", "McGregor looks tired 😂", "so tired"]
    assert name_of({"tired": 9}, posts) == "looks tired"
    assert name_of({"🐐": 9}, ["the goat 🐐", "goat 🐐 50", "🐐"]) == "goat"
    assert name_of({"5": 9}, ["end of round 5", "Round 5!", "5"]) == "round 5"


def test_numbers_are_named_with_the_words_around_them() -> None:
    assert name_of({"50": 9, "50 0": 8}, ["50-0!", "now 50-0", "150-0"]) == "50-0"


def test_trend_without_an_informative_word_has_no_name() -> None:
    assert name_of({"10": 9, "👏": 8, "had": 7}, ["10 👏", "had 👏"]) is None


@given(
    st.dictionaries(
        st.sampled_from(["had", "4", "👏", "storm", "50 0", "#10", "a/b"]), st.integers(0, 99), min_size=1
    ),
    st.lists(st.text("had 4👏storm50-0#/ ", max_size=40), max_size=12),
)
def test_name_is_never_a_number_common_word_or_emoji(terms: dict[str, int], posts: list[str]) -> None:
    name = name_of(terms, posts)
    assert name is None or is_informative(name) or name == "50-0"
