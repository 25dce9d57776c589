"""Applications without a pipeline file: the command line becomes a checked pipeline."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forebay.apps.sessions import Sessions
from forebay.apps.summaries.settings import SummarySpec
from forebay.cli import application
from forebay.errors import SettingError
from forebay.pipeline.load import ApplicationOptions, load_pipeline, preset_spec, source_settings
from forebay.records import Event


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"user": "a", "text": "hello"}\n')
    return path


def made(file: Path, out: Path, *settings: str, **options: Any) -> Any:
    return preset_spec("sessions", ApplicationOptions(str(file), out, **options), settings)


def test_default_settings_and_folders(file: Path, tmp_path: Path) -> None:
    spec = made(file, tmp_path / "out")
    assert spec.application is not None
    assert spec.application.settings() == Sessions()
    assert (spec.name, spec.key, spec.source.path) == ("sessions", "{{ user }}", str(file))
    assert spec.directories() == {
        "sink.path": str(tmp_path / "out" / "results"),
        "dead_letters.path": str(tmp_path / "out" / "dead-letters"),
    }
    assert spec.checkpoint.dir == str(tmp_path / "out" / "state")
    assert spec.event_time is None
    assert spec.routing == "session_affinity"


def test_options_win_over_defaults(file: Path, tmp_path: Path) -> None:
    settings = ("application.budget_tokens=300", "application.system=Be kind.", "flink.x.y=1")
    with pytest.raises(SettingError, match="flink"):
        made(file, tmp_path, "flink.x.y=1")
    spec = made(file, tmp_path, *settings[:2], key="from.name", time="at")
    assert (spec.application.budget_tokens, spec.application.system) == (300, "Be kind.")
    assert (spec.key, spec.source.time) == ("{{ from.name }}", "at")
    assert spec.event_time is not None


@pytest.mark.parametrize("name", ["summary", "trends"])
@pytest.mark.parametrize(
    ("record", "fields"),
    [
        ("", "--time FIELD"),
        ("no JSON", "--time FIELD"),
        ('{"text": "x", "at": null, "n": 5}', "--time FIELD"),
        ('{"created_at": "2017-08-27T00:05:34Z", "text": "2017"}', "--time created_at"),
        ('{"seen": "2017-08-27", "made": "2017-08-26"}', "--time seen or --time made"),
        ('{"created at": "2017-08-27"}', "--time 'created at'"),
    ],
)
def test_applications_with_times_name_the_fields_that_have_one(
    tmp_path: Path, name: str, record: str, fields: str
) -> None:
    file = tmp_path / "posts.jsonl"
    file.write_text(record + "\n")
    with pytest.raises(SettingError, match=f"^forebay run {name}: name the field with the time: {fields}$"):
        preset_spec(name, ApplicationOptions(str(file), tmp_path))
    assert preset_spec(name, ApplicationOptions(str(file), tmp_path), ["source.time=at"])


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("path=3", "FIELD"),
        ("path=none.jsonl", "FIELD"),
        ("encoding=5", "FIELD"),
        # Relative to the folder of the results.
        ("path=rel.jsonl", "made"),
        ("payload=in", "inner"),
    ],
)
def test_fields_with_times_are_those_of_the_settings(tmp_path: Path, setting: str, fields: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rel.jsonl").write_text('{"made": "2017-08-27"}\n')
    file = tmp_path / "posts.jsonl"
    file.write_text('{"seen": "2017-08-27", "in": {"inner": "2017-08-27"}}\n')
    with pytest.raises(SettingError, match=f": --time {fields}$"):
        preset_spec("trends", ApplicationOptions(str(file), tmp_path / "out"), [f"source.{setting}"])


def test_lines_of_text_have_a_time_by_a_pattern(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("2026-01-01T00:00:00 ERROR disk full\n")
    with pytest.raises(
        SettingError, match=r"lines of text have no field .* --time at --set 'source\.line_pattern="
    ):
        preset_spec("summary", ApplicationOptions(str(log), tmp_path))
    pattern = r"source.line_pattern=(?P<at>\S+) (?P<text>.*)"
    spec = preset_spec("summary", ApplicationOptions(str(log), tmp_path, time="at"), [pattern])
    [record] = spec.source.first_records()
    assert isinstance(record, Event)
    assert record.fields == {"at": "2026-01-01T00:00:00", "text": "ERROR disk full"}
    assert record.time_ms == 1_767_225_600_000


def test_time_field_missing_from_the_pattern_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "app.log").touch()
    options = ApplicationOptions(str(tmp_path / "app.log"), tmp_path, time="at")
    for settings in ([], ["source.line_pattern=(?P<when>.*)"]):
        with pytest.raises(SettingError, match=r"a field of the lines as 'time', found at; .*\(\?P<at>"):
            preset_spec("sessions", options, settings)


@pytest.mark.parametrize("pattern", ["(", r"\d+", "(?P<a>x)(y)", "(?P<a>" * 500])
def test_invalid_line_pattern_is_rejected(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "app.log").touch()
    with pytest.raises(SettingError, match=r"source\.line_pattern: "):
        preset_spec(
            "sessions",
            ApplicationOptions(str(tmp_path / "app.log"), tmp_path),
            [f"source.line_pattern={pattern}"],
        )


@pytest.mark.parametrize("source", ["wikimedia", "jetstream", "generator"])
def test_named_sources(source: str, tmp_path: Path) -> None:
    spec = preset_spec("sessions", ApplicationOptions(source, tmp_path), ["application.idle_s=null"])
    assert spec.source.type in {"sse", "websocket", "generator"}
    assert spec.application is not None
    assert spec.application.settings().idle_s is None


@pytest.mark.parametrize("name", ["sessions", "summary", "topics", "trends"])
@pytest.mark.parametrize(
    "source", ["kafka://broker:9092/posts", "in.json", "in.jsonl.gz", "in.tsv", "in.log", "wikimedia"]
)
def test_all_applications_read_every_source_of_init(name: str, source: str, tmp_path: Path) -> None:
    if source.startswith("in."):
        source = str(tmp_path / source)
        Path(source).touch()
    settings = ["source.line_pattern=(?P<at>.*)"] * source.endswith(".log")
    spec = preset_spec(name, ApplicationOptions(source, tmp_path / "out", time="at"), settings)
    assert spec.source.time == "at"
    if spec.source.type == "kafka":
        assert (spec.source.bootstrap, spec.source.topics) == ("broker:9092", ("posts",))
        assert preset_spec(name, ApplicationOptions(source, tmp_path / "out")).source.time is None


def test_generator_accepts_no_time_field(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--time: expected none"):
        preset_spec("trends", ApplicationOptions("generator", tmp_path, time="at"))


def test_a_folder_of_files_is_read_by_their_kind(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("user,text\n")
    (tmp_path / "in" / "_meta.json").write_text("{}")
    assert (
        preset_spec("sessions", ApplicationOptions(str(tmp_path / "in"), tmp_path / "out")).source.type
        == "csv"
    )
    (tmp_path / "in" / "2.jsonl").write_text("")
    with pytest.raises(SettingError, match=r"expected files of one kind whose names end in \.jsonl"):
        preset_spec("sessions", ApplicationOptions(str(tmp_path / "in"), tmp_path / "out"))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("application.budget_tokens", "expected key.in.the.pipeline=VALUE"),
        ("=5", "expected key.in.the.pipeline=VALUE"),
        ("name.x=5", "lies within a value"),
        ("application.budget_tokens=-1", "application.budget_tokens"),
        ("prompt=hello", "expected none with 'application'"),
        ("ordering=key", "expected none with 'application'"),
        ("engine.api=completions", "expected chat with 'application'"),
        ("key=null", "expected a template with application sessions"),
    ],
)
def test_invalid_settings_are_reported(setting: str, said: str, file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=said):
        made(file, tmp_path, setting)


def test_missing_source_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"there is no nowhere\.jsonl"):
        preset_spec("sessions", ApplicationOptions("nowhere.jsonl", tmp_path))


def test_nearest_source_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'wikimedia'"):
        preset_spec("trends", ApplicationOptions("wikimeda", tmp_path))


@pytest.mark.parametrize("source", ["/dev/null", "fifo"])
def test_a_source_that_is_neither_file_nor_folder_is_reported(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    with pytest.raises(SettingError, match=f"--source: expected a file or a folder, found {source}"):
        source_settings(source)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.parquet", b"PAR1\x15\x04", r"found x\.parquet: it is a Parquet file; save it as CSV"),
        ("book.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "it is a document of an old office program; save it as"),
        ("posts.zip", b"\x1f\x8b\x08", r"name it after its content, such as posts\.jsonl\.zip"),
        ("posts", b'{"text": "a"}\n', r"found posts; if it has such content, name it so: posts\.jsonl"),
        ("cut.zip", b"PK\x03\x04", "found cut.zip: File is not a zip file"),
        ("empty/", b"", "found no file in empty"),
    ],
)
def test_a_source_of_another_kind_is_explained(
    name: str, content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.endswith("/"):
        Path(name).mkdir()
    else:
        Path(name).write_bytes(content)
    with pytest.raises(SettingError, match=said):
        source_settings(name)


def test_an_office_document_as_a_source_is_explained(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(SettingError, match="it is a document of an office program; save it as CSV first"):
        source_settings(str(tmp_path / "book.xlsx"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("https://example.com/a.csv", "found 'https://example.com/a.csv'; download the file first"),
        ("kafka://localhost", "kafka://HOST:PORT/TOPIC, found 'kafka://localhost'$"),
    ],
)
def test_a_url_as_a_source_is_explained(source: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        source_settings(source)


def test_records_instead_of_a_pipeline_file_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "my posts.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(
        SettingError, match=r"write a pipeline for it: forebay init --source '.*my posts\.jsonl'"
    ):
        load_pipeline(str(file))


def test_a_source_that_cannot_be_read_is_reported() -> None:
    with pytest.raises(SettingError, match="cannot be read: File name too long"):
        source_settings("x" * 5000)


def said(*words: str) -> str:
    error = CliRunner().invoke(application(), ["run", *words]).exception
    assert isinstance(error, SettingError)
    return str(error)


def test_application_needs_a_source_and_a_file_takes_no_options(tmp_path: Path) -> None:
    assert "name the source with --source" in said("sessions")
    (tmp_path / "p.yaml").write_text("name: p")
    assert said(str(tmp_path / "p.yaml"), "--key", "x").startswith("--key: only for applications")


def test_summaries_need_a_key_and_event_time(file: Path, tmp_path: Path) -> None:
    spec = preset_spec(
        "summary", ApplicationOptions(str(file), tmp_path, time="at"), ["application.window=session"]
    )
    assert spec.application is not None
    assert spec.application == SummarySpec(window="session")
    assert (spec.key, spec.event_time is not None) == ("{{ channel }}", True)
    for wrong, text in (
        ("event_time=null", "event_time"),
        ("key=null", "key"),
        ("application.window=sliding", "step_ms"),
        ("application.work_tokens=100", "work_tokens"),
    ):
        settings = [wrong, "application.step_s=1000"]
        with pytest.raises(SettingError, match=text):
            preset_spec("summary", ApplicationOptions(str(file), tmp_path, time="at"), settings)
