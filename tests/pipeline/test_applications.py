"""Trends and topics as a pipeline file names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingError
from forebay.pipeline.fingerprint import fingerprint
from forebay.pipeline.inference import served_by
from forebay.pipeline.load import ApplicationOptions, parse_spec, preset_spec

DATA: dict[str, Any] = {
    "name": "p",
    "source": {"type": "jsonl", "path": "/in.jsonl", "time": "at"},
    "sink": {"type": "jsonl", "path": "/out"},
}


def spec(application: dict[str, Any], **more: Any) -> Any:
    return parse_spec({**DATA, "application": application, **more})


def test_settings_reach_the_detectors() -> None:
    found = spec(
        {"type": "trends", "late_s": 9.0, "least_ratio": 3.0, "labels": False}
    ).application.settings()
    assert (found.late_s, found.find.least_ratio, found.labels) == (9.0, 3.0, False)
    found = spec({"type": "topics", "birth_texts": 3, "embeddings": "words"}).application
    assert (found.find.birth_texts, found.embeddings) == (3, "words")


@pytest.mark.parametrize(
    ("application", "more", "says"),
    [
        (
            {"type": "trends"},
            {"source": {"type": "jsonl", "path": "/in.jsonl"}},
            "source.time: expected the field",
        ),
        ({"type": "topics", "topic_shards": 4}, {}, "key: expected a template"),
        ({"type": "trends"}, {"assignments": {"type": "jsonl", "path": "a"}}, "assignments: expected none"),
        (
            {"type": "topics"},
            {"assignments": {"type": "jsonl", "path": "/out"}},
            "assignments.path: expected a directory apart from sink.path",
        ),
        ({"type": "topics", "embeddings": "bert"}, {}, "expected 'minilm' or 'words'"),
        ({"type": "trends", "late_s": -1.0}, {}, "late_s"),
        ({"type": "trendz"}, {}, "did you mean 'trends'"),
        ({"type": "trends"}, {"prompt": "{{ text }}"}, "expected none with 'application'"),
    ],
)
def test_unsuitable_settings_are_reported(
    application: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        spec(application, **more)


@pytest.mark.parametrize("name", ["trends", "topics"])
def test_without_labels_no_engine_is_needed(name: str) -> None:
    assert spec({"type": name}).asks_model
    silent = spec({"type": name, "labels": False})
    assert not silent.asks_model
    assert served_by(silent, ()).model == "none"


def test_topics_need_no_times() -> None:
    assert (
        spec({"type": "topics"}, source={"type": "jsonl", "path": "/in.jsonl"}).application.type == "topics"
    )


def test_state_is_bound_to_the_settings_that_shape_it() -> None:
    one = fingerprint(spec({"type": "trends"}, shards=8))
    assert one != fingerprint(spec({"type": "trends"}, shards=4))
    assert one == fingerprint(spec({"type": "trends"}, shards=8, parallelism=2))
    assert fingerprint(spec({"type": "topics"})) != fingerprint(
        spec({"type": "topics", "embeddings": "words"})
    )
    assert fingerprint(spec({"type": "topics"})) != fingerprint(spec({"type": "trends"}))
    kafka = {"type": "kafka", "bootstrap": "localhost:9092", "topic": "t"}
    for other in ({"assignments": None}, {"assignments": kafka}, {"dead_letters": kafka}):
        assert fingerprint(spec({"type": "topics"})) != fingerprint(spec({"type": "topics"}, **other))


@pytest.mark.parametrize("name", ["trends", "topics"])
def test_preset_pipelines_are_complete(name: str, tmp_path: Path) -> None:
    (tmp_path / "posts.jsonl").write_text('{"text": "a", "at": "2026-01-01"}\n')
    options = ApplicationOptions(str(tmp_path / "posts.jsonl"), tmp_path / "out", time="at")
    found = preset_spec(name, options, ["application.labels=false"])
    assert found.application is not None
    assert found.application.type == name
    assert found.application.labels is False  # type: ignore[attr-defined]
    assert found.directories()["sink.path"] == str(tmp_path / "out" / "results")
