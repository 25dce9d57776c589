"""`forebay init` writes a file that `forebay run` accepts, and overwrites nothing."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.commands import forebay, refusal
from typer.testing import Result

from forebay.cli.starter import Starter, fields_of, name_of, pipeline_text
from forebay.connectors.files.settings import CsvSource
from forebay.errors import SettingError
from forebay.pipeline.load import load_spec, parse_spec
from forebay.yaml_document import parse_yaml


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My Posts.jsonl").write_text('{"id": 1, "body": "a"}\nbroken\n{"id": 2, "user id": "u"}\n')
    (tmp_path / "rows.csv").write_text("user,text\na,b\n")
    return tmp_path


def init(*words: str) -> Result:
    return forebay("init", *words)


def test_fields_of_a_file_are_detected(folder: Path) -> None:
    done = init("p.yaml", "--source", "My Posts.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    text = (folder / "p.yaml").read_text()
    assert "Fields that templates may use: id, body, user id" in text
    spec = load_spec(folder / "p.yaml")
    assert (spec.name, spec.prompt) == ("my-posts", "In one word, what is this about? {{ body }}")
    assert spec.source.path == str(folder / "My Posts.jsonl")  # type: ignore[union-attr]


def test_all_options_at_once(folder: Path) -> None:
    (folder / "deep").mkdir()
    words = ("--source=rows.csv", "--prompt=Is it: {{ text }}?", "--choices=yes, no,yes", "--key=user")
    more = ("--engine", "http://127.0.0.1:8100", "--model", "m", "--name", "mine")
    assert init("deep/p.yaml", *words, *more).exit_code == 0
    spec = load_spec(folder / "deep" / "p.yaml")
    assert spec.output is not None
    assert spec.output.json_schema["enum"] == ["yes", "no"]
    assert (spec.engine.url, spec.engine.model, spec.name) == (("http://127.0.0.1:8100",), "m", "mine")
    assert (spec.key, spec.ordering) == ("{{ user }}", "key")
    assert Path(spec.source.path).resolve() == folder / "rows.csv"  # type: ignore[union-attr]


def test_an_export_of_a_spreadsheet_is_read_as_it_is(folder: Path) -> None:
    (folder / "export.csv").write_text("nr;text\n1;café, naïve\n", encoding="cp1252")
    assert init("--source", "export.csv", "--yes").exit_code == 0
    source = load_spec(folder / "pipeline.yaml").source
    assert isinstance(source, CsvSource)
    assert (source.encoding, source.delimiter) == ("cp1252", ";")
    assert "encoding: cp1252  # A guess: check it." in (folder / "pipeline.yaml").read_text()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("wikimedia", "sse"),
        ("jetstream", "websocket"),
        ("generator", "generator"),
        ("kafka://h:9092/posts", "kafka"),
    ],
)
def test_unusable_sources(folder: Path, source: str, kind: str) -> None:
    assert init("--source", source, "--yes").exit_code == 0
    assert load_spec(folder / "pipeline.yaml").source.type == kind


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "pipeline.yaml").write_text("mine")
    assert "never overwrites" in refusal("init", "--source", "generator", "--yes")
    assert (folder / "pipeline.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no terminal to ask questions; give --source and --prompt, or --yes"),
        (["--source", "none.jsonl", "--yes"], "there is no none.jsonl"),
        (["none/p.yaml", "--yes"], "there is no folder none"),
        (["--source", "generator", "--prompt", "{{ x"], "prompt: expected a template"),
        (["--engine", "nowhere", "--yes"], "forebay init: engine.url"),
        (["--source", "rows.csv", "--yes", "--key", "usr"], "key: field 'usr' is missing"),
        (["--source", "My Posts.jsonl", "--prompt", "{{ txt }}"], "prompt: field 'txt' is missing"),
        (["--source", "generator", "--prompt", "What?"], "the prompt has no field"),
        (["--name", "Not A Name", "--yes"], "name: "),
    ],
)
def test_a_mistake_writes_nothing(folder: Path, words: list[str], said: str) -> None:
    assert said in refusal("init", *words)
    assert not list(folder.rglob("*.yaml"))


def typed(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Simulate a user's answers; returns the questions."""
    asked: list[str] = []
    left = iter(answers)

    def prompt(question: str, **_: object) -> str:
        asked.append(question)
        return next(left)

    module = importlib.import_module("forebay.cli.init")
    monkeypatch.setattr(module.typer, "prompt", prompt)
    monkeypatch.setattr(module, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    return asked


def test_questions_are_asked_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = typed(monkeypatch, "rows.csv", "What? {{ text }}", "a,b", "local")
    done = init()
    assert done.exit_code == 0, done.output
    assert len(asked) == 4
    assert "Fields: user, text" in done.stderr
    assert load_spec(folder / "pipeline.yaml").prompt == "What? {{ text }}"


def test_invalid_answer_is_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "array.json").write_text('[{"text": "a"}]\n')
    sources = ("none.jsonl", "array.json", "rows.csv")
    prompts = ("What? {{ text", "What? {{ txt }}", "What?", "What? {{ text }}")
    asked = typed(monkeypatch, *sources, *prompts, "", "nowhere", "http://127.0.0.1:8100")
    done = init()
    assert done.exit_code == 0, done.output
    assert [question.split()[1] for question in asked] == [*7 * ["to"], "answers,", *2 * ["(a"]]
    for text in (
        "--source: there is no none.jsonl",
        "it looks like a JSON array",
        "prompt: expected a template",
        "prompt: field 'txt' is missing; the event has user, text",
        "the prompt has no field",
        "forebay init: engine.url: expected a URL",
    ):
        assert text in done.stderr
    # Of a file that is not there yet.
    assert "yaml:" not in done.stderr
    spec = load_spec(folder / "pipeline.yaml")
    assert (spec.prompt, spec.engine.url) == ("What? {{ text }}", ("http://127.0.0.1:8100",))


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
    st.lists(st.text(max_size=10), max_size=4),
)
@example("a\x85b", ["0\x850", "\u2028x\u2029y"])
@example("A¼", [])
@example("not", [])
def test_any_field_and_choice_make_a_file_that_loads(field: str, choices: list[str]) -> None:
    names = tuple(dict.fromkeys(one.strip() for one in choices if one.strip()))
    starter = Starter("p", "generator", "What? {{ text }}", choices=names, key=field)
    text = pipeline_text(starter, [field], Path("."))
    try:
        document, _ = parse_yaml(text, "p.yaml")
    except SettingError:
        # YAML has no place for some characters, even in a comment.
        assert not field.isprintable() or not all(name.isprintable() for name in names)
        return
    spec = parse_spec(document)
    if names:
        assert spec.output is not None
        assert spec.output.json_schema["enum"] == list(names)


