"""The parts of a run's page: numbers, results that can be searched, dead letters, an application's view."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.pages.documents import ATTACKS, seen
from tests.pipeline.live.runs import Run, letter, result, trend

from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.live import view
from forebay.pipeline.live.view import SHOWN_RESULTS, VIEW_SHARE, LivePage
from forebay.pipeline.snapshot import CheckpointStats, Snapshot

NOW = Snapshot(
    12.0, "RUNNING", accepted=120, results=110, dead_letters=1, in_flight=4, pending=3, prompt_tokens=60,
    completion_tokens=40, event_p50_s=0.25, event_p99_s=1.5, read=1234, read_share=0.4, replicas=2,
    checkpoints=CheckpointStats(7, 1, 80, 5000), engine_p50_s=0.2, engine_p99_s=0.9,
    cost_pico=123 * 10**9,
)  # fmt: skip


def words(html: str) -> str:
    return " ".join(" ".join(seen(html).words).split())


def test_numbers_have_labels(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.page.watch(replace(NOW, elapsed_s=2.0, read=1134, results=100, read_share=0.3))
    run.page.watch(NOW)
    assert words(run.page.part("status")) == "running for 12 s"
    shown = words(run.page.part("numbers"))
    for expected in (
        "10/s records read: 1,234 since the job last started, 40% of the source",
        "1/s results: 110",
        "60 s until the source is read, at this rate",
        "4 calls in flight; limited by the engine: 3 more events wait",
        "250 ms event to answer, median; p99 1.5 s",
        "200 ms one call to the engine, median; p99 900 ms",
        "≤ 5.1 s answer to commit",
        "7 checkpoints completed, 1 failed; the newest took 80 ms",
        "2 replicas that get requests",
        "1 dead letter",
        "0.12 cost of the calls since the job last started, in the currency of the prices",
    ):
        assert expected in shown


def test_parts_are_drawn_once_for_all_and_results_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock, drawn = Run(tmp_path), ManualClock(), list[str]()
    monkeypatch.setattr(view, "fragment", lambda _template, name, **_: drawn.append(name) or name)
    page = LivePage(run.spec, run.outputs, clock_s=clock.monotonic_s)

    def times(name: str) -> int:
        for _browser in range(2):
            page.part(name)
        return drawn.count(name)

    def commit() -> int:
        run.commit("results", result(1))
        return times("results")

    assert [commit(), commit()] == [1, 1]
    clock.advance(view.RESULTS_S)
    assert [times("results"), commit()] == [2, 2]
    for second in range(12):
        page.watch(replace(NOW, elapsed_s=float(second)))
        assert times("numbers") == second + 1
        assert times("charts") == 1 + (second + 1) // view.CHARTS_EVERY
    page.watch(replace(NOW, state="FINISHED"))
    assert [times("results"), times("charts"), commit()] == [3, 5, 4]


@pytest.mark.heavy
def test_charts_of_a_long_run_include_the_newest_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Run(tmp_path).page
    monkeypatch.setattr(
        view, "fragment", lambda _template, name, **_: str(page._history.points[-1].elapsed_s)
    )
    for second in range(4000):
        page.watch(replace(NOW, elapsed_s=float(second)))
        if page._history.step_s >= view.CHARTS_S:
            assert page.part("charts") == str(page._history.points[-1].elapsed_s)


def test_page_and_its_parts_show_the_same(tmp_path: Path) -> None:
    run, clock = Run(tmp_path), ManualClock()
    live = LivePage(run.spec, run.outputs, clock_s=clock.monotonic_s)
    for second in range(11):
        run.commit("results", result(second))
        live.watch(replace(NOW, elapsed_s=float(second)))
        page, parts = live.page(), live.versions()
        assert parts["results"] == second + 1
        assert all(live.part(name) in page for name in parts)
        clock.advance(view.RESULTS_S)


def test_backlog_shows_its_remaining_time(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for second, records in enumerate((100, 90, 80, 70)):
        run.page.watch(replace(NOW, elapsed_s=float(second), backlog=TopicBacklog(records, None, None, 1.0)))
    assert "70 records wait in Kafka; gone in 7.0 s" in words(run.page.part("numbers"))
    run.page.watch(replace(NOW, elapsed_s=5.0, backlog=TopicBacklog(170, None, None, 1.0)))
    assert "170 records wait in Kafka; it grows" in words(run.page.part("numbers"))


@pytest.mark.parametrize(
    ("changes", "words_of_keys"),
    [
        ({"application": {"type": "sessions"}, "key": "{{ user }}"}, "Its calls run one after another"),
        ({"ordering": "key", "key": "{{ user }}"}, "Its results leave in order"),
        ({"parallelism": 2, "key": "{{ user }}"}, "One of the subtasks does all of its work"),
        ({"key": "{{ user }}"}, ""),
        ({"application": {"type": "trends"}}, ""),
    ],
)
def test_a_hot_key_is_named_with_what_it_delays(
    tmp_path: Path, changes: dict[str, Any], words_of_keys: str
) -> None:
    run = Run(tmp_path, **changes)
    run.commit("results", *(result(number) for number in range(100)))
    for second in range(6):
        now = replace(NOW, elapsed_s=float(second), results=8 * second, pending=0)
        run.page.watch(replace(now, source_held_back_ms=800 * second))
    status = words(run.page.part("status"))
    assert ("have the key 'ann'" in status) == bool(words_of_keys)
    assert words_of_keys in status
    limit = (
        "limited by keys: calls of a key run one after another"
        if "calls run" in words_of_keys
        else "limited by the source"
    )
    assert limit in words(run.page.part("numbers"))


@pytest.mark.parametrize("changes", [{}, {"application": {"type": "sessions"}, "key": "{{ user }}"}])
def test_dead_letters_are_a_share_of_events_with_one_result_each(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = Run(tmp_path, **changes)
    for second in range(6):
        run.page.watch(replace(NOW, elapsed_s=float(second), results=9 * second, dead_letters=second))
    status = words(run.page.part("status"))
    assert "5 dead letters in the last 5 s" in status
    assert ("10% of all events" in status) == (not changes)


def test_the_newest_results_come_first_and_can_be_searched_by_key(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit(
        "results", *(result(number, key=f"k{number}", answer={"team": f"x{number}"}) for number in range(90))
    )
    shown = run.page.part("results")
    assert shown.count('class="card"') == SHOWN_RESULTS
    assert shown.index("t-89") < shown.index("t-88")
    found = words(run.page.part("results", "K17 x17"))
    assert "1 match among the newest 90 results" in found
    assert "t-17" in found
    assert "0 matches" in words(run.page.part("results", "nobody"))


def test_dead_letters_are_shown_by_cause_with_examples(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert "No dead letters." in words(run.page.part("letters"))
    run.commit("letters", letter("timeout"), letter("prompt", "no field text", "{}"), letter("timeout"))
    shown = words(run.page.part("letters"))
    assert "timeout: 2 dead letters" in shown
    assert "prompt: 1 dead letter no field text {} id t-9 · position in@9" in shown


def test_page_names_the_place_of_results_it_cannot_read(tmp_path: Path) -> None:
    topic = {"type": "kafka", "bootstrap": "h:1", "topic": "letters"}
    lost = Run(tmp_path, dead_letters=topic)
    lost.page.watch(NOW)
    lost.page.watch(replace(NOW, dead_letters=9))
    assert "100% of all events: they go to topic letters" in words(lost.page.part("status"))
    run = Run(tmp_path, sink={"type": "kafka", "bootstrap": "h:1", "topic": "answers"})
    assert "Results go to topic answers" in words(run.page.part("results"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_contents_from_outside_are_text_everywhere(tmp_path: Path, attack: str) -> None:
    def filled(folder: Path, text: str) -> str:
        folder.mkdir()
        run = Run(folder, application={"type": "trends"})
        run.page.watch(replace(NOW, engine_failure=text, failed={text: 3}))
        run.page.watch(replace(NOW, engine_failure=text, elapsed_s=15.0, dead_letters=9, failed={text: 9}))
        run.page.watch(replace(NOW, engine_failure=text, elapsed_s=18.0, dead_letters=9, failed={text: 9}))
        run.commit("results", *(result(n, key=text, answer={text: text}, text=text) for n in range(60)))
        run.commit("results", trend(0, text, (text,)))
        run.commit("letters", letter(text, text, text))
        return run.page.page()

    hostile, harmless = (
        seen(filled(tmp_path / name, text)) for name, text in (("a", attack), ("b", "hello"))
    )
    assert hostile.tags == harmless.tags
    assert hostile.names == harmless.names


def test_large_results_stay_short_on_the_page(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit("results", *(result(number, answer="x" * 30_000, text="y" * 20_000) for number in range(50)))
    run.commit("letters", letter("c", "z" * 50_000, "w" * 9_000))
    assert len(run.page.page()) < 100_000


def test_application_view_is_on_top_and_follows_results(tmp_path: Path) -> None:
    run = Run(tmp_path, application={"type": "trends"})
    version = run.page.versions()["application"]
    assert "Nothing rose" in words(run.page.part("application"))
    run.commit("results", trend(0, "storm"))
    run.page._view_due_s = 0.0
    assert run.page.versions()["application"] == version + 1
    view = run.page.part("application")
    assert "storm" in words(view)
    assert "<h1" not in view
    page = run.page.page()
    assert page.index("Viral trends") < page.index("Over time") < page.index("Newest results")


def test_failing_view_stops_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, application={"type": "trends"})

    def make(lines: object) -> str:
        raise KeyError("odd")

    run.page._make = make
    assert set(run.page.versions()) >= {"status", "application"}
    assert "cannot be made" in words(run.page.part("application"))
    assert "odd" in caplog.text


def test_view_is_drawn_at_once_at_the_end_of_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, application={"type": "trends"})
    version = run.page.versions()["application"]
    run.page._view_due_s = float("inf")
    run.commit("results", trend())
    assert run.page.versions()["application"] == version
    run.page.watch(replace(NOW, state="FINISHED"))
    assert run.page.versions()["application"] == version + 1


def test_a_result_with_a_very_large_integer_is_shown(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit("results", result(1))
    run.outputs.results.add(b'{"id": "t-2", "answer": {"n": [%d]}}' % 10**30)
    assert str(10**30) in words(run.page.part("results"))


def test_slow_view_is_drawn_rarely(tmp_path: Path) -> None:
    run = Run(tmp_path, application={"type": "trends"})
    clock = ManualClock()
    page = LivePage(run.spec, run.outputs, clock_s=clock.monotonic_s)

    def make(lines: object) -> str:
        clock.advance(1.0)
        return "<main>view</main>"

    page._make = make
    made = []
    for second in range(200):
        run.outputs.results.added = second
        made.append(page.versions()["application"])
        clock.advance(1.0)
    assert made[-1] <= 2 + 200 * VIEW_SHARE


def test_the_page_of_a_finished_run_needs_no_server(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.page.watch(replace(NOW, state="FINISHED"))
    page = run.page.page(live=False)
    assert "connect-src" not in page
    assert "EventSource" not in page
    assert "finished after 12 s" in words(page)
    assert "connect-src &#39;self&#39;" in run.page.page()
