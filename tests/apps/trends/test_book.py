"""Trends: found once when they rise, grouped with related terms, and bounded."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable

import pytest
from benchmarks.trend_finder import TrendFinder

from forebay.apps.trends.book import TrendBook
from forebay.apps.trends.rising import RisingTerms
from forebay.apps.trends.stages import TickCounter
from forebay.apps.trends.terms import terms_of
from forebay.apps.trends.values import Counts, Rise, TermSeen, TickReport, TrendEvent, TrendSettings
from forebay.errors import MalformedRecord

pytestmark = pytest.mark.heavy

SMALL = TrendSettings(width_bits=14)
Post = tuple[int, str]


def background(seconds: int, per_s: int = 20, *, start: int = 0, seed: int = 1) -> list[Post]:
    rng = random.Random(seed)
    words = [f"word{index}" for index in range(300)]
    return [
        (1000 * second + rng.randrange(1000), " ".join(rng.choices(words, k=6)))
        for second in range(start, start + seconds)
        for _ in range(per_s)
    ]


def burst(text: str, start: int, seconds: int, per_s: float, seed: int = 2) -> list[Post]:
    rng = random.Random(seed)
    number = int(seconds * per_s)
    return [
        (int(1000 * (start + rng.random() * seconds)), f"word{rng.randrange(300)} {text}")
        for _ in range(number)
    ]


def find(posts: Iterable[Post], finder: TrendFinder, counter: TickCounter | None = None) -> list[TrendEvent]:
    counter = counter or TickCounter()
    for time_ms, text in sorted(posts):
        counter.add(terms_of(text), time_ms)
    events = []
    for counts in counter.close(2**60):
        events += finder.add(counts)
        events += finder.close()
    return events


def wide(open_ticks: int = 10_000) -> TickCounter:
    return TickCounter(open_ticks=open_ticks)


def test_steady_stream_has_no_trends() -> None:
    assert find(background(1200), TrendFinder(SMALL), wide()) == []


def test_a_burst_is_one_trend_with_onset_peak_and_end() -> None:
    posts = background(1800) + burst("big storm #bigstorm https://x.org/1", 900, 200, 2)
    events = find(posts, TrendFinder(SMALL), wide())
    assert [event.kind for event in events] == ["born", "changed", "peaked", "ended"]
    born, changed, _, ended = events
    assert set(born.terms) >= {"#bigstorm", "storm", "x.org/1"}
    assert changed.rate_per_s > 2 * born.rate_per_s
    assert ended.now_per_s < ended.peak_per_s == ended.rate_per_s
    assert changed.time_ms >= born.time_ms + 30_000
    assert born.name in {"big storm", "#bigstorm", "storm", "big"}
    assert {"big", "storm", "big storm", "#bigstorm", "x.org/1"} & set(ended.terms)
    assert 900_000 < born.time_ms <= 930_000
    assert abs(born.onset_ms - 900_000) < 15_000
    assert 900_000 < ended.peak_ms < 1_105_000
    assert 1_100_000 < ended.time_ms < 1_260_000


def test_returning_trend_continues_its_entry() -> None:
    posts = background(2400) + burst("#bigstorm again", 900, 100, 2) + burst("#bigstorm again", 1800, 100, 3)
    events = find(posts, TrendFinder(SMALL), wide())
    told = [(event.kind, event.trend, event.rises) for event in events if event.kind != "changed"]
    first, second = [(kind, 0, 1) for kind in ("born", "peaked", "ended")], ("returned", "peaked", "ended")
    assert told == [*first, *((kind, 0, 2) for kind in second)]
    again = next(event for event in events if event.kind == "returned")
    assert abs(again.onset_ms - 1_800_000) < 15_000
    assert again.peak_ms >= again.onset_ms


def test_an_ended_trend_is_forgotten_after_some_time() -> None:
    posts = background(2400) + burst("#bigstorm", 900, 100, 2) + burst("#bigstorm", 1800, 100, 3)
    short = dataclasses.replace(SMALL, return_s=300.0)
    kinds = [(event.kind, event.trend) for event in find(posts, TrendFinder(short), wide())]
    assert ("born", 1) in kinds


def test_number_or_emoji_alone_is_not_a_trend() -> None:
    assert find(background(1200) + burst("10 👏", 900, 100, 2), TrendFinder(SMALL), wide()) == []


def test_the_strongest_of_the_live_trends_has_rank_1() -> None:
    posts = background(1200) + burst("#storm", 900, 200, 6) + burst("#goal", 960, 100, 2, 5)
    events = find(posts, TrendFinder(SMALL), wide())
    assert [(e.name, e.rank) for e in events if e.kind == "born"] == [("#storm", 1), ("#goal", 2)]


def test_growth_of_the_whole_stream_is_not_a_trend() -> None:
    posts = background(900) + background(300, 120, start=900, seed=3)
    assert find(posts, TrendFinder(SMALL), wide()) == []


def test_frequent_term_needs_more_evidence_to_be_a_trend() -> None:
    usual = burst("tea", 0, 1800, 1.0)
    more = find(background(1800) + usual + burst("tea", 1000, 120, 0.5, 3), TrendFinder(SMALL), wide())
    assert more == []
    much = find(background(1800) + usual + burst("tea", 1000, 120, 4.0, 3), TrendFinder(SMALL), wide())
    assert [event.kind for event in much] == ["born", "peaked", "ended"]
    assert 0.3 < much[0].base_per_s < 1.6


def test_two_bursts_at_once_are_two_trends() -> None:
    posts = background(1500) + burst("storm", 900, 200, 2) + burst("goal", 905, 200, 2, 5)
    born = [event for event in find(posts, TrendFinder(SMALL), wide()) if event.kind == "born"]
    assert {event.name for event in born} == {"storm", "goal"}


def test_ten_thousand_copies_of_one_text_are_one_trend() -> None:
    text = "win a free phone at https://spam.example now friends"
    posts = background(900) + [(800_000 + index, text) for index in range(10_000)]
    events = find(posts, TrendFinder(SMALL), wide())
    assert (
        sum(event.kind == "born" for event in events) - sum(event.kind == "merged" for event in events) == 1
    )


def test_a_stream_that_stops_ends_its_trends_when_it_continues() -> None:
    finder = TrendFinder(SMALL)
    begun = find(background(1000) + burst("storm", 900, 100, 3), finder, wide())
    assert [event.kind for event in begun][:1] == ["born"]
    later = find(background(10, start=50_000), finder, TickCounter())
    assert "ended" in [event.kind for event in later]


def halves(posts: list[Post], save: Callable[[TrendFinder], TrendFinder]) -> tuple[list[TrendEvent], bytes]:
    finder, counter = TrendFinder(SMALL), wide()
    for time_ms, text in sorted(posts):
        counter.add(terms_of(text), time_ms)
    events = []
    for index, counts in enumerate(counter.close(2**60)):
        if index % 50 == 7:
            finder = save(finder)
        events += finder.add(counts)
        if index % 50 == 11:
            finder = save(finder)
        events += finder.close()
    return events, finder.to_bytes()


def test_finder_continues_from_its_bytes() -> None:
    posts = background(1200) + burst("big storm #bigstorm", 400, 60, 2) + burst("goal", 700, 90, 3, 9)
    posts += burst("big storm #bigstorm", 900, 90, 3)
    straight = halves(posts, lambda finder: finder)
    assert {"ended", "returned"} <= {event.kind for event in straight[0]}
    assert halves(posts, lambda finder: TrendFinder.from_bytes(finder.to_bytes())) == straight


def test_counts_in_parts_equal_counts_at_once() -> None:
    posts = sorted(background(1200) + burst("storm", 800, 100, 3))
    once = find(posts, TrendFinder(SMALL), wide())
    counters = [TickCounter(open_ticks=10_000, counter=index) for index in range(3)]
    for index, (time_ms, text) in enumerate(posts):
        counters[index % 3].add(terms_of(text), time_ms)
    finder, events = TrendFinder(SMALL), []
    parts = sorted((part for each in counters for part in each.close(2**60)), key=lambda part: part.tick)
    for part in parts:
        events += finder.add(part)
    events += finder.close()
    assert [(e.kind, e.name, e.time_ms) for e in events] == [(e.kind, e.name, e.time_ms) for e in once]


def test_counts_of_a_closed_tick_are_late() -> None:
    finder = TrendFinder(SMALL)
    finder.add(Counts(5, 3, {"a": (1, 0, 0)}))
    finder.close()
    assert finder.add(Counts(5, 2, {"a": (1, 0, 0)})) == []
    assert finder.add(Counts(4, 2, {"a": (1, 0, 0)})) == []
    assert finder.late == 4


def test_memory_does_not_grow_with_the_terms() -> None:
    finder = TrendFinder(SMALL)
    sizes = []
    for tick in range(60):
        terms = {f"t{tick}-{index}": (1 + index % 9, index, index) for index in range(3000)}
        finder.add(Counts(tick, 3000, terms))
        finder.close()
        if tick % 20 == 19:
            sizes.append(len(finder.to_bytes()))
    assert sizes[-1] < sizes[0] * 1.5 + 3_000_000


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x80", b"junk", b"\x81\xa7version\x63"])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRecord, match="trends: "):
        TrendFinder.from_bytes(data)


def seen(rise: float, first: int, posts: int = 20) -> TermSeen:
    return TermSeen((posts, first, first + 2), (20.0,) * 4, Rise(rise, 0.0, 0.01, 0))


def test_unrelated_terms_do_not_weaken_a_trend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time for a flood of terms is linear in their number, independent of the number of trends."""
    book = TrendBook(TrendSettings())
    compared: list[str] = []
    alike = TrendBook._alike

    def counted(self: TrendBook, one: str, other: str) -> bool:
        compared.append(one)
        return alike(self, one, other)

    monkeypatch.setattr(TrendBook, "_alike", counted)
    born = 0
    for tick in range(3):
        terms = {f"w{tick}x{n}y{n}z": seen(20.0 + n, 10_000 * tick + 3 * n) for n in range(1000)}
        born += sum(each.kind == "born" for each in book.take(TickReport(tick, 1000.0, terms)))
    assert born == TrendSettings().max_trends
    assert len(compared) < 100


def test_if_too_many_terms_rise_the_weakest_wait() -> None:
    rising = RisingTerms(TrendSettings(width_bits=14, max_warm=5))
    for tick in range(400):
        terms = {f"calm{n}": (1, n, n) for n in range(40)}
        if tick == 399:
            terms |= {f"hot{n:02d}": (40 + 10 * n, n, n) for n in range(20)}
        rising.add(Counts(tick, 1000, terms))
        report = rising.close()
    assert report is not None
    assert set(report.terms) == {f"hot{n}" for n in range(15, 20)}


@pytest.mark.parametrize(("posts", "last"), [(8, 502), (60, 501)])
def test_one_shared_post_does_not_merge_trends(posts: int, last: int) -> None:
    book = TrendBook(TrendSettings())
    book.take(TickReport(0, 100.0, {"#storm": seen(90.0, 100, posts=90)}))
    other = TermSeen((posts, 500, last), (float(posts),) * 4, Rise(20.0, 0.0, 0.01, 0))
    born = book.take(TickReport(1, 100.0, {"#goal": other, "#storm": seen(90.0, 500, posts=90)}))
    assert [event.name for event in born if event.kind == "born"] == ["#goal"]
