"""`forebay bench stream` and `goodput`: refused options, files, and output."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import typer
from tests.bench.stream.stream_runs import even, event, stream_run
from tests.cli.commands import refusal

from forebay.bench.report.html_stream import stream_page
from forebay.bench.stream.document import MeasuredStream, event_lines, measured_stream
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.records import ResultRecord
from forebay.cli.bench_stream_figures import describe_load, headlines, reported, show_rate
from forebay.errors import LaunchError

ASKED = {"schedule": {"kind": "poisson", "rate_per_s": 10.0}, "events": 200, "pipeline": {"name": "topics"}}


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "name: p\nsource: {type: generator}\nprompt: '{{ text }}'\nsink: {type: jsonl, path: out}\n"
    )
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stream", "--rate", "0"], "--rate: expected requests per second, above 0"),
        (["stream", "--rate", "1", "--bursts", "5:1"], "--rate and --bursts"),
        (["stream", "--slo-event-ms", "0"], "--slo-event-ms: expected more than 0"),
        (["stream", "--data", "no-such-file"], "no-such-file cannot be read"),
        (["stream", "--process", "engine"], "--process: expected NAME=PID"),
        (["stream", "--find-rate", "--events", "9"], "--find-rate: not allowed with --events"),
        (["stream", "--find-rate", "--repeats", "2"], "--find-rate: not allowed with --repeats"),
        (["stream", "--state", "/tmp/state"], "--state: expected s3://bucket/prefix"),
        (["stream", "--set", "capacity=0"], "capacity"),
        (["stream", "--set", "prompt=null"], "prompt"),
        (["goodput", "--slo-event-ms", "5", "--kill", "jvm:1", "--kills", "2"], "use only one of them"),
        (["goodput", "--slo-event-ms", "5", "--kill", "broker:1"], "--kill: expected PART:SECONDS"),
        (
            ["goodput", "--slo-event-ms", "5", "--engine", "http://127.0.0.1:9", "--kill", "engine:1"],
            "--kill engine: only an engine that is started here can be killed",
        ),
    ],
)
def test_mistakes_are_reported_before_the_start(
    pipeline: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Options that get this far are not refused.
    monkeypatch.setattr("forebay.bench.stream.measure.StreamSession._open", _starts)
    command, *options = words
    assert said in refusal("bench", command, str(pipeline), *options)


def test_rate_search_rejects_windows(pipeline: Path) -> None:
    pipeline.write_text(
        "name: p\nsource: {type: sse, url: 'http://127.0.0.1:9/', time: t}\napplication: {type: trends}\n"
        "sink: {type: jsonl, path: out}\n"
    )
    text = refusal("bench", "stream", str(pipeline), "--find-rate")
    assert "--find-rate: not available for application trends" in text


def _starts(session: object) -> None:
    session.engines = type("NoEngine", (), {"ours": None})()  # type: ignore[attr-defined]


def measured(**changes: object) -> MeasuredStream:
    return measured_stream(stream_run(even(200), asked=ASKED, **changes), EventSlo(within_s=1.0))


def test_a_run_is_written_with_its_events_and_a_page(tmp_path: Path) -> None:
    found: list[MeasuredStream] = []
    with reported(found, str(tmp_path / "run.json"), tmp_path / "run.html"):
        found.append(measured())
    document = orjson.loads((tmp_path / "run.json").read_bytes())
    assert document["runs"][0]["figures"]["goodput"] == 1.0
    assert document["runs"][0]["figures"]["latency"]["committed"]["percentiles"]["50"] == pytest.approx(0.817)
    events = (tmp_path / "run.events.jsonl").read_bytes().splitlines()
    assert len(events) == 200
    assert orjson.loads(events[3])["committed_s"] == pytest.approx(1.117)
    assert "VALID" in (tmp_path / "run.html").read_text()


def report(path: Path, error: BaseException | None, **changes: object) -> None:
    """A command that measures one run, and then fails."""
    found: list[MeasuredStream] = []
    with reported(found, str(path), None):
        found.append(measured(**changes))
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("changes", "error", "status"),
    [
        ({"complete": False}, None, 130),
        ({"others_cores": 2.0, "cores": 2}, None, 1),
        ({}, KeyboardInterrupt(), 130),
    ],
)
def test_exit_status_shows_the_verdict(
    tmp_path: Path, changes: dict[str, object], error: BaseException | None, status: int
) -> None:
    with pytest.raises(typer.Exit) as ended:
        report(tmp_path / "run.json", error, **changes)
    assert ended.value.exit_code == status
    assert (tmp_path / "run.json").exists()


def test_figures_before_an_error_are_written_and_it_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="gone"):
        report(tmp_path / "run.json", LaunchError("gone"))
    assert (tmp_path / "run.json").exists()


def test_without_a_run_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), reported([], str(tmp_path / "run.json"), None):
        raise KeyboardInterrupt
    assert not (tmp_path / "run.json").exists()


def test_text_and_page_of_aggregated_results() -> None:
    records = [
        ResultRecord(
            each, f"k@{each}", float(each), emitted_s=each + 0.5, read_s=each + 0.5, answered_s=each + 1.0,
            left_s=each + 1.0, committed_s=each + 1.5, results=1, stands_for=5, expected=5 + (each == 3),
        )
        for each in range(9)
    ]  # fmt: skip
    asked = {**ASKED, "pipeline": {"name": "chat", "window": "tumbling", "window_size_s": 1.0}}
    one = measured_stream(stream_run(even(200), results=tuple(records), asked=asked), EventSlo(within_s=1.6))
    assert next(headlines(one)) == "9 of 9 results committed, 1 of other events"
    assert describe_load(asked) == "chat: 200 events, poisson rate_per_s 10; tumbling windows size 1 s"
    assert any("k@3 reports 5, expected 6" in reason for reason in one.verdict.reasons)
    page = stream_page([one], "stream")
    assert "results that were there within a time" in page
    assert "until its window was found to be over" in page
    assert len(list(event_lines([one]))) == 209


def test_the_causes_of_dead_letters_are_reported() -> None:
    refused = [
        event(number, number / 10, error=error, results=0, committed_s=None, letters=1)
        for number, error in enumerate(["too_long: 9 tokens", "timeout: 60 s", "too_long: 8 tokens"])
    ]
    lines = list(headlines(measured_stream(stream_run([*even(200)[3:], *refused], asked=ASKED))))
    assert lines[0] == "197 of 200 events committed, 3 dead letters"
    assert lines[1:3] == ["2 of 3 dead letters: too_long: 9 tokens", "1 of 3 dead letters: timeout: 60 s"]


def test_the_answer_of_a_search_is_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[MeasuredStream] = []
    asked = {**ASKED, "schedule": {"kind": "poisson", "rate_per_s": 4.47213595499958}}

    def more() -> dict[str, object]:
        return {"sustained_per_s": 4.47213595499958, "not_sustained_per_s": 5.0, "invalid": []}

    with reported(found, None, None, command="find-rate", more=more, judged=False, answer=show_rate):
        found.append(measured_stream(stream_run(even(200), asked=asked)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "4.472 events/s is sustained; 5 is not"
    assert "topics: 200 events, poisson rate_per_s 4.472" in lines


def test_missing_pipeline_file(tmp_path: Path) -> None:
    assert "missing.yaml" in refusal("bench", "stream", str(tmp_path / "missing.yaml"))


def test_input_files_are_never_overwritten(pipeline: Path) -> None:
    assert "--json" in refusal("bench", "stream", str(pipeline), "--json", str(pipeline))
