"""The page of trends has all events, and escapes posts."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import orjson
import pytest

from forebay.apps.trends.page import read_trends, trends_page

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'"


def line(kind: str, trend: int = 0, time_ms: int = 60_000, **more: Any) -> bytes:
    answer = {
        "kind": kind,
        "trend": trend,
        "name": f"storm{trend}",
        "terms": ["storm"],
        "time_ms": time_ms,
        "onset_ms": 50_000,
        "peak_ms": 65_000,
        "rate_per_s": 2.5,
        "base_per_s": 0.1,
        "now_per_s": 1.5,
        "peak_per_s": more.get("rate_per_s", 2.5),
        "score": 20.0,
        "rises": 1,
        "into": None,
        "texts": [],
        **more,
    }
    return orjson.dumps({"id": f"trend-{trend}-{kind}-{time_ms}", "answer": answer})


def why(words: str, trend: int = 0, time_ms: int = 60_000, of: str = "born") -> bytes:
    answer = {"kind": "why", "trend": trend, "of": of, "name": "storm", "why": words, "time_ms": time_ms}
    return orjson.dumps({"answer": answer, "position": f"trend-{trend}-{of}-{time_ms}"})


class Tags(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.words = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data + "\n"


def test_a_trend_has_its_times_its_reason_and_its_posts() -> None:
    document = trends_page(
        [
            line("born", texts=["big storm"]),
            why("A storm hits Lisbon."),
            line("changed", time_ms=90_000, terms=["storm", "lisbon"]),
            why("The storm floods Lisbon.", time_ms=90_000, of="changed"),
            line("peaked", rate_per_s=7.25),
            line("ended", time_ms=200_000),
        ]
    )
    words = Tags(document).words
    for expected in (
        "onset 1970-01-01 00:00:50, seen 00:01:00",
        "peak 00:01:05, end 00:03:20",
        "7.25 posts/s",
        "The storm floods Lisbon.",
        "00:01:00: A storm hits Lisbon.",
        "big storm",
        "lisbon",
    ):
        assert expected in words


def test_post_contents_are_shown_as_text() -> None:
    harmless, attack = (
        Tags(
            trends_page(
                [line("born", name=text, terms=[text], texts=[text]), why(text), line("ended", name=text)]
            )
        )
        for text in ("harmless", ATTACK)
    )
    assert attack.tags == harmless.tags
    assert ATTACK in attack.words


def test_merged_trend_has_the_name_of_the_surviving_one() -> None:
    lines = [line("born"), line("born", 1), line("merged", 1, into=0)]
    assert read_trends(lines)[0].merged == ["storm1"]
    assert "merged from" in trends_page(lines)
    assert trends_page(lines).count('id="trend-') == 1


def test_ongoing_trend_is_drawn_to_the_end() -> None:
    assert "end not yet" in trends_page([line("born")])


@pytest.mark.parametrize("lines", [[], [b"junk", b"{}", b"[1]", b'{"answer": {"kind": "born"}}']])
def test_page_without_trends_states_that(lines: list[bytes]) -> None:
    assert "Nothing rose" in trends_page(lines)


def test_times_years_away_leave_the_rest_readable() -> None:
    lines = [line("born", n, 10**12 + n * 60_000, onset_ms=10**12 + n * 60_000) for n in range(100)]
    lines.append(line("born", 200, 10**14, onset_ms=10**14, peak_ms=10**14))
    lines.append(line("ended", 200, 10**17, onset_ms=10**17, peak_ms=10**17))
    document = trends_page(lines)
    assert len(document) < 200_000
    assert "2001-09-09" in document


@pytest.mark.heavy
def test_number_of_shown_trends_is_bounded() -> None:
    document = trends_page(line("born", number, score=number / 10) for number in range(1000))
    assert document.count('class="card"') == 300
    assert "storm999" in document
    assert "storm1<" not in document


def given_up(position: str) -> bytes:
    return orjson.dumps({"cause": "timeout", "detail": f"too slow {ATTACK}", "position": position})


def test_abandoned_question_names_its_cause() -> None:
    others = [given_up("posts.jsonl@3"), given_up("trend-7-born-60000"), given_up("trend-0-born-1")]
    assert "gave no reason" not in Tags(trends_page([line("born"), *others])).words
    text = Tags(trends_page([line("born"), given_up("trend-0-born-60000")]))
    assert "The model gave no reason: the call failed (timeout: too slow" in text.words
    assert "img" not in text.tags


def test_a_returning_trend_is_one_card_with_all_its_rises() -> None:
    lines = [
        line("born"),
        line("ended", time_ms=100_000, rate_per_s=9.0),
        line("returned", time_ms=500_000, onset_ms=490_000, peak_ms=500_000, rises=2),
    ]
    (trend,) = read_trends(lines)
    assert (trend.onset_ms, trend.end_ms, trend.rate, trend.peak_ms) == (50_000, None, 9.0, 65_000)
    assert "2 rises" in Tags(trends_page(lines)).words


def test_second_run_has_separate_cards() -> None:
    lines = [
        line("born", name="storm"),
        line("ended", name="storm"),
        why("A goal.", time_ms=90_000),
        line("born", name="goal", time_ms=90_000),
    ]
    storm, goal = read_trends(lines)
    assert (storm.name, storm.whys, goal.name) == ("storm", [], "goal")
    assert storm.end_ms is not None
    assert [goal.end_ms, goal.whys] == [None, [(90_000, "A goal.")]]
    document = trends_page(lines)
    assert 'id="trend-0"' in document
    assert 'id="trend-0-1"' in document


def test_a_trend_without_its_first_event_has_times() -> None:
    (trend,) = read_trends(
        [line("returned", time_ms=500_000, onset_ms=490_000, rises=2), line("ended", rises=2)]
    )
    assert (trend.onset_ms, trend.seen_ms, trend.base) == (490_000, 500_000, 0.1)


def test_the_strongest_trend_is_the_first_card() -> None:
    words = Tags(trends_page([line("born"), line("born", 1, score=99.0, onset_ms=70_000)])).words
    cards = words.partition("the strongest first")[2]
    assert cards.index("storm1") < cards.index("storm0")


def test_answers_of_two_equal_runs_belong_to_their_own_cards() -> None:
    run = [line("born"), why("A storm.")]
    assert [trend.whys for trend in read_trends([*run, *run])] == [[(60_000, "A storm.")]] * 2


def test_a_failure_is_shown_until_there_is_a_later_reason() -> None:
    lines = [line("born"), line("changed", time_ms=90_000), given_up("trend-0-born-60000")]
    assert "gave no reason" in trends_page(lines)
    assert "gave no" not in trends_page([*lines, why("A flood.", time_ms=90_000, of="changed")])
