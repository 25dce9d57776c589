"""What `python -m benchmarks applications` measures, and how it reports skipped parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.applications import ApplicationsOptions, measure_applications

from benchmarks import applications as module
from forebay.engine.launch.progress import Silent
from forebay.settings import Settings


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    class Model:
        embed = None

        def __init__(self, *arguments: Any, **more: Any) -> None:
            pass

    def topics(data: Any, *arguments: Any, **more: Any) -> dict[str, Any]:
        found.append(data.name)
        return {"nmi": 1.0}

    def trends(plan: Any, **more: Any) -> dict[str, Any]:
        found.append(plan.seed)
        return {}

    monkeypatch.setattr(module, "is_installed", lambda: True)
    monkeypatch.setattr(module, "MiniLM", Model)
    monkeypatch.setattr(module, "ensure_embedding_model", lambda *arguments: Path())
    monkeypatch.setattr(module, "measure_topics", topics)
    monkeypatch.setattr(module, "measure_trends", trends)
    monkeypatch.setattr(module, "measure_sessions", lambda plan, *rest: {"seed": plan.seed})
    monkeypatch.setattr(module, "measure_fight", lambda path: {})
    return found


def measure(tmp_path: Path, **options: Any) -> dict[str, Any]:
    settings = Settings(home=tmp_path / "home", python=Path())
    return measure_applications(ApplicationsOptions(**options), settings, Silent(), lambda line: None)


def line(path: Path) -> Path:
    path.write_text('{"textCleaned": "a", "clusterNo": 1}\n')
    return path


def test_available_parts_are_measured_and_the_rest_is_named(tmp_path: Path, measured: list[Any]) -> None:
    line(tmp_path / "mstream_tweets.jsonl")
    report = measure(tmp_path, data=tmp_path, seed=7)
    assert measured == ["mstream_tweets.jsonl", 7]
    assert report["sessions"] == {"seed": 7}
    assert report["topics"] == {"mstream_tweets.jsonl": {"nmi": 1.0}}
    assert report["skipped"].keys() == {"mstream_news_t.jsonl", "tweets_fight_2017.jsonl", "irc_ubuntu"}


def test_without_data_the_generated_stream_remains(tmp_path: Path, measured: list[Any]) -> None:
    report = measure(tmp_path)
    assert measured == [1]
    assert report["topics"] == {}
    assert len(report["skipped"]) == 4


def test_files_are_scored_instead_of_the_data(tmp_path: Path, measured: list[Any]) -> None:
    report = measure(tmp_path, apps=["topics"], files=[line(tmp_path / "mine.jsonl")])
    assert measured == ["mine.jsonl"]
    assert "trends" not in report
    assert report["skipped"] == {}
