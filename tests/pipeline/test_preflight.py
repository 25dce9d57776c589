"""A pipeline's requirements are checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.preflight import check_paths, check_secrets
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import Settings


def spec(folder: Path, **document: Any) -> PipelineSpec:
    usual = {
        "name": "p",
        "source": {"type": "jsonl", "path": "in.jsonl"},
        "prompt": "x",
        "sink": {"type": "jsonl", "path": "out"},
        "journal": {"path": "deep/journal.db"},
    }
    return parse_spec({**usual, **document}, base=folder)


def test_output_folders_are_created(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").touch()
    check_paths(Plan(spec(tmp_path), Settings(tmp_path, tmp_path)))
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_dir()}
    assert made == {"out", "out-dead-letters", "deep", ".forebay", ".forebay/p", ".forebay/p/checkpoints"}


def test_unreadable_source(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"source\.path: .*in\.jsonl cannot be read: No such file"):
        check_paths(Plan(spec(tmp_path), Settings(tmp_path, tmp_path)))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"type": "jsonl", "path": "twice.csv", "follow": True}, "source: follow watches a directory"),
        ({"type": "jsonl", "path": "new", "follow": True, "limit": 3}, "source: limit ends a source"),
    ],
)
def test_source_that_does_not_match_its_settings(tmp_path: Path, source: dict[str, Any], said: str) -> None:
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    (tmp_path / "new").mkdir()
    with pytest.raises(SettingError, match=said):
        check_paths(Plan(spec(tmp_path, source=source), Settings(tmp_path, tmp_path)))


@pytest.mark.parametrize(
    ("key", "document"),
    [
        ("sink.path", {"sink": {"type": "jsonl", "path": "taken/out"}}),
        ("dead_letters.path", {"dead_letters": {"type": "jsonl", "path": "taken/dead"}}),
        ("checkpoint.dir", {"checkpoint": {"dir": "taken"}}),
        ("journal.path", {"journal": {"path": "taken/a/journal.db"}}),
    ],
)
def test_folder_that_cannot_be_created(tmp_path: Path, key: str, document: dict[str, Any]) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "taken").touch()
    with pytest.raises(SettingError, match=f"^{key}: .* cannot be created"):
        check_paths(Plan(spec(tmp_path, **document), Settings(tmp_path, tmp_path)))


def test_missing_secret_is_found_on_the_task_managers_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEED_TOKEN", raising=False)
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    feed = {"type": "sse", "url": "http://h", "headers": {"Authorization": {"env": "FEED_TOKEN"}}}
    found = spec(tmp_path, source=feed)
    with pytest.raises(SettingError, match=r"^source\.headers: environment variable FEED_TOKEN is not set"):
        check_secrets(found, here=True)
    check_secrets(found, here=False)
    with pytest.raises(SettingError, match=r"^engine\.api_key: environment variable ENGINE_KEY is not set"):
        check_secrets(spec(tmp_path, engine={"api_key": {"env": "ENGINE_KEY"}}), here=False)
    monkeypatch.setenv("FEED_TOKEN", "x")
    check_secrets(found, here=True)
