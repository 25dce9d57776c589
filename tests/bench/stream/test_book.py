"""Committed results, compared with the events sent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import SummaryPlan, Windows
from forebay.apps.summaries.program import SummaryProgram
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Summary
from forebay.bench.stream.book import (
    CommittedFiles,
    EventBook,
    Sent,
    StreamProgress,
    file_clock_s,
    key_windows,
    least_span_s,
    window_name,
)
from forebay.bench.stream.pipeline import Places
from forebay.connectors.formats import dead_letter_json, result_json
from forebay.records import DeadLetter, Result, Timeline, Usage
from forebay.stateful.program import Failure

FAR_MS = 2**41
KINDS = [
    Windows.tumbling(1000),
    Windows.sliding(3000, 1000),
    Windows.session(700),
]


def summarised(windows: Windows, events: list[Sent]) -> dict[str, int]:
    program, state = SummaryProgram(SummaryPlan(windows)), KeyState()
    outputs: list[Any] = []

    def calls() -> None:
        # Answers do not matter here: an event whose call failed belongs to its window, too.
        while state.work is not None:
            outputs.extend(program.on_failure("k", state, Failure("timeout", "no answer")))

    for event in events:
        time_ms = event.due_us // 1000
        outputs += program.on_event("k", state, Arrival(event.id, time_ms, f"text {event.id}"), time_ms - 1)
        calls()
    outputs += program.on_watermark("k", state, FAR_MS)
    calls()
    assert all(isinstance(each, Summary) for each in outputs)
    return {window_name("k", each.start_ms, each.end_ms, each.revision): each.events for each in outputs}


@pytest.mark.parametrize("windows", KINDS, ids=lambda windows: windows.kind)
@given(gaps_ms=st.lists(st.integers(0, 2500), min_size=1, max_size=30))
def test_each_window_has_the_events_that_the_summaries_count(windows: Windows, gaps_ms: list[int]) -> None:
    at_ms, events = 1_700_000_000_000, []
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        events.append(Sent(f"e{number}", at_ms * 1000 + 999, "k"))
    found = {each.name: len(each.events) for each in key_windows(windows, events)}
    # The far watermark: sessions and windows of any time are over.
    assert found == summarised(windows, events)


def test_keys_have_windows_of_their_own_and_an_event_without_key_has_none() -> None:
    events = [Sent("e0", 0, "a"), Sent("e1", 1_000, "b"), Sent("e2", 2_000, None)]
    found = key_windows(Windows.tumbling(1000), events)
    assert [(each.key, [event.id for event in each.events]) for each in found] == [
        ("a", ["e0"]),
        ("b", ["e1"]),
    ]


LINE = Timeline(1_000_100, 1_000_200, 1_000_300, 1_000_400, 1_000_500, 1_000_600)


def result(id: str, timeline: Timeline | None = LINE) -> str:
    return result_json(Result(id, "", {}, "a", Usage(5, 2), 1, 0, 0.1, 0.1, timeline=timeline))


def sent(ids: list[str], first_us: int = 0, gap_us: int = 0) -> list[Sent]:
    return [Sent(id, first_us + number * gap_us) for number, id in enumerate(ids)]


def commit(folder: Path, name: str, *lines: str) -> int:
    """Commit a file like Flink; returns the time of its renaming, in microseconds."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}.inprogress"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    path = hidden.rename(folder / name)
    return path.stat().st_ctime_ns // 1000


