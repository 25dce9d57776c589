"""The demo's pipeline from the user's options, and its summary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.cli.demo.plan import (
    GENERAL_TOPICS,
    Demo,
    DemoOptions,
    Right,
    demo_of,
    plan_demo,
    summarize,
    summary_of,
)
from forebay.cli.demo.topics import SLICES
from forebay.connectors.files.settings import CsvSource, JsonlSource
from forebay.connectors.generator.posts import TOPICS
from forebay.connectors.generator.settings import GeneratorSource
from forebay.errors import SettingError
from forebay.settings import SecretRef


def plan(folder: Path, text: str | None = None, name: str = "in.jsonl", **options: Any) -> Demo:
    """The demo for an input file with the content `text`."""
    if text is not None:
        options["input"] = folder / name
        options["input"].write_text(text)
    return plan_demo(DemoOptions(out=folder / "demo", **options))


def topics(demo: Demo) -> Any:
    schema: Any = demo.spec.output and demo.spec.output.json_schema
    return schema["properties"]["topic"]["enum"]


def test_without_an_input_posts_with_a_burst_are_generated(tmp_path: Path) -> None:
    demo = plan(tmp_path, events=600)
    source = demo.spec.source
    assert isinstance(source, GeneratorSource)
    assert source.burst is not None
    assert (source.count, source.burst.start_s, source.burst.topic) == (600, 8.0, "outage")
    assert demo.text_field == "text"
    assert topics(demo) == [*TOPICS, "other"]
    assert demo.spec.dead_letters.path == str(tmp_path / "demo" / "dead-letters")


def test_text_and_time_fields_of_an_input_are_detected(tmp_path: Path) -> None:
    demo = plan(tmp_path, 'no json\n{"body": "a", "created_at": "2026-01-01T00:00:00Z"}\n', events=7)
    source = demo.spec.source
    assert isinstance(source, JsonlSource)
    assert (source.time, source.time_format, source.limit) == ("created_at", "iso8601", 7)
    assert (demo.text_field, source.replay) == ("body", None)
    assert topics(demo) == [*GENERAL_TOPICS, "other"]
    (_, message) = demo.spec.prompt_template().render({"body": "hello"})
    assert message.content == "Post: hello"


@pytest.mark.parametrize(
    ("value", "format"),
    [
        ("2026-01-01 10:00", "iso8601"),
        ("Wed Aug 27 13:08:45 +0000 2008", "%a %b %d %H:%M:%S %z %Y"),
        (1_700_000_000, "unix_s"),
        (1_700_000_000_000, "unix_ms"),
        (1_700_000_000_000_000, "unix_us"),
        (1_700_000_000_000_000_000, "unix_ns"),
        ("tomorrow", None),
    ],
)
def test_format_of_a_time_is_detected(tmp_path: Path, value: Any, format: str | None) -> None:
    source = plan(tmp_path, json.dumps({"text": "a", "time": value})).spec.source
    assert isinstance(source, JsonlSource)
    assert (source.time, source.time_format) == (("time", format) if format else (None, "iso8601"))


def test_field_name_that_is_not_a_template_name(tmp_path: Path) -> None:
    demo = plan(tmp_path, 'a "b",x\nhello,1\n', "in.csv", text_field='a "b"')
    assert isinstance(demo.spec.source, CsvSource)
    assert demo.spec.prompt_template().render({'a "b"': "hello"})[1].content == "Post: hello"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (
            None,
            {"input": Path("x.pdf")},
            "--input: there is no x.pdf; expected a file whose name ends in",
        ),
        ("[1]\n", {}, "--input: no event at the start of .*: a JSON object is needed, found an array"),
        ('{"a": 1}', {}, "--text-field: name the field with the text, one of the input's: a$"),
        ('[{"text": "a"},\n{"text": "b"}]\n', {}, "no event at the start of .*; it looks like a JSON array"),
        (None, {"speed": 0.0, "text_field": "b"}, "^--speed, --text-field: only with --input"),
        (None, {"time_field": "b"}, "^--time-field: only with --input"),
        (
            '{"text": 1}',
            {"text_field": "b"},
            r"--text-field: expected one of the input's fields \(text\), found 'b'$",
        ),
        ('{"text": 1}', {"time_field": "b"}, "--time-field: .* found 'b'$"),
        ('{"text": 1}', {"time_field": "text", "speed": 1.0}, "--speed: needs a time field|--time-field"),
        ('{"text": "x"}', {"time_field": "text"}, "--time-field: 'text' has no time in a known format: 'x'"),
        ('{"text": "x"}', {"speed": 2.0}, "--speed: needs a time field; name it with --time-field: text"),
    ],
)
def test_unusable_input_is_reported(
    tmp_path: Path, text: str | None, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        plan(tmp_path, text, **options)


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    plan(tmp_path)
    (tmp_path / "demo" / "results").mkdir()
    with pytest.raises(SettingError, match="--out: expected a new or empty folder"):
        plan(tmp_path)


def test_engine_may_serve_several_models_and_need_a_key(tmp_path: Path) -> None:
    engine = plan(tmp_path, model="a/b", api_key=SecretRef(env="KEY")).spec.engine
    assert (engine.model, engine.secret()) == ("a/b", SecretRef(env="KEY"))
    plain = plan(tmp_path).spec.engine
    assert (plain.model, plain.secret()) == (None, None)


def result(number: int, topic: str, time_ms: int | None, truth: str = "food") -> dict[str, Any]:
    return {
        "answer": {"sentiment": "neutral", "topic": topic}, "called_s": 0.5, "time_ms": time_ms,
        "usage": {"completion_tokens": 3}, "fields": {"text": f"post {number}", "gold_topic": truth},
    }  # fmt: skip


def write(folder: Path, *lines: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "part-x-0.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def test_summary_counts_the_written_results(tmp_path: Path) -> None:
    demo = plan(tmp_path)
    rows = [result(i, "outage" if 40 <= i < 60 else "food", 1000 * i) for i in range(100)]
    write(tmp_path / "demo" / "results", *rows)
    write(tmp_path / "demo" / "dead-letters", {"cause": "timeout"}, {"cause": "timeout"})
    found = summarize(demo)
    assert (found.results, found.dead_letters, found.completion_tokens) == (100, 2, 300)
    assert found.topics == {"food": 80, "outage": 20}
    assert found.causes == {"timeout": 2}
    assert found.call_p50_s == pytest.approx(0.5, rel=0.1)
    assert len(found.slices) <= SLICES
    assert sum(piece.events for piece in found.slices) == 100
    assert {piece.topic for piece in found.slices if 45_000 <= piece.start_ms < 55_000} == {"outage"}
    assert [example.text for example in found.examples] == [f"post {i}" for i in (0, 20, 40, 60, 80)]
    assert found.examples[0].answer == "neutral, food"


def test_summary_compares_answers_with_the_truth(tmp_path: Path) -> None:
    demo = plan(tmp_path)
    rows = [result(i, "outage" if 40 <= i < 60 else "food", 1000 * i, "outage") for i in range(100)]
    found = summary_of(demo, rows, [])
    assert found.right == Right(20, 100)
    assert found.right.share == 0.2
    assert found.by_topic == {"outage": Right(20, 100)}
    assert found.planted == demo.planted
    assert found.found is not None
    assert (found.found.topic, found.found.events) == ("outage", 20)
    assert sum(piece.outbreak for piece in found.slices) == 20
    words = [row | {"answer": " outage"} for row in rows]
    assert summary_of(demo, words, []).right == Right(100, 100)
    assert summary_of(demo, words, []).examples[0].answer == "outage"
    assert summary_of(demo, words, []).sentiments == {}


def test_summary_without_results_or_times(tmp_path: Path) -> None:
    demo = plan(tmp_path)
    empty = summarize(demo)
    assert (empty.results, empty.slices, empty.examples) == (0, (), ())
    write(tmp_path / "demo" / "results", result(1, "food", None))
    assert summarize(demo).slices == ()


def test_compressed_input_is_inspected_unpacked(tmp_path: Path) -> None:
    packed = tmp_path / "in.csv.gz"
    packed.write_bytes(gzip.compress(b'id,body\n1,"two\nlines"\n'))
    demo = plan(tmp_path, input=packed)
    assert isinstance(demo.spec.source, CsvSource)
    assert demo.text_field == "body"
    packed.write_bytes(gzip.compress(b"caf\xe9;body\n1;a, b\n"))
    demo = plan(tmp_path, input=packed)
    source = demo.spec.source
    assert isinstance(source, CsvSource)
    assert (source.encoding, source.delimiter) == ("cp1252", ";")
    assert "in.csv.gz: read with encoding: 'cp1252' and delimiter: ';', a guess; " in demo.guess
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n', encoding="utf-16")
    assert plan(tmp_path, input=tmp_path / "in.jsonl").spec.source.summary().endswith("in.jsonl (utf-16)")
    (tmp_path / "in.tsv").write_text("id\ttext\n1\ta\n")
    assert plan(tmp_path, input=tmp_path / "in.tsv").guess == ""


def test_a_replay_needs_times(tmp_path: Path) -> None:
    source = plan(tmp_path, '{"text": "a", "date": "2026-01-01"}', speed=60.0).spec.source
    assert isinstance(source, JsonlSource)
    assert source.replay is not None
    assert source.replay.speed == 60.0


def test_own_file_has_no_known_answers(tmp_path: Path) -> None:
    demo = plan(tmp_path, '{"text": "a"}\n')
    found = summary_of(demo, [result(1, "food", 1000)], [])
    assert (found.right, found.by_topic, found.planted) == (None, {}, None)


def test_demo_can_be_planned_again_in_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "kafka").mkdir()
    source = demo_of(DemoOptions(out=tmp_path / "demo", events=30)).spec.source
    assert isinstance(source, GeneratorSource)
    assert source.count == 30
