"""Selection of representative posts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.samples import MAX_SAMPLES, SAMPLE_CHARS, keep, pick


def test_most_typical_posts_are_first_and_copies_are_dropped() -> None:
    posts = ["storm hits Lisbon now"] * 5 + ["storm hits Lisbon hard", "Lisbon under water", "my cat"]
    picked = pick(posts, 3)
    assert picked[0].startswith("storm hits Lisbon")
    assert "Lisbon under water" in picked
    assert len(set(picked)) == 3


def test_near_copy_ranks_below_a_different_post() -> None:
    posts = ["goal by Ronaldo wow", "goal by Ronaldo yes", "what a goal that was", "goal by Ronaldo oh"]
    assert pick(posts, 2)[1] == "what a goal that was"


@given(st.lists(st.text(max_size=400), max_size=40), st.lists(st.text(max_size=400), max_size=40))
def test_kept_posts_are_bounded_and_ordered(known: list[str], new: list[str]) -> None:
    first = keep([], known)
    kept = keep(first, new)
    assert len(kept) <= MAX_SAMPLES
    assert all(len(text) <= SAMPLE_CHARS for text in kept)
    assert kept[: min(len(first), 4)] == first[:4]
    assert pick(kept, 3) == pick(list(kept), 3)
    assert all(text in kept for text in pick(kept, 3))
