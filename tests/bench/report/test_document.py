"""Every document can be read back; damage is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.report.made_runs import VALID, invalid, made_run, measured

from forebay.bench.records import Chunk, EngineSample, LoadRun, RequestRecord
from forebay.bench.report.document import (
    DIGITS,
    Report,
    document,
    read_report,
    requests_path,
    write_report,
)
from forebay.errors import SettingError

SECONDS = st.floats(0, 1e6).map(lambda value: round(value, DIGITS))
COUNTS = st.none() | st.integers(0, 1 << 40)
WORDS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
RECORDS = st.builds(
    RequestRecord,
    index=st.integers(0, 1 << 40),
    due_s=SECONDS,
    sent_s=st.none() | SECONDS,
    ended_s=SECONDS,
    first_byte_s=st.none() | SECONDS,
    chunks=st.lists(st.builds(Chunk, at_s=SECONDS, tokens=COUNTS), max_size=5).map(tuple),
    asked_prompt_tokens=COUNTS,
    asked_output_tokens=COUNTS,
    asked_exact=st.booleans(),
    prompt_tokens=COUNTS,
    output_tokens=COUNTS,
    cached_tokens=COUNTS,
    finish_reason=WORDS,
    status=COUNTS,
    error=WORDS,
    group=WORDS,
    session=WORDS,
)


def rounded(run: LoadRun) -> LoadRun:
    def micros(value: Any) -> Any:
        return round(value, DIGITS) if isinstance(value, float) else value

    records = []
    for record in run.records:
        values: dict[str, Any] = {name: micros(getattr(record, name)) for name in RequestRecord.__slots__}
        values["chunks"] = tuple(Chunk(round(c.at_s, DIGITS), c.tokens) for c in record.chunks)
        records.append(RequestRecord(**values))
    samples = tuple(replace(each, at_s=round(each.at_s, DIGITS)) for each in run.samples)
    return replace(run, records=tuple(records), samples=samples)


def test_report_round_trip(tmp_path: Path) -> None:
    runs = [rounded(made_run(seed=seed, rate_per_s=rate)) for seed, rate in ((0, 5.0), (1, 20.0))]
    report = Report(
        "serve",
        (
            measured(runs[0], verdict=invalid("schedule delay p99 12.0 ms, above 5 ms")),
            measured(runs[1], None, VALID),
        ),
    )
    write_report(tmp_path / "run.json", report)
    assert read_report(tmp_path / "run.json") == report


@given(records=st.lists(RECORDS, max_size=4))
def test_request_round_trip(records: list[RequestRecord], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("run") / "run.json"
    one = measured(made_run(requests=1))
    write_report(path, Report("serve", (replace(one, run=replace(one.run, records=tuple(records))),)))
    assert read_report(path).runs[0].run.records == tuple(records)


def test_without_its_requests_a_document_still_has_its_figures(tmp_path: Path) -> None:
    report = Report("serve", (measured(made_run()),))
    write_report(tmp_path / "run.json", report)
    requests_path(tmp_path / "run.json").unlink()
    found = read_report(tmp_path / "run.json").runs[0]
    assert found.run.records == ()
    assert found.figures == report.runs[0].figures


def damaged(change: Any) -> bytes:
    found = document(Report("serve", (measured(made_run(requests=2)),)))
    change(found)
    return orjson.dumps(found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a document of forebay bench"),
        (b'{"format": "other"}', "not a document of forebay bench"),
        (damaged(lambda d: d.update(runs=[])), "expected 1 to"),
        (damaged(lambda d: d["runs"].append(3)), "runs[1]"),
        (damaged(lambda d: d["runs"][0].pop("figures")), "runs[0].figures: Field required"),
        (damaged(lambda d: d["runs"][0].update(duration_s="long")), "runs[0].duration_s"),
        (damaged(lambda d: d["runs"][0]["figures"].update(offered=None)), "runs[0].figures.offered"),
        (damaged(lambda d: d["runs"][0]["samples"][0].update(values=1)), "runs[0].samples[0].values"),
        (
            damaged(lambda d: d["runs"][0]["figures"]["distributions"]["ttft"]["percentiles"].pop("50")),
            "runs[0].figures.distributions.ttft.percentiles: 50 is missing",
        ),
    ],
)
def test_a_damaged_document_is_named_with_its_fault(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(SettingError) as error:
        read_report(tmp_path / "run.json")
    assert str(tmp_path / "run.json") in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: not JSON"),
        (b"[]", "line 2: not a request"),
        (b"{}", "line 2: not a request"),
        (b'{"run": 1, "index": 0, "due_s": 0, "ended_s": 1}', "there is no run 1"),
        (b'{"run": 0, "index": 0, "ended_s": 1}', "line 2.due_s: Field required"),
        (b'{"run": 0, "index": 0, "due_s": "x", "sent_s": 1, "ended_s": 1}', "line 2.due_s"),
        (b'{"run": 0, "index": 0, "due_s": 0, "sent_s": 1, "ended_s": 1, "chunks": [1]}', "line 2"),
        (
            b'{"run": 0, "index": 0, "due_s": 0, "sent_s": 1, "ended_s": 1, "chunks": [[]]}',
            "line 2.chunks[0]",
        ),
    ],
)
def test_a_damaged_request_is_named_with_its_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "run.json"
    write_report(path, Report("serve", (measured(made_run(requests=1)),)))
    requests_path(path).write_bytes(requests_path(path).read_bytes() + line + b"\n")
    with pytest.raises(SettingError) as error:
        read_report(path)
    assert said in str(error.value)


def test_a_missing_document_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none\.json cannot be read"):
        read_report(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"run\.json cannot be written"):
        write_report(tmp_path / "file" / "run.json", Report("serve", ()))


def test_a_sample_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    values = {"running": 1.0, "hit_share": float("nan"), "rate": float("inf")}
    run = replace(made_run(requests=1), samples=(EngineSample(1.0, values),))
    write_report(tmp_path / "run.json", Report("serve", (measured(run),)))
    assert read_report(tmp_path / "run.json").runs[0].run.samples == (EngineSample(1.0, {"running": 1.0}),)
