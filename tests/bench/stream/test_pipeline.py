"""The pipeline that runs instead of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.bench.stream.events import (
    EventLoad,
    EventSlo,
    StreamOptions,
    due_offsets,
    event_lines,
    fields_of,
    read_data,
)
from forebay.bench.stream.loads import EventLoadOptions
from forebay.bench.stream.pipeline import Places, asked_of, measured_document, read_pipeline
from forebay.errors import SettingError
from forebay.pipeline.load import parse_spec

DOCUMENT: dict[str, Any] = {
    "name": "topics",
    "source": {"type": "jsonl", "path": "posts"},
    "prompt": "About? {{ text }}",
    "capacity": 16,
    "ordering": "key",
    "key": "{{ user }}",
    "journal": {"path": "answers.db"},
    "sink": {"type": "jsonl", "path": "out"},
    "checkpoint": {"interval_s": 2, "dir": "state"},
}


def test_only_source_and_sinks_are_replaced_for_the_measurement(tmp_path: Path) -> None:
    spec = read_pipeline(DOCUMENT, ["capacity=4"])
    made = parse_spec(measured_document(spec, Places("http://127.0.0.1:1/events", tmp_path)))
    assert (made.capacity, made.ordering, made.key) == (4, "key", "{{ user }}")
    assert made.prompt == "About? {{ text }}"
    assert made.checkpoint.interval_s == 2
    assert made.source.type == "sse"
    assert made.timeline
    assert all(path.startswith(str(tmp_path)) for path in made.written().values())
    assert made.checkpoint.dir.startswith(str(tmp_path))
    assert made.journal is not None
    assert made.journal.path.startswith(str(tmp_path))


def test_user_assignments_get_no_generated_texts(tmp_path: Path) -> None:
    document = {key: DOCUMENT[key] for key in ("name", "source", "sink")}
    spec = read_pipeline({**document, "application": {"type": "topics"}}, [])
    assert spec.assignments is not None
    made = parse_spec(measured_document(spec, Places("http://127.0.0.1:1/events", tmp_path)))
    assert made.assignments is None


def test_settings_do_not_change_the_mapping_that_was_given() -> None:
    read_pipeline(DOCUMENT, ["checkpoint.interval_s=9"])
    assert DOCUMENT["checkpoint"]["interval_s"] == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no event"),
        ('{"a": 1}\n{"a": \n', "data.jsonl:2: expected a JSON object"),
        ("[1]\n", "data.jsonl:1: expected a JSON object, found '\\[1\\]'"),
        (None, "cannot be read"),
    ],
)
def test_invalid_data(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=words):
        read_data(path)


def test_the_same_seed_gives_the_same_times() -> None:
    load = EventLoadOptions(rate=5, seconds=10).load()
    assert load.events == 50
    assert due_offsets(load) == due_offsets(EventLoadOptions(rate=5, seconds=10).load())
    assert due_offsets(load) != due_offsets(EventLoadOptions(rate=5, seconds=10).load(1))
    assert due_offsets(load)[-1] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0.0}, "--rate: expected requests per second, above 0"),
        ({"rate": float("inf")}, "--rate"),
        ({"rate": 1.0, "bursts": "5:1"}, "--rate and --bursts decide when to send"),
        ({"events": 5, "seconds": 1.0}, "--events and --seconds"),
        ({"bursts": "5:1", "seconds": 1.0}, "--seconds 1: expected more than 0, with --rate"),
        ({"events": 0}, "expected 1 to"),
        ({"bursts": "5:1", "constant": True}, "give --rate"),
    ],
)
def test_invalid_loads(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        EventLoadOptions(**options).load()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EventSlo(within_s=0), "--slo-event-ms: expected more than 0"),
        (lambda: EventLoad(events=2_000_000), "--events: expected at most 1000000"),
        (lambda: StreamOptions(pipeline={}, warm_events=0), "--warm-events: expected 1 to"),
        (lambda: StreamOptions(pipeline={}, patience_s=0), "--patience: expected more than 0"),
    ],
)
def test_invalid_options(make: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make()


def test_generated_loads_have_different_prompts() -> None:
    texts = [each["text"] for nonce in ("a", "b") for each in fields_of(None, 300, 0, nonce)]
    assert len(set(texts)) == 600


def test_a_report_names_the_windows() -> None:
    document = {key: DOCUMENT[key] for key in ("name", "key", "source", "sink")} | {
        "application": {"type": "summary", "window": "sliding", "size_s": 4, "step_s": 1},
        "source": {**DOCUMENT["source"], "time": "t"},
        "event_time": {},
    }
    asked = asked_of(read_pipeline(document, ["application.size_s=8"]))
    assert {name: asked[name] for name in asked if name.startswith("window")} == {
        "window": "sliding",
        "window_size_s": 8.0,
        "window_step_s": 1.0,
    }


def test_lines_of_a_load_have_id_and_time() -> None:
    (line,) = event_lines(["e7"], [123], iter([{"text": "hi"}]))
    assert line == b'123 e7 {"text":"hi","forebay_event":"e7","forebay_due_us":123}\n'


def test_data_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    data = read_data(tmp_path / "data.jsonl")
    assert [each["a"] for each in fields_of(data, 5, 0, "n")] == [1, 2, 1, 2, 1]
    assert [each["id"] for each in fields_of(None, 2, 0, "n")] == ["post-0000000", "post-0000001"]


def test_a_load_without_options() -> None:
    load = EventLoadOptions().load()
    assert (load.events, load.schedule.asked()) == (300, {"kind": "poisson", "rate_per_s": 10.0})


def test_all_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.000000,10,5\n2024-05-10 00:00:02.000000,10,5\n"
    )
    load = EventLoadOptions(trace=path, speed=2).load()
    assert (load.events, due_offsets(load)) == (2, [0.0, 1.0])
