"""The first stage: counts per tick for any times of posts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.trends import stages
from forebay.apps.trends.stages import TickCounter
from forebay.apps.trends.values import Counts, added, joined
from forebay.errors import MalformedRecord


def test_tick_is_emitted_once_the_watermark_has_passed_it() -> None:
    counter = TickCounter(tick_ms=1000)
    for time_ms, terms in ((1100, ["a", "b"]), (1900, ["a"]), (2100, ["a"])):
        assert counter.add(terms, time_ms) is None
    assert counter.close(1999) == []
    (counts,) = counter.close(2000)
    assert (counts.tick, counts.posts) == (1, 2)
    assert counts.terms == {"a": (2, 0, 1), "b": (1, 0, 0)}
    assert [each.tick for each in counter.close(10**9)] == [2]


def test_late_posts_are_counted_as_late() -> None:
    counter = TickCounter(tick_ms=1000)
    counter.add(["a"], 5000)
    counter.close(7000)
    counter.add(["a"], 6999)
    counter.add(["a"], -(10**14))
    assert counter.late == 2
    assert counter.close(10**6) == []


def test_earlier_post_counts_while_its_tick_is_open() -> None:
    counter = TickCounter(tick_ms=1000)
    counter.add(["a"], 5000)
    counter.add(["b"], 4999)
    assert counter.late == 0
    assert [(each.tick, set(each.terms)) for each in counter.finish()] == [(4, {"b"}), (5, {"a"})]
    assert counter.finish() == []


def test_posts_from_the_future_use_no_memory() -> None:
    counter = TickCounter(tick_ms=1000, open_ticks=4)
    for year in range(100):
        counter.add(["future"], 10**13 + year * 10**10)
    for time_ms in (1000, 2000, 3000):
        counter.add(["now"], 10**6 + time_ms)
    assert counter.ahead + counter.late >= 96
    assert len(counter.to_bytes()) < 1000


def test_a_post_now_displaces_one_from_the_future() -> None:
    counter = TickCounter(tick_ms=1000, open_ticks=2)
    counter.add(["a"], 1000)
    counter.add(["b"], 10**13)
    counter.add(["c"], 2000)
    assert counter.ahead == 1
    assert [set(each.terms) for each in counter.close(3000)] == [{"a"}, {"c"}]


def test_overfull_tick_is_emitted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_HELD_TERMS", 10)
    counter = TickCounter(tick_ms=1000)
    parts = [counter.add(["a", "b"], 1000 + index) for index in range(10)]
    early = [part for part in parts if part is not None]
    assert len(early) == 2
    rest = counter.close(2000)
    total = sum(
        (Counter({term: entry[0] for term, entry in part.terms.items()}) for part in [*early, *rest]),
        Counter(),
    )
    assert total == {"a": 10, "b": 10}
    assert sum(part.posts for part in [*early, *rest]) == 10


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.lists(st.sampled_from("abcd"), unique=True)), max_size=30)
)
def test_clusters_continue_from_saved_state(posts: list[tuple[int, list[str]]]) -> None:
    counter = TickCounter(tick_ms=1000)
    for time_ms, terms in posts[:15]:
        counter.add(terms, time_ms)
    counter.close(5000)
    other = TickCounter.from_bytes(counter.to_bytes())
    for each in (counter, other):
        for time_ms, terms in posts[15:]:
            each.add(terms, time_ms)
    assert counter.close(10**6) == other.close(10**6)
    assert counter.to_bytes() == other.to_bytes()


def test_entries_are_merged() -> None:
    assert joined((2, 5, 9), (1, 3, 3)) == (3, 3, 9)


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xc0", b"\x91\x01", b"\x99" + b"\x63" * 9])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="ticks: "):
        TickCounter.from_bytes(data)


def test_counts_do_not_depend_on_order() -> None:
    one = Counts(3, 2, {"b": (2, 0, 1), "a": (1, 1, 1)}, {0: "b", 1: "a b"})
    other = Counts(3, 1, {"c": (1, 9, 9), "a": (1, 9, 9)}, {9: "c a"})
    whole = added([one, other])
    assert whole == added([other, one])
    # Decayed counts are floating-point numbers: the order in which they are added matters, too.
    assert list(whole.terms.items()) == [("a", (2, 1, 9)), ("b", (2, 0, 1)), ("c", (1, 9, 9))]
    assert list(added([other, one]).terms) == list(whole.terms)
    assert whole.posts == 3


def test_each_shard_has_its_terms_and_the_total() -> None:
    counts = Counts(1, 50, {f"t{n}": (1, n, n) for n in range(50)}, {n: f"text {n}" for n in range(50)})
    parts = counts.split(4)
    assert [part.posts for part in parts] == [50] * 4
    assert {term: entry for part in parts for term, entry in part.terms.items()} == counts.terms
    for part in parts:
        assert part.terms
        assert set(part.texts) == {entry[1] for entry in part.terms.values()}


def test_example_texts_follow_the_most_frequent_terms() -> None:
    counter = TickCounter(tick_ms=1000, samples=3)
    for number in range(100):
        counter.add([f"word{number}", *(["often"] if number % 3 == 0 else [])], 1500, f"text {number}")
    (counts,) = counter.close(2000)
    _, first, last = counts.terms["often"]
    assert {counts.texts[first], counts.texts[last]} == {"text 0", "text 99"}
    assert len(counts.texts) <= 3
    assert TickCounter.from_bytes(counter.to_bytes()).to_bytes() == counter.to_bytes()
