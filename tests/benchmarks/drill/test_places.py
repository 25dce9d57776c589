"""Inputs of scenarios: their contents and timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.drill.places import FILES_FOLLOWED, Places
from benchmarks.drill.records import cause_of, flaw_of, input_number
from benchmarks.drill.scenario import Range, Scenario, SourceKind, draw
from benchmarks.drill.workload import _position, workload

from forebay.codec import decode
from forebay.connectors.files.reader import parts_of
from forebay.connectors.files.replay import records_of
from forebay.connectors.files.source import Files, line_reader
from forebay.connectors.formats import Format, dead_letter_json
from forebay.records import DeadLetter

SCENARIO = replace(
    draw(1, Range(applications=("infer",), sources=("followed",), sinks=("files",))), events=80, bad=0
)


def places(tmp_path: Path, scenario: Scenario = SCENARIO) -> Places:
    return Places(scenario, workload(scenario), tmp_path / "disk", tmp_path / "disk", None)


def numbers(path: Path) -> list[int]:
    return [orjson.loads(line)["n"] for line in path.read_bytes().splitlines()]


def test_followed_files_appear_as_earlier_ones_become_requests(tmp_path: Path) -> None:
    folder = tmp_path / "disk" / "in"
    with places(tmp_path) as found:
        assert found.endless
        for requests in (0, 0, 5):
            found.give(requests)
        assert sorted(path.name for path in folder.iterdir()) == ["1.jsonl"]
        found.give(6)
        assert numbers(folder / "2.jsonl") == list(range(10, 20))
        for _ in range(FILES_FOLLOWED):
            found.give(80)
    files = (folder / f"{n}.jsonl" for n in range(1, FILES_FOLLOWED + 1))
    assert [number for file in files for number in numbers(file)] == list(range(80))


def test_all_is_out_once_results_and_dead_letters_have_the_right_count(tmp_path: Path) -> None:
    with places(tmp_path) as found:
        for name, lines in (("results", 77), ("dead-letters", 2)):
            (tmp_path / "disk" / name).mkdir()
            (tmp_path / "disk" / name / "part-a-0.jsonl").write_text("{}\n" * lines)
        for _ in range(FILES_FOLLOWED):
            assert found.more_to_come
            found.give(80)
        assert not found.more_to_come
        assert not found.answered()
        assert found.answered(skipped=1)
        (tmp_path / "disk" / "dead-letters" / "part-a-1.jsonl").write_text("{}\n")
        assert found.answered()


@pytest.mark.parametrize("source", ["file", "directory", "csv"])
def test_positions_that_are_foretold_are_those_that_are_read(tmp_path: Path, source: SourceKind) -> None:
    with places(tmp_path, replace(SCENARIO, source=source)) as found:
        records = read(Files(Path(found.source["path"]), Format("csv" if source == "csv" else "jsonl")))
    positions = [record.position for record in records]
    assert positions == [_position(source, 80, number) for number in range(80)]


def test_dead_letters_hold_the_events(tmp_path: Path) -> None:
    with places(tmp_path, replace(SCENARIO, source="letters")) as found:
        assert found.source["type"] == "dead_letters"
        events = read(Files(Path(found.source["path"]), letters=True))
    assert [event.fields["n"] for event in events] == list(range(80))


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("file", Files),
        ("letters", partial(Files, letters=True)),
        ("csv", partial(Files, format=Format("csv"))),
    ],
)
def test_flawed_records_have_the_cause_that_is_expected(
    tmp_path: Path, source: SourceKind, files: Callable[[Path], Files]
) -> None:
    scenario = replace(SCENARIO, source=source, bad=17)
    causes = {str(n): cause_of(scenario, flaw_of(scenario, n)) for n in range(80)}
    with places(tmp_path, scenario) as found:
        records = read(files(Path(found.source["path"])))
    assert len(records) == 80
    for number, record in enumerate(records):
        malformed = causes[str(number)] == "malformed_record"
        assert malformed == isinstance(record, DeadLetter)
        if malformed:
            assert record.cause == "malformed_record"
            assert input_number(orjson.loads(dead_letter_json(record))) == str(number)
    assert sum(cause == "malformed_record" for cause in causes.values()) == 2


def read(files: Files) -> list[Any]:
    reader = line_reader(files)
    return [decode(record.data) for record in records_of(parts_of(files.path, reader), reader)]
