"""A run's output, counted from its files."""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.connectors.written_counts import EndNote, WrittenCounts
from forebay.errors import SettingError
from forebay.flink.checkpoints import END_NOTE
from forebay.pipeline import outputs
from forebay.pipeline.load import parse_spec
from forebay.pipeline.outputs import OutputCounts, end_notes
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.state_store import LocalStore

LAST = Snapshot(1.0, "FINISHED", failed={"timeout": 9}, cut_answers=9)


def part(folder: Path, number: int, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    name = folder / f"part-{number:08x}-0000-0000-0000-000000000000-{number}.jsonl"
    name.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def result(answer: Any, reason: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0}
    return {"answer": answer, "finish_reason": reason, "usage": usage}


@pytest.mark.parametrize("application", [None, {"type": "summary"}])
def test_failures_are_counted_by_cause(tmp_path: Path, application: dict[str, Any] | None) -> None:
    one_each = application is None
    rest = {"prompt": "x"} if one_each else {"application": application, "key": "k", "event_time": {}}
    spec = parse_spec(
        {"name": "p", "source": {"type": "generator"}, "sink": {"type": "jsonl", "path": "out"}, **rest},
        base=tmp_path,
    )
    counts = OutputCounts(spec, None)
    failures = {"timeout": 2, "answer_cut": 1}
    part(tmp_path / "out", 1, [result({"failures": failures}), result({}, "length")])
    letters = [{"cause": "timeout"}, {"cause": "late"}, {"cause": "late"}]
    part(tmp_path / "out-dead-letters", 1, letters)
    found = counts.since(LAST)
    assert (found.results, found.dead_letters, found.cut_answers) == (2, 3, 1)
    # An answer of the user's own may have a field of that name.
    more = {} if one_each else {"timeout": 3, "answer_cut": 1}
    assert found.failed == {"timeout": 1, "late": 2, **more}


@pytest.mark.parametrize("key", ["sink.path", "dead_letters.path"])
def test_folder_of_another_user_is_named_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    spec = parse_spec(
        {
            "name": "p",
            "source": {"type": "generator"},
            "sink": {"type": "jsonl", "path": "out"},
            "prompt": "x",
        },
        base=tmp_path,
    )
    theirs = spec.directories()[key]

    def parts(path: Path) -> list[Any]:
        if str(path) == theirs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), theirs)
        return []

    monkeypatch.setattr(outputs, "committed_parts", parts)
    with pytest.raises(SettingError, match=f"^{key}: {theirs} cannot be read: Permission denied$"):
        OutputCounts(spec, None)


def test_costs_are_added_up_by_key(tmp_path: Path) -> None:
    spec = parse_spec(
        {
            "name": "p",
            "source": {"type": "generator"},
            "sink": {"type": "jsonl", "path": "out"},
            "prompt": "x",
        },
        base=tmp_path,
    )
    counts = OutputCounts(spec, None)
    part(tmp_path / "out", 1, [{**result("a"), "key": "ann", "cost": 0.1} for _ in range(10)])
    part(tmp_path / "out", 2, [{**result("a"), "key": "bob", "cost": 0.00001}, {**result("a"), "cost": 2}])
    part(
        tmp_path / "out-dead-letters", 1, [{"cause": "timeout", "key": "ann", "cost": 0.2}, {"cause": "late"}]
    )
    found = counts.since(replace(LAST, cost_pico=7))
    assert (found.cost_pico, found.cost_by_key) == (3_200_010_000_000, {"ann": 12 * 10**11, "bob": 10**7})


def test_failures_in_no_file_come_from_the_metrics(tmp_path: Path) -> None:
    kafka = {"type": "kafka", "bootstrap": "127.0.0.1:9092", "topic": "t"}
    files = {"type": "jsonl", "path": "out"}

    def failed(sink: dict[str, Any], dead_letters: dict[str, Any], metrics: dict[str, int]) -> dict[str, int]:
        spec = parse_spec(
            {
                "name": "p",
                "source": {"type": "generator"},
                "application": {"type": "summary"},
                "key": "k",
                "event_time": {},
                "sink": sink,
                "dead_letters": dead_letters,
            },
            base=tmp_path,
        )
        counts = OutputCounts(spec, None)
        if sink is files:
            part(tmp_path / "out", 1, [result({"failures": {"timeout": 2}})])
        else:
            part(tmp_path / "letters", 1, [{"cause": "late"}, {"cause": "late"}])
        return counts.since(Snapshot(1.0, "FINISHED", failed=metrics)).failed

    metrics = {"timeout": 2, "late": 1}
    assert failed(files, {**kafka, "topic": "letters"}, metrics) == metrics
    assert failed(kafka, {"type": "jsonl", "path": "letters"}, metrics) == {"timeout": 2, "late": 2}


def note(what: str, subtasks: int, **counts: Any) -> EndNote:
    return EndNote(what, subtasks, WrittenCounts(**{"failed": Counter(), **counts}))


def test_output_to_topics_is_counted_by_the_sinks_notes(tmp_path: Path) -> None:
    access = {"type": "kafka", "bootstrap": "127.0.0.1:9092"}
    spec = parse_spec(
        {
            "name": "p",
            "source": {"type": "generator"},
            "prompt": "x",
            "sink": {**access, "topic": "t"},
            "dead_letters": {**access, "topic": "letters"},
        },
        base=tmp_path,
    )
    counts, last = OutputCounts(spec, None), Snapshot(1.0, "FINISHED", failed={"timeout": 9}, in_flight=1)
    results = [
        note("results", 2, results=n, prompt_tokens=7, completion_tokens=5, cut_answers=1) for n in (3, 4)
    ]
    letters = note("dead-letters", 1, dead_letters=2, failed=Counter(late=2))
    found = counts.since(last, [*results, letters])
    assert (found.accepted, found.results, found.dead_letters, found.in_flight) == (9, 7, 2, 0)
    assert (found.prompt_tokens, found.completion_tokens, found.cut_answers) == (14, 10, 2)
    assert found.failed == {"late": 2}
    # A subtask that left no note may have written any number.
    assert counts.since(last, [results[0], letters]).results == 0
    assert counts.since(last, []) == last


def test_notes_are_read_from_the_jobs_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, job = LocalStore(tmp_path), "a" * 32
    noted = note("results", 1, results=3)
    assert end_notes(store, job) == []
    (tmp_path / job).mkdir()
    (tmp_path / job / f"{END_NOTE}-1").write_text(noted.encode())
    (tmp_path / job / "finished").touch()
    assert end_notes(store, job) == [noted]
    (tmp_path / job / f"{END_NOTE}-2").mkdir()
    assert end_notes(store, job) == []
    assert f"cannot read the counts that job {job} wrote at its end" in caplog.text


def test_results_may_contain_numbers_beyond_doubles(tmp_path: Path) -> None:
    spec = parse_spec(
        {
            "name": "p",
            "source": {"type": "generator"},
            "prompt": "x",
            "sink": {"type": "jsonl", "path": "out"},
        },
        base=tmp_path,
    )
    counts = OutputCounts(spec, None)
    part(tmp_path / "out", 1, [result("a")])
    (file,) = (tmp_path / "out").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"a"', b"1e400"))
    assert counts.since(LAST).results == 1
