"""Problems in a file's first records are reported before the start."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.connectors.formats import dead_letter_json
from forebay.errors import SettingError
from forebay.pipeline.load import ApplicationOptions, parse_spec, preset_spec
from forebay.pipeline.preflight import constant_prompt_warning, first_record_warning, reads_nothing
from forebay.pipeline.spec import PipelineSpec
from forebay.records import DeadLetter

GOOD = b'{"text": "a", "user": "u"}\n'


def spec(
    folder: Path, content: bytes | None = None, *, name: str = "in.jsonl", **document: Any
) -> PipelineSpec:
    if content is not None:
        (folder / name).write_bytes(content)
    source = {"type": "csv" if ".csv" in name else "jsonl", "path": name, **document.pop("source", {})}
    usual = {"name": "p", "source": source, "prompt": "{{ text }}", "sink": {"type": "jsonl", "path": "out"}}
    return parse_spec({**usual, **document}, base=folder)


@pytest.mark.parametrize(
    ("content", "document"),
    [
        (GOOD, {}),
        (b"\n" + GOOD, {}),
        (b"broken\n" * 99 + GOOD, {}),
        (b'{"a": 1}\n{"text": 2}\n', {}),
        (b'{"a": 1}\n', {"prompt": "{{ text | default('none') }}"}),
        (b'{"a": 1}\n', {"prompt": "{% if text is defined %}{{ text }}{% endif %}"}),
        (b'{"a b": 1}\n', {"prompt": "{{ event['a b'] }}", "key": "{{ event['a b'] }}"}),
        (b'{"text": "a", "user": null}\n' * 9 + GOOD, {"key": "{{ user }}"}),
        (b'{"text": "a", "user": " "}\n' * 9 + GOOD, {"key": "{{ user }}"}),
        (b"", {}),
        (b"x" * (1 << 20), {}),
    ],
)
def test_no_doubt_with_a_good_record_or_none_readable(
    tmp_path: Path, content: bytes, document: dict[str, Any]
) -> None:
    assert first_record_warning(spec(tmp_path, content, **document)) is None


@pytest.mark.parametrize(
    ("content", "document", "said"),
    [
        (
            GOOD * 200,
            {"prompt": "{{ txt }}"},
            "none of the first 100 records can be used: prompt: field 'txt'",
        ),
        (GOOD, {"prompt": "{{ txt }}"}, "'txt' is missing; the event has text, user"),
        (
            GOOD,
            {"scaling": {"max": 2, "classes": {"of": "{{ tire }}", "slo_s": {"alarm": 5.0}}}},
            "scaling.classes.of: field 'tire' is missing",
        ),
        (
            GOOD,
            {"key": "{{ event.usr }}"},
            "not even the first record has a key: key: field 'usr' is missing",
        ),
        (
            GOOD,
            {
                **{"key": "{{ usr }}", "prices": {"*": {"prompt": 1, "completion": 1}}},
                "budget": {"per_key_per_day": 1},
            },
            "not even the first record can be used: key: field 'usr' is missing",
        ),
        (
            b'{"text": "a", "user": null}\n',
            {"key": "{{ user }}"},
            "record has a key: key: field 'user' is null",
        ),
        (GOOD, {"prompt": "{{ text }} {{ key }}"}, "prompt: the record has no key"),
        (GOOD, {"source": {"time": "at"}}, "'at'"),
        (b"text,user\na,b\n", {}, "not JSON: .*; it looks like CSV: use `type: csv`$"),
        (b"text;user\na;b\n", {}, 'it looks like CSV: use `type: csv` and `delimiter: ";"`$'),
        (b'[{"text": "a"},\n{"text": "b"}]\n', {}, "it looks like a JSON array"),
        (b'{\n "text": "a"\n}\n', {}, "it looks like JSON over several lines"),
        (b'{"text": "a"}\r{"text": "b"}\r', {}, r"it has a carriage return; .*: tr '\\r' '\\n'$"),
        (b"{'text': 'a', 'n': 1}\n{'text': 'b', 'n': 2}\n", {}, r"found a quote|not JSON: [^;]*$"),
        (b"hello\nworld\n", {}, "not JSON: [^;]*$"),
        (
            b"PAR1\x15\x04\xd8\nx\n",
            {},
            "can be used: it is a Parquet file; save it as CSV or JSON lines first$",
        ),
    ],
)
def test_doubt_if_all_first_records_would_be_dead_letters(
    tmp_path: Path, content: bytes, document: dict[str, Any], said: str
) -> None:
    found = first_record_warning(spec(tmp_path, content, **document))
    assert found is not None
    with pytest.raises(SettingError, match=said):
        raise SettingError(found)


def test_text_that_begins_like_a_binary_file_is_text(tmp_path: Path) -> None:
    found = first_record_warning(spec(tmp_path, b"user,text\nORCHARD,2,3\n", name="in.csv"))
    assert found is not None
    assert "ORC file" not in found


def test_doubt_if_all_replayed_letters_would_fail_again(tmp_path: Path) -> None:
    letter = DeadLetter(b'{"body": "b"}', "template_failed", "d", position="t/0@3", record_ms=5)
    tombstone = DeadLetter(b"", "tombstone", "d", position="t/0@4", record_ms=5)
    lines = "".join(f"{dead_letter_json(each)}\n" for each in (tombstone, letter))
    source = {"type": "dead_letters"}
    found = first_record_warning(spec(tmp_path, lines.encode(), source=source))
    assert found is not None
    assert "none of the first 2 records can be used" in found
    assert (
        first_record_warning(spec(tmp_path, source=source, prompt="{{ body }}", key="{{ kafka.offset }}"))
        is None
    )


def test_missing_csv_column_is_an_error(tmp_path: Path) -> None:
    rows = b"user,text\na,b\n"
    assert first_record_warning(spec(tmp_path, rows, name="in.csv")) is None
    with pytest.raises(
        SettingError, match=r"^prompt: field 'txt' is missing; the event has user, text; it is"
    ):
        first_record_warning(spec(tmp_path, rows, name="in.csv", prompt="{{ txt }}"))
    with pytest.raises(SettingError, match=r"in\.csv is empty: it has no line with the names"):
        first_record_warning(spec(tmp_path, b"", name="in.csv"))
    found = first_record_warning(spec(tmp_path, b"user,text\na\n", name="in.csv"))
    assert found is not None
    assert "the row has 1 columns, the header has 2" in found


def test_another_delimiter_of_a_csv_file_is_proposed(tmp_path: Path) -> None:
    source = {"type": "csv", "columns": ["text", "user"]}
    found = first_record_warning(spec(tmp_path, b"a,b,c\n", name="in.csv", source=source))
    assert found is not None
    assert found.endswith("the row has 3 columns, the header has 2")
    found = first_record_warning(spec(tmp_path, b"a;b\n", name="in.csv", source=source))
    assert found is not None
    assert found.endswith("its columns seem to be separated by ';': name that `delimiter`")


def test_json_lines_that_are_read_as_csv_are_recognised(tmp_path: Path) -> None:
    found = first_record_warning(spec(tmp_path, b'{"a": 1}\n{"a": 1, "text": "b"}\n', name="in.csv"))
    assert found is not None
    assert found.endswith("; it looks like JSON lines: use `type: jsonl`")


@pytest.mark.parametrize(
    ("prompt", "fix"),
    [
        ({"prompt": "What is this?"}, "add one with {{ NAME }}"),
        ({"prompt": "What is {text}?"}, "write {{ text }} instead of {text}"),
        (
            {"prompt": None, "messages": [{"role": "user", "content": "Judge ${ text }"}]},
            "write {{ text }} instead of {text}",
        ),
    ],
)
def test_a_prompt_without_a_field_is_a_warning(tmp_path: Path, prompt: dict[str, Any], fix: str) -> None:
    found = constant_prompt_warning(spec(tmp_path, GOOD, **prompt))
    assert found == f"the prompt has no field, so every event gets the same question: {fix}"


def test_one_field_in_any_message_is_enough(tmp_path: Path) -> None:
    parts = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "{{ text }}"}]
    assert constant_prompt_warning(spec(tmp_path, GOOD, prompt=None, messages=parts)) is None
    assert constant_prompt_warning(spec(tmp_path, GOOD)) is None
    assert constant_prompt_warning(preset_spec("trends", ApplicationOptions("generator"))) is None


def test_column_missing_in_some_files_is_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "in.csv").mkdir()
    (tmp_path / "in.csv" / "a.csv").write_bytes(b"id,body\n1,a\n")
    (tmp_path / "in.csv" / "b.csv").write_bytes(b"text,id\nb,2\n")
    source = spec(tmp_path, name="in.csv").source
    assert first_record_warning(spec(tmp_path, name="in.csv")) is None
    assert source.warnings() == [
        "in.csv/b.csv: lacks 'body' and has 'text', unlike in.csv/a.csv: was a column renamed?"
    ]
    (tmp_path / "in.csv" / "b.csv").write_bytes(b"more,id\nb,2\n")
    assert "none of the first 2 records can be used" in str(
        first_record_warning(spec(tmp_path, name="in.csv"))
    )


def test_odd_headers_are_warnings(tmp_path: Path) -> None:
    assert spec(tmp_path, b"text,text\na,b\n", name="in.csv").source.warnings() == [
        "in.csv: 2 columns are named 'text'; the later ones are read as 'text_2'"
    ]
    assert spec(tmp_path, b"17,hello\n18,you\n", name="in.csv").source.warnings() == [
        "in.csv: the first column is named '17', as if it were data; if the file has no header, name its "
        "columns: `columns: [NAME, \u2026]`"
    ]
    assert spec(tmp_path, b"text,id\na,b\n", name="in.csv").source.warnings() == []
    assert spec(tmp_path, GOOD).source.warnings() == []


@pytest.mark.parametrize(
    ("name", "content", "encoding"),
    [
        ("in.csv", "text,user\ncafé,b\n", "utf-16"),
        ("in.csv", "text,user\ncafé,b\n", "utf-16-be"),
        ("in.csv", "téxt,user\na,b\n", "cp1252"),
        ("in.jsonl", '{"text": "café"}\n', "utf-16"),
        ("in.jsonl", '{"text": "café"}\n', "cp1252"),
    ],
)
def test_missing_encoding_is_named_before_the_start(
    tmp_path: Path, name: str, content: str, encoding: str
) -> None:
    likely = "cp1252" if encoding == "cp1252" else "utf-16"
    with pytest.raises(SettingError, match=f"`encoding: {likely}`"):
        raise SettingError(str(first_record_warning(spec(tmp_path, content.encode(encoding), name=name))))
    good = content.replace("téxt", "text").encode(encoding)
    assert first_record_warning(spec(tmp_path, good, name=name, source={"encoding": encoding})) is None


@pytest.mark.parametrize("application", ["sessions", "summary", "topics", "trends"])
def test_application_needs_its_text(tmp_path: Path, application: str) -> None:
    (tmp_path / "chat.jsonl").write_text(
        '{"user": "u", "channel": "c", "at": "2026-01-01", "body": {"a": ""}}\n'
    )

    def pipeline(*settings: str) -> PipelineSpec:
        given = ApplicationOptions(str(tmp_path / "chat.jsonl"), tmp_path / "out", time="at")
        return preset_spec(application, given, settings)

    assert "application.text: field 'text' is missing; the event has user, channel, at, body" in str(
        first_record_warning(pipeline())
    )
    assert first_record_warning(pipeline("application.text=body.a")) is None


def test_only_the_beginning_of_a_file_is_read(tmp_path: Path) -> None:
    broken = json.dumps({"a": "x" * 100_000}).encode() + b"\n"
    found = first_record_warning(spec(tmp_path, 3 * broken + GOOD))
    assert found is not None
    assert "the first 2 records" in found


def test_folders_and_archives_are_checked_in_read_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"")
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(b"broken\n"))
    assert "first record" in str(first_record_warning(spec(tmp_path, name="in")))
    (tmp_path / "in" / "c.jsonl").write_bytes(GOOD)
    assert first_record_warning(spec(tmp_path, name="in")) is None


def test_followed_files_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    followed = spec(tmp_path, name="in", source={"follow": True})
    (tmp_path / "in" / "a.jsonl").write_bytes(b"broken\n")
    assert first_record_warning(followed) is None
    assert not reads_nothing(followed)


def test_file_without_records_reads_nothing(tmp_path: Path) -> None:
    assert reads_nothing(spec(tmp_path, b"\n\n"))
    assert reads_nothing(spec(tmp_path, b"user,text\n", name="in.csv"))
    assert not reads_nothing(spec(tmp_path, b"broken"))
    assert not reads_nothing(spec(tmp_path, GOOD))
    assert not reads_nothing(spec(tmp_path, b'{"text": "' + bytes(1 << 19) + b'"}\n'))
