"""`--set` changes a pipeline file's settings, with the file's checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.pipeline.load import load_spec, set_values

FILE = """\
name: p
source: {type: generator}
prompt: "{{ text }}"
engine: http://127.0.0.1:1
sink: {type: jsonl, path: out}
checkpoint:
  interval_s: 7.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    return path


def refused(file: Path, *settings: str) -> str:
    with pytest.raises(SettingError) as caught:
        load_spec(file, settings)
    return str(caught.value)


def test_overrides_win_and_the_rest_stays(file: Path, tmp_path: Path) -> None:
    spec = load_spec(
        file,
        [
            "checkpoint.interval_s=5",
            "journal.path=j.db",
            "engine.model=m",
            "flink.taskmanager.numberOfTaskSlots=3",
            "prompt=Say: {{ text }}",
            "capacity=1",
            "capacity=2",
        ],
    )
    assert (spec.checkpoint.interval_s, spec.checkpoint.timeout_s) == (5.0, 600.0)
    assert spec.journal is not None
    assert spec.journal.path == str(tmp_path / "j.db")
    assert (spec.engine.url, spec.engine.model) == (("http://127.0.0.1:1",), "m")
    assert spec.flink == {"taskmanager.numberOfTaskSlots": 3}
    assert (spec.prompt, spec.capacity) == ("Say: {{ text }}", 2)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("checkpoint.interval_s=x", "--set: checkpoint.interval_s: expected a number, found 'x'"),
        ("capcity=3", "--set: unknown key 'capcity'; did you mean 'capacity'?"),
        ("interval_s=3", "--set: unknown key 'interval_s'; did you mean 'checkpoint.interval_s'?"),
        ("interval_s", "did you mean checkpoint.interval_s=VALUE?"),
        ("capacity", "found 'capacity'; write capacity=VALUE"),
        (
            "ordering=keyed",
            "--set: ordering: expected 'unordered' or 'key', found 'keyed'; did you mean 'key'?",
        ),
        ("routing=rund_robin", "did you mean 'round_robin'?"),
        (
            "name.x=5",
            "--set: name.x lies within a value that is not a mapping: name is 'p'; set name as a whole",
        ),
        ("engine.api_key=sk-123", "expected {env: NAME} or {file: PATH}, found the secret itself"),
        ("flink.mode=process", "--set: flink.mode: expected an option of Flink"),
        ("deadline_s=5", "--set: timeout_s: expected at most deadline_s (5), found 60"),
        (
            "dead_letters.path=x",
            "--set: dead_letters: expected a mapping with the key 'type', found one without",
        ),
        ("capacity.x=1", "--set: capacity: expected a whole number, found a mapping"),
        ("=5", "expected key.in.the.pipeline=VALUE"),
        ("a..b=5", "expected key.in.the.pipeline=VALUE"),
    ],
)
def test_mistake_in_an_option_names_it(file: Path, setting: str, said: str) -> None:
    assert said in refused(file, setting)
    assert "sk-123" not in refused(file, setting)


def test_mistake_in_the_file_keeps_its_line(file: Path) -> None:
    file.write_text(FILE + "capacity: 0\n")
    one, two = refused(file, "shards=0").splitlines()
    assert one.startswith(f"{file}:8: capacity: ")
    assert two.startswith("--set: shards: ")


def test_wrong_type_in_an_option_names_no_line_of_the_file(file: Path) -> None:
    text = refused(file, "sink.type=jsnol")
    assert text.startswith(
        "--set: sink: type: expected one of jsonl, kafka, stdout, found 'jsnol'; did you mean"
    )


def test_too_large_overrides_are_rejected() -> None:
    with pytest.raises(SettingError, match="at most 65536 characters"):
        set_values({}, ["a=" + "x" * 70_000], ())
    with pytest.raises(SettingError, match="at most 64 levels"):
        set_values({}, [".".join("a" * 65) + "=1"], ())


@given(st.text(max_size=40))
def test_any_override_is_accepted_or_rejected(setting: str) -> None:
    document: dict[str, object] = {"name": "p"}
    try:
        (path,) = set_values(document, [setting], [("name",)])
    except SettingError:
        return
    assert path[0] in document
