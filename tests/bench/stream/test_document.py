"""Recorded pipelines are read back and compared."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.bench.report.made_runs import VALID, made_run, measured
from tests.bench.stream.stream_runs import STAGES_S, even, event, lost, stream_run
from typer.testing import CliRunner

from forebay.bench.compare import BOOTSTRAP, WELCH, Difference, compare_runs
from forebay.bench.report.document import Report, write_report
from forebay.bench.stream.compare import STREAMS
from forebay.bench.stream.document import (
    MeasuredStream,
    measured_stream,
    read_streams,
    stream_document,
    write_stream,
)
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.records import EventRecord, Killed, MeasuredCheckpoint, ResultRecord, StreamRun
from forebay.cli import application
from forebay.errors import SettingError

SLO = EventSlo(within_s=0.9)


def asked(rate_per_s: float = 10.0, **pipeline: Any) -> dict[str, Any]:
    schedule = {"kind": "poisson", "rate_per_s": rate_per_s}
    return {"schedule": schedule, "events": 400, "data": "posts", "pipeline": {"name": "p", **pipeline}}


def run(slower: float = 1.0, seed: int = 0, **changes: Any) -> StreamRun:
    events = []
    for index in range(400):
        stages_s = list(STAGES_S)
        stages_s[5] *= slower * (1 + ((index * 7 + seed * 13) % 17 - 8) / 40)
        events.append(event(index, index / 10, tuple(stages_s)))
    return stream_run(events, **{"asked": asked(), "others_cores": 0.1, "cores": 2, **changes})


def made(*runs: StreamRun) -> list[MeasuredStream]:
    return [measured_stream(each, SLO) for each in runs]


def write(path: Path, *runs: StreamRun, command: str = "stream", **more: Any) -> Path:
    found = made(*runs)
    write_stream(path, found, {**stream_document(found, command), **more})
    return path


def one(found: Any, name: str) -> Difference:
    (load,) = found.loads
    (difference,) = (each for each in load.differences if each.name == name)
    return difference


def rounded(event: EventRecord) -> EventRecord:
    """Times with about the precision of a document."""
    moments = {name: value for name, value in asdict(event).items() if isinstance(value, float)}
    return replace(event, **{name: pytest.approx(value, abs=1e-6) for name, value in moments.items()})


def test_document_round_trip(tmp_path: Path) -> None:
    result = ResultRecord(0, "k@1", 1.0, committed_s=2.0, results=1, stands_for=5, expected=5)
    whole = run(
        results=(result,),
        kills=(Killed("jvm", 1.0, 2.0),),
        planned_kills=1,
        checkpoints=(MeasuredCheckpoint(1, 0.5, 0.02, 1000, 500),),
        left_open=7,
        provenance={"target": "here"},
    )
    (before,), found = made(whole), read_streams(write(tmp_path / "a.json", whole))
    (after,) = found.runs
    assert (after.figures, after.verdict, after.slo) == (before.figures, before.verdict, SLO)
    assert whole.events[0].free_s == 0.0
    assert list(after.run.events) == [rounded(each) for each in whole.events]
    assert replace(after.run, events=()) == replace(whole, events=())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "not a document of forebay bench stream"),
        (b"{", "not JSON"),
        (b'{"format": "forebay-bench-stream/1", "runs": []}', "expected 1 to 10000 runs"),
        (b'{"format": "forebay-bench-stream/1", "runs": [{}]}', r"runs\[0\].began_at: Field required"),
    ],
)
def test_a_damaged_document_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(SettingError, match=words):
        read_streams(tmp_path / "a.json")


def test_a_damaged_event_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", run())
    (tmp_path / "a.events.jsonl").write_bytes(b'{"run": 0, "index": 0}\n')
    with pytest.raises(SettingError, match=r"a.events.jsonl: line 1\.id: Field required"):
        read_streams(path)


@pytest.mark.heavy
def test_a_faster_engine_is_found_over_the_events_and_over_repeats() -> None:
    found = compare_runs(made(run()), made(run(0.5, seed=3)), STREAMS)
    mean = one(found, "to answered mean")
    assert (mean.method, mean.better) == (BOOTSTRAP, True)
    assert mean.after - mean.before == pytest.approx(-0.1, abs=0.01)
    assert mean.low is not None
    assert mean.low < -0.1 + 0.01
    assert one(found, "committed/s").low is None, "one rate has no interval"
    repeats = [run(seed=seed) for seed in range(3)], [run(0.5, seed=seed) for seed in range(3, 6)]
    both = compare_runs(made(*repeats[0]), made(*repeats[1]), STREAMS)
    assert (one(both, "to answered p50").method, one(both, "to answered p50").better) == (WELCH, True)


@pytest.mark.heavy
def test_another_pipeline_is_a_change_and_another_load_is_an_obstacle() -> None:
    found = compare_runs(made(run()), made(run(asked=asked(capacity=4))), STREAMS)
    assert found.changes == (("pipeline capacity", "–", "4"),)
    with pytest.raises(SettingError, match=r"schedule rate per s: 10\.0 in A, 20\.0 in B"):
        compare_runs(made(run()), made(run(asked=asked(20.0))), STREAMS)
    bad = replace(run(), events=(*run().events, lost(400, 40.0)))
    with pytest.raises(SettingError, match="10 events/s, B: INVALID: 1 of 401 events have neither"):
        compare_runs(made(run()), made(bad), STREAMS)
    many = run(results=(ResultRecord(0, "k@1", 1.0, committed_s=2.0, results=1),))
    with pytest.raises(SettingError, match="what is measured: events in A, results in B"):
        compare_runs(made(run()), made(many), STREAMS)


@pytest.mark.heavy
def test_loads_with_and_without_kills_are_compared_apart() -> None:
    both = run(), run(2.0, planned_kills=1, kills=(Killed("jvm", 1.0, 2.0),))
    found = compare_runs(made(*both), made(*both), STREAMS)
    assert [load.name for load in found.loads] == ["10 events/s", "10 events/s, 1 kills"]


def bench(*words: str) -> Any:
    return CliRunner().invoke(application(), ["bench", *words])


@pytest.mark.heavy
def test_report_and_compare_take_such_documents(tmp_path: Path) -> None:
    a, b = str(write(tmp_path / "a.json", run())), str(write(tmp_path / "b.json", run(0.5)))
    shown = bench("report", a)
    assert shown.exit_code == 0, shown.output
    assert "400 of 400 events committed" in shown.stdout
    page = bench("report", a, "--html", str(tmp_path / "a.html"))
    assert (page.exit_code, page.stdout) == (0, "")
    assert "Pipeline p, end to end" in (tmp_path / "a.html").read_text()
    again = orjson.loads(bench("report", a, "--json", "-").stdout)
    assert again == orjson.loads((tmp_path / "a.json").read_bytes())
    compared = bench("compare", a, b, "--html", str(tmp_path / "ab.html"))
    assert compared.exit_code == 0, compared.output
    assert "to answered mean" in compared.stdout
    assert "better" in compared.stdout
    assert "Share of events by event time to answered" in (tmp_path / "ab.html").read_text()


def test_kinds_are_not_mixed(tmp_path: Path) -> None:
    stream = write(tmp_path / "a.json", stream_run(even(200), asked=asked()))
    server = tmp_path / "s.json"
    write_report(server, Report("serve", (measured(made_run(requests=200), verdict=VALID),)))
    for words in ((str(stream), str(server)), (str(server), str(stream))):
        error = bench("compare", *words).exception
        assert isinstance(error, SettingError)
        assert "a.json was written by forebay bench stream," in str(error)
    error = bench("report", str(stream), "--format", "vllm").exception
    assert isinstance(error, SettingError)
    assert "that format is for requests, not events" in str(error)
    refused = bench("report", str(stream), "--run", "2").exception
    assert "--run 2: " in str(refused)


def test_without_its_events_a_document_still_shows_its_figures(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", run())
    (tmp_path / "a.events.jsonl").unlink()
    (found,) = read_streams(path).runs
    assert (found.run.events, found.figures.offered) == ((), 400)


def test_a_search_and_its_answer_are_shown_again(tmp_path: Path) -> None:
    found = {"sustained_per_s": 2.5, "not_sustained_per_s": 3.0, "invalid": []}
    path = write(tmp_path / "a.json", run(), command="find-rate", **found)
    assert bench("report", str(path)).stdout.splitlines()[-1] == "2.5 events/s is sustained; 3 is not"
    # As they were written: the search's own words are not lost.
    assert orjson.loads(bench("report", str(path), "--json", "-").stdout)["sustained_per_s"] == 2.5


def test_omitted_values_are_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", run())
    document = orjson.loads(path.read_bytes())
    for key in ("kills", "followed", "countable", "left_open"):
        del document["runs"][0][key]
    path.write_bytes(orjson.dumps(document))
    (found,) = read_streams(path).runs
    assert (found.run.kills, found.run.noun, found.run.countable, found.run.left_open) == (
        (),
        "event",
        True,
        0,
    )
