"""Committed results of windows and detectors, compared with the events sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bench.stream.test_book import commit

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.settings import SummarySpec
from forebay.bench.stream.book import Sent
from forebay.bench.stream.pipeline import Places
from forebay.bench.stream.records import ResultRecord, StreamRun
from forebay.bench.stream.result_book import ManyToOne, ResultBook
from forebay.bench.stream.verdict import judge_stream
from forebay.connectors.formats import dead_letter_json, result_json
from forebay.pipeline.load import parse_spec
from forebay.records import DeadLetter, Result, Timeline, Usage

BEGAN_US = 10_000_000_000
BEGAN_MS = BEGAN_US // 1000
LINE = Timeline(*(BEGAN_US + 2_600_000 + step for step in range(0, 600_000, 100_000)))
LATER = [BEGAN_US + 60_000_000, BEGAN_US + 61_000_000]


def summary(start_s: int, events: int, *, key: str = "a", line: Timeline | None = LINE, **more: Any) -> str:
    start_ms = BEGAN_MS + start_s * 1000
    answer = {
        "type": "summary",
        "window": {"kind": "tumbling", "start_ms": start_ms, "end_ms": start_ms + 2000},
        **{"revision": 0, "events": events, "failed": 0, "prompt_tokens": 30, "completion_tokens": 7, **more},
    }
    return result_json(
        Result(
            "timer-1", key, {}, answer, Usage(5, 2), 1, 0, 0.1, 0.1, time_ms=start_ms + 1999, timeline=line
        )
    )


def sent(count: int, first: int = 0, begin_s: float = 0.0, key: str = "a") -> list[Sent]:
    """Two events per second."""
    begin_us = BEGAN_US + round(begin_s * 1e6)
    return [Sent(f"e{first + each}", begin_us + each * 500_000, key) for each in range(count)]


def windows_book(folder: Path, count: int = 13) -> ResultBook:
    book = ResultBook(Places("http://feed", folder), ManyToOne(Windows.tumbling(2000), 0.5))
    book.expect(sent(count))
    return book


def run_of(book: ResultBook) -> StreamRun:
    return StreamRun(
        "2026-01-01T00:00:00+00:00",
        10.0,
        {},
        book.records({"e0": (BEGAN_US, BEGAN_US)}, BEGAN_US, BEGAN_US + 60_000_000),
        results=book.results(BEGAN_US, BEGAN_US + 60_000_000),
        countable=book.countable,
        left_open=book.left_open,
        strangers=book.strangers,
        earlier_doubled=book.earlier_doubled,
    )


def reasons(book: ResultBook) -> str:
    return "; ".join(judge_stream(run_of(book)).reasons)


def test_each_window_that_ended_has_its_result_and_its_moments(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    # At 6 s the last event came, and event time is 5.5 s: the third window is open.
    assert [each.due_s for each in run_of(book).results or ()] == [2.0, 4.0]
    assert book.left_open == 5
    at_us = commit(Places("", tmp_path).results, "part-abc-0.jsonl", summary(0, 4), summary(2, 4))
    assert not book.over(LATER, LATER[-1]), "nobody looked yet"
    book.look()
    assert book.over(LATER, LATER[-1])
    assert not book.over(LATER[:1], LATER[0]), "what came before one checkpoint may be committed after it"
    quiet_us = LATER[0] + 10_000_000
    assert not book.over(LATER[:1], quiet_us)
    assert book.over(LATER[:1], quiet_us + 1), "while nothing happens, there are no checkpoints"
    assert not book.over((), quiet_us * 2), "the last event was not read yet"
    first = (run_of(book).results or ())[0]
    assert (first.emitted_s, first.accepted_s, first.answered_s) == (2.6, 2.7, 3.0)
    assert first.committed_s == pytest.approx((at_us - BEGAN_US) / 1e6)
    assert (first.stands_for, first.expected, first.results, first.prompt_tokens) == (4, 4, 1, 30)
    assert not reasons(book)
    assert book.progress(BEGAN_US + 3_000_000).due == 1


def test_missing_window_result_is_lost_and_a_second_is_a_duplicate(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    results = Places("", tmp_path).results
    commit(results, "part-abc-0.jsonl", summary(0, 4), summary(0, 4))
    book.look()
    assert not book.over(LATER, LATER[-1])
    doubled, lost = run_of(book).results or ()
    assert (doubled.doubled, doubled.lost, lost.doubled, lost.lost) == (True, False, False, True)
    assert "1 of 2 expected results are missing" in reasons(book)
    assert "1 of 2 results are in the sink more than once" in reasons(book)


def test_a_result_that_counts_other_events_is_reported(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    commit(Places("", tmp_path).results, "part-abc-0.jsonl", summary(0, 3), summary(2, 5))
    book.look()
    assert [each.miscounted for each in run_of(book).results or ()] == [True, True]
    assert "2 of 2 results have a wrong number of events" in reasons(book)


def test_an_event_that_became_a_dead_letter_is_in_no_window(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    places = Places("", tmp_path)
    letters = [
        dead_letter_json(DeadLetter(b"{}", cause="late", detail="", id=f"e{n}")) for n in (0, 4, 5, 6, 7)
    ]
    commit(places.letters, "part-abc-0.jsonl", *letters)
    commit(places.results, "part-abc-0.jsonl", summary(0, 3))
    book.look()
    run = run_of(book)
    # Of the second window all are.
    assert [(each.expected, each.miscounted) for each in run.results or ()] == [(3, False)]
    assert book.over(LATER, LATER[-1])
    assert sum(each.error is not None for each in run.events) == 5
    assert any("5 of 13 events became dead letters" in note for note in judge_stream(run).notes)


def test_result_of_an_unknown_window_is_reported(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    commit(Places("", tmp_path).results, "part-abc-0.jsonl", summary(0, 1, key="b"))
    book.look()
    assert (book.strangers, reasons(book).count("belong to none of the windows")) == (1, 1)


def test_a_window_over_two_loads_has_the_events_of_both(tmp_path: Path) -> None:
    book = windows_book(tmp_path)
    commit(Places("", tmp_path).results, "part-abc-0.jsonl", summary(0, 4), summary(2, 4))
    book.look()
    # The third window has four events of the first load, and the fourth one begins with one of it.
    book.expect(sent(6, first=13, begin_s=6.75))
    commit(Places("", tmp_path).results, "part-abc-1.jsonl", summary(0, 4), summary(4, 4), summary(6, 4))
    book.look()
    assert book.earlier_doubled == 1
    (found,) = book.results(BEGAN_US + 6_750_000, BEGAN_US + 60_000_000)
    # A window that ended before the load waited for it: its latency is not the pipeline's.
    assert (found.due_s, found.expected, found.miscounted) == (pytest.approx(1.25), 4, False)
    assert book.strangers == 0


def trend(id: str, kind: str, time_s: float, **more: Any) -> str:
    time_ms = BEGAN_MS + round(time_s * 1000)
    return result_json(Result(id, "1", {}, {"kind": kind}, Usage(), 0, 0, 0.0, 0.0, time_ms=time_ms, **more))


def test_detector_duplicates_and_unanswered_questions_are_reported(tmp_path: Path) -> None:
    book = ResultBook(Places("http://feed", tmp_path), ManyToOne(None, 5.0, ("born",)))
    book.expect(sent(9))
    results = Places("", tmp_path).results
    given = Timeline(BEGAN_US + 5_100_000, left_us=BEGAN_US + 5_100_000)
    commit(
        results,
        "part-abc-0.jsonl",
        trend("t-1", "born", 5.0, timeline=given),
        trend("t-2", "born", 5.0, timeline=given),
        trend("t-1", "peaked", -5.0),
    )
    book.look()
    assert not book.over(LATER, LATER[-1]), "both questions are open"
    commit(results, "part-abc-1.jsonl", trend("t-1-why", "why", 5.0, position="t-1", timeline=LINE))
    book.look()
    found: dict[str, ResultRecord] = {each.id: each for each in run_of(book).results or ()}
    assert set(found) == {"t-1", "t-2", "answer about t-1", "answer about t-2"}
    assert [id for id, each in found.items() if each.doubled] == ["t-1"]
    assert "1 of 4 results are in the sink more than once" in reasons(book)
    assert found["t-1"].answered_s == 5.1, "it needed no call: it was there when it left"
    assert found["answer about t-1"].sent_s == 2.8
    assert found["answer about t-2"].lost
    letter = DeadLetter(b"{}", cause="timeout", detail="", id="t-2")
    commit(Places("", tmp_path).letters, "part-abc-0.jsonl", dead_letter_json(letter))
    book.look()
    assert book.over(LATER, LATER[-1])
    assert any("the expected results are unknown" in note for note in judge_stream(run_of(book)).notes)


@pytest.mark.parametrize(
    ("application", "windows", "late_s"),
    [
        ({"type": "summary", "size_s": 5}, Windows.tumbling(5000), 0.5),
        ({"type": "summary", "window": "rolling"}, None, 0.5),
        # By processing time, windows end before they do in event time.
        ({"type": "summary", "size_s": 5, "idle_s": 2}, None, 0.5),
        ({"type": "trends", "late_s": 3}, None, 0.0),
        ({"type": "topics", "embeddings": "words"}, None, 1.0),
    ],
)
def test_windows_of_each_application(
    application: dict[str, Any], windows: Windows | None, late_s: float
) -> None:
    spec = parse_spec(
        {
            "name": "n",
            "source": {"type": "sse", "url": "http://127.0.0.1:1/e", "time": "t"},
            "key": "{{ user }}",
            "application": application,
            "sink": {"type": "jsonl", "path": "out"},
            **({"event_time": {"out_of_orderness_s": 0.5}} if application["type"] == "summary" else {}),
        }
    )
    kind = ManyToOne.of(spec)
    assert kind is not None
    assert (kind.windows, kind.late_s) == (windows, late_s)
    assert isinstance(spec.application, SummarySpec) or kind.asked[0] == "born"


def test_a_run_without_any_result_shows_nothing(tmp_path: Path) -> None:
    book = ResultBook(Places("http://feed", tmp_path), ManyToOne(None, 5.0))
    book.expect(sent(9))
    assert "no results, so" in reasons(book)
