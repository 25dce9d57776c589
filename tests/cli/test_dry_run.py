"""`forebay run --dry-run` checks and prints, and starts and creates nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.commands import forebay, refusal
from typer.testing import Result

from forebay.pipeline.load import load_spec

FILE = """\
name: p
source: {type: jsonl, path: in.jsonl}
prompt: "{{ text }}"
sink: {type: jsonl, path: out}
"""

NAMES = ["c.yaml", "in.csv", "in.jsonl", "p.yaml"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(FILE)
    (tmp_path / "c.yaml").write_text(FILE.replace("jsonl, path: in.jsonl", "csv, path: in.csv"))
    (tmp_path / "in.csv").write_text("txt\na\n")
    (tmp_path / "in.jsonl").write_text('{"text": "a", "user": "u"}\n')
    return tmp_path


def run(*words: str) -> Result:
    return forebay("run", *words)


def test_dry_run_prints_a_pipeline_file_and_creates_nothing(folder: Path) -> None:
    done = run("p.yaml", "--dry-run", "--set", "capacity=3")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert "# → infer" in done.stdout
    (folder / "again.yaml").write_text(done.stdout)
    assert load_spec(folder / "again.yaml") == load_spec(folder / "p.yaml", ["capacity=3"])


def test_as_a_document() -> None:
    document = json.loads(run("p.yaml", "--dry-run", "--json").stdout)
    assert document["pipeline"]["capacity"] == 64
    assert [stage["name"] for stage in document["graph"]] == ["source", "infer", "sink", "dead_letters"]


def test_a_prompt_with_single_braces_is_a_warning() -> None:
    done = run("p.yaml", "--dry-run", "--set", "prompt=What is {text}?")
    assert done.exit_code == 0
    assert "warning: the prompt has no field" in done.stderr


def test_first_records_that_lack_a_field_are_a_warning_next_to_the_plan() -> None:
    done = run("p.yaml", "--dry-run", "--set", "prompt={{ txt }}")
    assert done.exit_code == 0
    text = "warning: source: not even the first record can be used: prompt: field 'txt' is missing"
    assert text in done.stderr
    assert "warning" not in done.stdout


def test_the_engines_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    url = ["--set", "engine=http://h:1"]
    for words in (["p.yaml"], ["sessions", "--source", "in.jsonl"]):
        engine = json.loads(run(*words, *url, "--api-key-env", "MY_KEY", "--dry-run", "--json").stdout)[
            "pipeline"
        ]
        assert engine["engine"]["url"] == ["http://h:1"]
        assert engine["engine"]["api_key"]["env"] == "MY_KEY"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["p.yaml", "--set", "source.path=none.jsonl"], "source.path: "),
        (["p.yaml", "--set", "engine.api_key.env=NO_SUCH_KEY"], "engine.api_key: "),
        (["p.yaml", "--set", "sink.path=in.jsonl/x"], "sink.path: "),
        (["c.yaml"], "prompt: field 'text' is missing; the event has txt"),
        (["session"], "no such file or application; .*did you mean 'sessions'"),
        (
            ["summmary", "--source", "in.jsonl"],
            "summmary: no such file or application; .*did you mean 'summary'",
        ),
        (["p.yaml", "--api-key-env", "NO_SUCH_KEY"], "engine.api_key: .*NO_SUCH_KEY"),
        (
            ["sessions", "--source", "in.jsonl", "--api-key-env", "NO_SUCH_KEY"],
            "engine.api_key: .*NO_SUCH_KEY",
        ),
        (["p.yml"], "no such file or application.*did you mean 'p.yaml'"),
        (["p.yaml", "--key", "a"], "--key: only for applications"),
        (
            ["p.yaml", "--set", 'sink={"type": "stdout"}', "--cluster", "h:1"],
            "sink.type: expected jsonl with --cluster",
        ),
    ],
)
def test_dry_run_fails_on_immediate_errors_of_a_run(words: list[str], said: str) -> None:
    assert re.search(said, refusal("run", *words, "--dry-run"))


def test_it_needs_no_connector() -> None:
    letters = {"type": "kafka", "bootstrap": "h:1", "topic": "t"}
    assert run("p.yaml", "--dry-run", "--set", f"dead_letters={json.dumps(letters)}").exit_code == 0


def test_an_application_too(folder: Path) -> None:
    done = run("sessions", "--source", "in.jsonl", "--dry-run", "--set", "application.idle_s=60")
    assert "idle_s: 60.0" in done.stdout
    assert not (folder / "out").exists()