def test_moments_and_counts_of_each_event(tmp_path: Path) -> None:
    places = Places("http://feed", tmp_path)
    book = EventBook(places)
    book.expect(sent(["e0", "e1", "e2"], 1_000_000, 10))
    at_us = commit(places.results, "part-abc-0.jsonl", result("e0"), result("e0/2"), result("alien"))
    letter = DeadLetter(b'{"forebay_event": "e1"}', cause="too_long", detail="a\nb", attempts=2)
    commit(places.letters, "part-abc-0.jsonl", dead_letter_json(letter))
    book.look()
    book.look()
    assert book.progress(1_000_010) == StreamProgress(total=3, due=2, done=2, failed=1)
    assert not book.over((), 1_000_010)
    assert book.failures() == ["too_long: a b"]
    assert book.strangers == 1
    first, second, third = book.records({"e0": (1_000_000, 1_000_050)}, 1_000_000, 1_000_020)
    assert len(book.records({}, 1_000_000, 1_000_019)) == 2
    assert (first.due_s, first.emitted_s, first.read_s, first.left_s) == (0.0, 50e-6, 100e-6, 600e-6)
    assert first.committed_s == pytest.approx((at_us - 1_000_000) / 1e6)
    assert (first.results, first.prompt_tokens, first.lost) == (1, 5, False)
    assert (second.error, second.committed_s, second.attempts, second.lost) == (
        "too_long: a b",
        None,
        2,
        False,
    )
    assert third.lost


def test_a_duplicate_result_counts_twice_and_keeps_its_first_time(tmp_path: Path) -> None:
    places = Places("http://feed", tmp_path)
    book = EventBook(places)
    book.expect(sent(["e0"]))
    at_us = commit(places.results, "part-abc-0.jsonl", result("e0"))
    book.look()
    commit(places.results, "part-abc-1.jsonl", result("e0"))
    book.look()
    (found,) = book.records({}, at_us, at_us)
    assert (found.results, found.committed_s) == (2, 0.0)


def test_dead_letter_and_result_of_one_event_are_a_duplicate(tmp_path: Path) -> None:
    places = Places("http://feed", tmp_path)
    book = EventBook(places)
    book.expect(sent(["e0", "e1"]))
    letter = DeadLetter(b'{"forebay_event": "e0"}', cause="too_long", detail="a", attempts=2)
    at_us = commit(places.letters, "part-abc-0.jsonl", dead_letter_json(letter))
    commit(places.results, "part-abc-0.jsonl", result("e0"), result("e1"))
    book.look()
    first, second = book.records({}, at_us, at_us)
    assert (first.doubled, second.doubled) == (True, False)


def test_duplicates_of_an_earlier_load_are_reported(tmp_path: Path) -> None:
    places = Places("http://feed", tmp_path)
    book = EventBook(places)
    book.expect(sent(["e0"]))
    commit(places.results, "part-abc-0.jsonl", result("e0"))
    book.look()
    book.expect(sent(["e1"]))
    commit(places.results, "part-abc-1.jsonl", result("e0"), result("e1"))
    book.look()
    assert (book.earlier_doubled, book.doubles) == (1, 1)


def test_results_of_earlier_loads_are_not_unknown(tmp_path: Path) -> None:
    places = Places("http://feed", tmp_path)
    book = EventBook(places)
    book.expect(sent(["e0"]))
    book.expect(sent(["e1"]))
    commit(places.results, "part-abc-0.jsonl", result("e0", timeline=None))
    book.look()
    assert (book.strangers, book.progress(0).done) == (0, 0)


def test_files_that_are_being_written_are_not_visible(tmp_path: Path) -> None:
    (tmp_path / ".part-abc-0.jsonl.inprogress").write_text("{}\n")
    (tmp_path / "part-abc.jsonl.tmp").write_text("{}\n")
    assert list(CommittedFiles(tmp_path).look()) == []


def test_without_rename_times_the_poll_time_counts(tmp_path: Path) -> None:
    # The file's times are long before the poll that did not see it.
    commit(tmp_path, "part-abc-0.jsonl", orjson.dumps({}).decode())
    now_us = os.stat(tmp_path / "part-abc-0.jsonl").st_ctime_ns // 1000 + 60_000_000
    ((at_us, _),) = CommittedFiles(tmp_path, now=lambda: now_us).look()
    assert at_us == now_us - round(file_clock_s() * 1e6)


def test_running_summaries_have_no_window() -> None:
    assert key_windows(Windows.rolling(1000), [Sent("e0", 0, "a")]) == []


def test_allowed_lateness_of_events() -> None:
    assert [least_span_s(each, 0.5) for each in KINDS] == [1.5, 1.5, None]
