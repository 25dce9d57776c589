"""Live output while a pipeline runs."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from forebay.cli.live import GOES_ON_S, OLD_S, PLAIN_EVERY_S, QUIET_S, LiveLine, line_of, report, silence
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.snapshot import KvTransfers, Snapshot, Throughput, lost_cause

NOW = Snapshot(
    elapsed_s=12.0, state="RUNNING", accepted=20, results=15, dead_letters=1, in_flight=4, prompt_tokens=60,
    completion_tokens=40, event_p50_s=0.25, event_p99_s=1.5,
)  # fmt: skip


def console(*, terminal: bool = False) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=200)


def text(of: Console) -> str:
    assert isinstance(of.file, StringIO)
    return of.file.getvalue()


def test_line_shows_input_and_output() -> None:
    over = Throughput()
    for second in range(11):
        over.add(replace(NOW, elapsed_s=float(second), completion_tokens=33 * second))
    assert line_of(NOW, over) == (
        "   12 s running · in 20 · out 15 · in flight 4 · event p50 250 ms p99 1.5 s · 33 tokens/s · "
        "dead letters 1"
    )


def test_line_of_an_application_counts_read_records() -> None:
    over = Throughput()
    for second in range(11):
        over.add(replace(NOW, elapsed_s=float(second), read=200 * second, read_share=0.05 * second))
    now = replace(NOW, read=2000, read_share=0.5, results=1)
    line = line_of(now, over, one_each=False)
    assert "2,000 records read (200/s) · 50% of the source, 10 s left · 1 answer · in flight 4 · " in line
    assert "0 records read · 0 answers" in line_of(Snapshot(0.0, "RUNNING"), Throughput(), one_each=False)


def test_line_and_end_show_the_bottleneck() -> None:
    shown = console()
    with LiveLine(shown) as line:
        for second in range(40):
            line.show(replace(NOW, elapsed_s=float(second), results=3 * second, pending=5))
        last = replace(NOW, state="FINISHED", elapsed_s=40.0, results=119)
        report(last, one_each=True, json=None, console=shown, limited=line.throughput.limited(last))
    assert " · dead letters 1 · limited by the engine: 3.0 events/s" in text(shown)
    assert text(shown).rstrip().endswith("100 tokens; limited by the engine: 3.0 events/s")


def test_the_line_and_the_end_show_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    by_key = {f"k{n}": n * 10**9 for n in range(30)}
    last = replace(NOW, state="FINISHED", cost_pico=435 * 10**9 + 1, cost_by_key=by_key)
    assert " · 0 tokens/s · cost 0.44 · dead letters 1" in line_of(last, Throughput())
    shown = console()
    report(last, one_each=True, json=None, console=shown)
    assert text(shown).rstrip().endswith("100 tokens, cost 0.44")
    report(last, one_each=True, json="-", console=shown)
    written = capsys.readouterr().out
    assert '"total":0.435000000001' in written
    cost = json.loads(written)["cost"]
    assert list(cost["by_key"].items())[:2] == [("k29", 0.029), ("k28", 0.028)]
    assert (len(cost["by_key"]), cost["other_keys"]) == (20, 0.045000000001)
    report(NOW, one_each=True, json="-", console=shown)
    assert json.loads(capsys.readouterr().out)["cost"] is None


@pytest.mark.parametrize(
    ("backlog", "words"),
    [
        (TopicBacklog(196, 12_000, 3_400, 2.0), " · waiting 196 (~15k tokens) · "),
        (TopicBacklog(3, 400, 99, 2.0), " · waiting 3 (~499 tokens) · "),
        (TopicBacklog(90_000, 2_000_000, 400_000, 2.0), " · waiting 90000 (~2.4M tokens) · "),
        (TopicBacklog(196, None, None, 2.0), " · waiting 196 · "),
        (TopicBacklog(0, 0, 0, 2.0), " · waiting 0 · "),
        (TopicBacklog(7, None, None, OLD_S), " · waiting 7, as of 15 s ago · "),
    ],
)
def test_line_shows_the_kafka_backlog(backlog: TopicBacklog, words: str) -> None:
    assert words in line_of(replace(NOW, backlog=backlog), Throughput())


LOST = "of this run's transactions could not be committed because Kafka had aborted them: their results"


@pytest.mark.parametrize(
    ("shown", "lines", "end"),
    [
        ([{"failed_commits": n} for n in (0, 1, 1, 3)], {f"1 {LOST}": 1, f"3 {LOST}": 2}, "commits 3"),
        (
            [{"suspect_times": n} for n in (0, 1, 3)],
            {"an event has a time in 1970": 1},
            "3 events have times",
        ),
        (
            [{"replaced_files": n} for n in (0, 1, 1, 3)],
            {"1 file in the followed folder was": 1, "2 files in the followed folder were": 1},
            "",
        ),
        (
            [{"restarts": 1, "failure": "[bold]boom"}] * 2,
            {"Flink restarts the job: [bold]boom\n": 1},
            "restarts 1",
        ),
        ([{"engine_failure": "the engine ended"}] * 2, {"the engine ended\n": 1}, ""),
        (
            [{"failed": {"b": 1, "a": 2}, "cut_answers": 3}],
            {"failed, by cause: a 2, b 1": 1},
            "3 answers were cut",
        ),
    ],
)
def test_incidents_are_reported_once_and_at_the_end(
    shown: list[dict[str, Any]], lines: dict[str, int], end: str
) -> None:
    where = console()
    where.width = 1000
    with LiveLine(where) as line:
        for number, changes in enumerate(shown):
            line.show(replace(NOW, elapsed_s=PLAIN_EVERY_S * number, **changes))
    report(replace(NOW, **shown[-1]), one_each=True, json=None, console=where)
    for words, count in lines.items():
        assert text(where).count(words) == count, words
    assert end in text(where)


def test_failure_of_all_records_is_reported_once() -> None:
    where, asked = console(), list[str]()
    where.width = 1000

    def why(cause: str) -> str:
        asked.append(cause)
        return f"{cause}: no such field"

    with LiveLine(where, why_lost=why) as line:
        for lost in (0, 10, 40, 41, 0, 60):
            failed = {"bad_request": lost} if lost else {}
            line.show(replace(NOW, elapsed_s=float(lost), results=0, dead_letters=lost, failed=failed))
    assert asked == ["bad_request"]
    assert (
        text(where).count("all of the last 40 records became dead letters: bad_request: no such field; ") == 1
    )
    assert text(where).count("became dead letters") == 1


def test_folder_that_cannot_be_read_is_reported_with_its_reason() -> None:
    where, reasons = console(), iter(["source folder in/b cannot be read: Permission denied", ""])
    where.width = 1000
    with LiveLine(where, why_unread=lambda: next(reasons)) as line:
        for number, unreadable in enumerate((0, 1, 1, 0, 1)):
            line.show(replace(NOW, elapsed_s=float(number), unreadable_folders=unreadable))
    assert text(where).count("nothing new is read: source folder in/b cannot be read: Permission denied") == 1
    assert text(where).count("the followed folder can be read again") == 1
    assert text(where).count("nothing new is read: the followed folder, or one in it, could not be") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"results": 1},
        {"dead_letters": 19, "failed": {"bad_request": 19}},
        {"failed": {"bad_request": 20, "malformed_record": 20}},
        {"failed": {}},
    ],
)
def test_failures_of_some_records_are_no_warning(changes: dict[str, Any]) -> None:
    lost: dict[str, Any] = {"results": 0, "dead_letters": 40, "failed": {"bad_request": 40}}
    assert lost_cause(replace(NOW, **lost), one_each=True) == "bad_request"
    assert lost_cause(replace(NOW, **{**lost, **changes}), one_each=True) == ""


def test_few_refused_records_of_an_application_are_no_warning() -> None:
    lost = replace(NOW, results=0, dead_letters=40, failed={"no_time": 40}, read=1000)
    assert lost_cause(lost, one_each=False) == ""
    assert lost_cause(replace(lost, read=42), one_each=False) == "no_time"


def test_records_that_kafka_deleted_unread_are_named_once_and_counted() -> None:
    where, gaps = console(), ("t/0: offsets 3 to 5 were deleted unread", "t/1: offset 9 was")
    with LiveLine(where) as line:
        line.show(replace(NOW, gaps=gaps[:1], skipped_records=3))
        line.show(replace(NOW, gaps=gaps, skipped_records=4))
        line.show(replace(NOW, gaps=gaps, skipped_records=4))
    assert [text(where).count(gap) for gap in gaps] == [1, 1]
    assert "skipped 4" in line_of(replace(NOW, gaps=gaps, skipped_records=4), Throughput())
    assert "skipped" not in line_of(NOW, Throughput())
    end = console()
    report(replace(NOW, gaps=gaps, skipped_records=4), one_each=True, json=None, console=end)
    assert "at most 4 records were deleted from Kafka before being read, at 2 places" in text(end)


def test_recovery_from_a_loss_has_its_own_permanent_line() -> None:
    where = console()
    with LiveLine(where) as line:
        line.show(NOW)
        lost = replace(NOW, state="RESUMING", resumes=("gone",), resuming="gone; resuming from the beginning")
        line.show(lost)
        runs = replace(lost, state="RUNNING", elapsed_s=NOW.elapsed_s + PLAIN_EVERY_S)
        line.show(runs)
        line.show(replace(runs, checkpoint_failure="No space left on device"))
        assert line.last == replace(runs, checkpoint_failure="No space left on device")
    lines = text(where).splitlines()
    assert lines[1] == "gone; resuming from the beginning"
    assert "· resumed 1 ·" in lines[2]
    assert lines[3] == "a checkpoint failed: No space left on device"
    assert len(lines) == 4


def test_object_store_outage_is_reported_at_its_start_and_end() -> None:
    where = console()
    with LiveLine(where) as line:
        line.show(NOW)
        for _ in range(2):
            line.show(replace(NOW, store_failure="bucket b: the keys have expired; renew them"))
        line.show(NOW)
    lines = text(where).splitlines()
    assert lines[1:] == [
        "bucket b: the keys have expired; renew them. The stream is paused until it is available",
        "the object store is available again",
    ]


CLOSING = (
    "CheckpointException: Checkpoint was declined (task is closing)",
    "CheckpointException: Checkpoint was declined (tasks not ready)",
    "CheckpointException: TaskManager received a checkpoint request for unknown task a1b2. Failure reason: "
    "Task local checkpoint failure.",
)


@pytest.mark.parametrize("failure", CLOSING)
def test_checkpoint_failure_at_the_jobs_end_is_not_reported(failure: str) -> None:
    where = console()
    with LiveLine(where) as line:
        line.show(NOW)
        # The last calls may take their time.
        for seconds in (0.5, 5.0, 60.0):
            ends = replace(NOW, elapsed_s=NOW.elapsed_s + seconds, checkpoint_failure=failure)
            line.show(ends)
        line.show(replace(ends, state="FINISHED", accepted=NOW.accepted + 9))
    assert "checkpoint" not in text(where)


@pytest.mark.parametrize("failure", CLOSING)
def test_checkpoint_failure_during_a_run_is_reported_once(failure: str) -> None:
    where = console()
    with LiveLine(where) as line:
        for second in range(30):
            runs = replace(NOW, elapsed_s=float(second), accepted=second, checkpoint_failure=failure)
            line.show(runs)
            assert (f"a checkpoint failed: {failure}" in text(where)) == (second >= GOES_ON_S)
    assert text(where).count("a checkpoint failed") == 1


@pytest.mark.parametrize(
    ("now", "words"), [(NOW, "no answer for 5 s"), (replace(NOW, in_flight=0), "no new event for 5 s")]
)
def test_line_names_what_it_waits_for(now: Snapshot, words: str) -> None:
    assert silence(now, QUIET_S, QUIET_S) == words
    assert silence(now, QUIET_S - 0.1, QUIET_S - 0.1) == ""
    assert silence(replace(now, state="CREATED"), QUIET_S, QUIET_S) == ""


def test_no_missing_input_is_reported_while_records_are_read() -> None:
    shown = console(terminal=True)
    with LiveLine(shown, one_each=False) as line:
        for second in range(60):
            line.show(Snapshot(float(second), "RUNNING", read=200 * second))
        assert "no new event" not in text(shown)
        for second in range(60, 70):
            line.show(Snapshot(float(second), "RUNNING", read=12_000))
    assert "no new event for 5 s" in text(shown)


def test_without_a_terminal_a_line_is_printed_every_half_minute() -> None:
    plain = console()
    with LiveLine(plain) as line:
        for second in range(75):
            line.show(replace(NOW, elapsed_s=float(second), results=second))
    assert [row.split(" s ")[0].strip() for row in text(plain).splitlines()] == ["0", "30", "60"]
    assert PLAIN_EVERY_S == 30


def test_the_end_is_one_line_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    plain = console()
    last = replace(NOW, state="FINISHED", backlog=TopicBacklog(3, 40, 10, 1.5))
    report(last, one_each=True, json=None, console=plain)
    assert text(plain) == "finished after 12 s: 20 events, 15 results, 1 dead letter, 100 tokens\n"
    report(last, one_each=True, json="-", console=plain)
    document = json.loads(capsys.readouterr().out)
    assert (document["results"], document["accepted"]) == (15, 20)
    report(replace(NOW, failed={"timeout": 1}), one_each=False, json="-", console=plain)
    document_of_application = json.loads(capsys.readouterr().out)
    assert (document_of_application["accepted"], document_of_application["failed"]) == (None, {"timeout": 1})
    assert document["backlog"] == {"records": 3, "prompt_tokens": 40, "completion_tokens": 10, "age_s": 1.5}


def test_after_a_wait_for_the_engine_time_starts_again() -> None:
    plain = console()
    with LiveLine(plain) as line:
        waiting = Snapshot(40.0, "WAITING FOR THE ENGINE", engine_failure="waiting: no connection")
        for now in (waiting, replace(waiting, elapsed_s=45.0), Snapshot(0.5, "RUNNING")):
            line.show(now)
    rows = text(plain).splitlines()
    assert rows[0] == "waiting: no connection"
    assert rows[1].startswith("   40 s waiting for the engine · ")
    assert rows[2].startswith("    0 s running · ")
    assert len(rows) == 3


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown = console(terminal=True)
    with LiveLine(shown) as line:
        line.show(NOW)
    assert "12 s running" in text(shown)


def test_the_line_shows_how_many_prompts_fell_back() -> None:
    now = replace(NOW, kv_transfers=KvTransfers(transferred=7))
    assert "prefilled" not in line_of(now, Throughput())
    fell_back = replace(now, kv_transfers=KvTransfers(7, no_server=2, no_kv_cache=1))
    assert " · prefill fallbacks 3" in line_of(fell_back, Throughput())


def test_line_names_unusual_conditions_only_if_present() -> None:
    odd = line_of(replace(NOW, retries=2, restarts=1, engine_restarts=3, event_p50_s=0.0), Throughput())
    assert "retries 2 · restarts 1 · engine restarts 3" in odd
    assert "p50 – " in odd


def test_on_a_terminal_one_line_is_drawn_over() -> None:
    shown = console(terminal=True)
    with LiveLine(shown) as line:
        line.show(NOW)
        line.show(replace(NOW, elapsed_s=13.0))
    assert "13 s running" in text(shown)
    assert text(shown).count("\n") <= 1


def test_without_one_result_per_event_the_end_counts_records(capsys: pytest.CaptureFixture[str]) -> None:
    plain, end = console(), replace(NOW, state="FINISHED", read=600)
    report(end, one_each=False, json=None, console=plain)
    assert text(plain) == "finished after 12 s: 600 records read, 15 results, 1 dead letter, 100 tokens\n"
    restarted = console()
    report(replace(end, restarts=1), one_each=False, json=None, console=restarted)
    assert text(restarted) == "finished after 12 s: 15 results, 1 dead letter, 100 tokens\n"
    report(NOW, one_each=False, json="-", console=plain)
    assert json.loads(capsys.readouterr().out)["accepted"] is None


def test_failures_are_shown_by_cause_and_cut_answers_counted() -> None:
    failed = {"timeout": 1, "prompt_too_long": 7, "a": 2, "b": 1}
    now = replace(NOW, failed=failed, cut_answers=3)
    assert " · failed: prompt_too_long 7, a 2, timeout 1, … · cut 3" in line_of(now, Throughput())
    shown = console()
    report(replace(now, state="FINISHED"), one_each=False, json=None, console=shown)
    message = text(shown)
    assert "failed, by cause: prompt_too_long 7, a 2, timeout 1, b 1" in message
    assert "3 answers were cut at max_tokens (finish_reason length): raise sampling.max_tokens if" in message