def test_only_the_beginning_of_a_file_is_read(folder: Path) -> None:
    lines = [json.dumps({f"f{n}": "x" * 100}) for n in range(10_000)]
    (folder / "big.jsonl").write_text("\n".join(lines))
    assert fields_of("big.jsonl") == [f"f{n}" for n in range(20)]


def test_compressed_file_is_inspected_unpacked(folder: Path) -> None:
    (folder / "rows.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfuser,text\na,b\n"))
    assert fields_of("rows.csv.gz") == ["user", "text"]
    (folder / "posts.JSONL.gz").write_bytes(gzip.compress(b'{"body": "a"}\n'))
    assert fields_of("posts.JSONL.gz") == ["body"]


def test_an_empty_file_is_reported_as_empty(folder: Path) -> None:
    (folder / "empty.jsonl").write_text("")
    done = init("--source", "empty.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    assert "warning: empty.jsonl is empty, so its fields are unknown" in done.stderr


def test_a_file_with_only_column_names_has_known_fields(folder: Path) -> None:
    (folder / "head.csv").write_text("id,text\n")
    done = init("--source", "head.csv", "--yes")
    assert done.exit_code == 0, done.output
    assert "warning: head.csv has no records yet" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("a.csv", "Nr;Datum;Notiz\n1;01.02.2025;kaputt\n2;02.02.2025;laut\n", "Notiz"),
        ("a.csv", "Id,Text\nlongest-of-all,a\n", "Text"),
        ("a.jsonl", '{"id": 1, "by": "me", "said": "It blinks."}\n', "said"),
        ("a.jsonl", '{"a": 1, "b": 2}\n', "a"),
    ],
)
def test_the_default_prompt_asks_about_a_text(folder: Path, name: str, content: str, field: str) -> None:
    (folder / name).write_text(content)
    assert init("--source", name, "--yes").exit_code == 0
    assert load_spec(folder / "pipeline.yaml").prompt == f"In one word, what is this about? {{{{ {field} }}}}"


def test_names() -> None:
    assert [name_of(text) for text in ("My Posts.jsonl", "kafka://h:1/a_b", "…")] == [
        "my-posts",
        "a-b",
        "first",
    ]
