"""What a pipeline would do: its settings as a file, and its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.pipeline.load import load_spec, parse_spec
from forebay.pipeline.plan import graph_text, resolved, stages_of, to_yaml

PIPELINE: dict[str, Any] = {
    "name": "p",
    "source": {"type": "generator"},
    "prompt": "About what?\n{{ text }}\n",
    "key": "{{ user }}",
    "engine": {"url": ["http://a:1", "http://b:1"], "api_key": {"env": "THE_KEY"}},
    "sink": {"type": "stdout"},
    "shards": 16,
    "parallelism": 2,
    "capacity": 9,
}
KAFKA = {"type": "kafka", "bootstrap": "h:1"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": "a\n  b \n\tc", "id": "x: #y", "sampling": {"stop": ["\n\n", "yes", "1", "~"]}},
        {"source": {"type": "jsonl", "path": "in", "time": "at", "time_format": "%d/%m/%Y"}},
        {"source": {**KAFKA, "topics": ["t"], "start": "2026-01-31T12:00:00Z"}},
        {"flink": {"restart-strategy.type": "none"}, "output": {"schema": {"type": ["object", "null"]}}},
        {"prompt": None, "messages": [{"role": "user", "content": "«{{ text }}»"}]},
    ],
)
def test_what_is_printed_is_a_pipeline_file_of_the_same_pipeline(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = parse_spec({**PIPELINE, **changes}, base=tmp_path)
    file = tmp_path / "again.yaml"
    file.write_text(to_yaml(resolved(spec)))
    assert load_spec(file) == spec


def test_a_secret_is_its_place_and_a_query_is_left_out(tmp_path: Path) -> None:
    source = {
        "type": "sse",
        "url": "https://feed/x?token=s3cret",
        "headers": {"Authorization": {"env": "TOKEN"}},
    }
    spec = parse_spec({**PIPELINE, "source": source}, base=tmp_path)
    text = to_yaml(resolved(spec, ["http://c:1/?key=s3cret"])) + graph_text(
        stages_of(spec, ["http://c:1?s3cret"])
    )
    assert "s3cret" not in text
    for shown in ("env: THE_KEY", "env: TOKEN", "https://feed/x?..."):
        assert shown in text


def names(**changes: Any) -> list[tuple[str, int, int | None, int | None, str | None]]:
    spec = parse_spec({**PIPELINE, **changes}, base=Path("/x"))
    return [(s.name, s.parallelism, s.shards, s.capacity, s.after) for s in stages_of(spec)]


def test_the_graph_has_parallelism_shards_and_capacity() -> None:
    assert names() == [
        ("source", 1, None, None, None),
        ("key", 1, None, None, "source"),
        ("infer", 2, 16, 9, "key"),
        ("sink", 1, None, None, "infer"),
        ("dead_letters", 2, None, None, "infer"),
    ]
    partitions = names(source={**KAFKA, "topics": ["t"]}, sink={**KAFKA, "topic": "u"})
    assert [parallelism for _, parallelism, *_ in partitions] == [2, 2, 2, 2, 2]


def test_the_graph_of_an_application_without_a_model_has_none() -> None:
    application = {"type": "topics", "labels": False, "embeddings": "words"}
    found = names(prompt=None, application=application, event_time={})
    assert [name for name, *_ in found] == ["source", "topics", "sink", "dead_letters"]
    assert found[-1] == ("dead_letters", 1, None, None, "topics")


def test_the_graph_as_text() -> None:
    lines = graph_text(stages_of(parse_spec(PIPELINE, base=Path("/x")))).splitlines()
    assert (
        lines[2]
        == "→ infer         the model at http://a:1, http://b:1  (parallelism 2, shards 16, capacity 9)"
    )
