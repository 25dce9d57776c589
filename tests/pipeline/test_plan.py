"""What a run will do: what follows from the settings, the settings as a file, and the graph."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.connectors import jars
from forebay.pipeline.load import load_spec, parse_spec
from forebay.pipeline.plan import Plan, graph_text, resolved, stages_of
from forebay.settings import Settings
from forebay.yaml_document import to_yaml

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
def test_printed_plan_is_a_file_of_the_same_pipeline(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = parse_spec({**PIPELINE, **changes}, base=tmp_path)
    file = tmp_path / "again.yaml"
    file.write_text(to_yaml(resolved(spec)))
    assert load_spec(file) == spec


def test_secrets_are_shown_by_place_and_queries_are_omitted(tmp_path: Path) -> None:
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


def test_graph_has_parallelism_shards_and_capacity() -> None:
    assert names() == [
        ("source", 1, None, None, None),
        ("key", 1, None, None, "source"),
        ("infer", 2, 16, 9, "key"),
        ("sink", 1, None, None, "infer"),
        ("dead_letters", 2, None, None, "infer"),
    ]
    partitions = names(source={**KAFKA, "topics": ["t"]}, sink={**KAFKA, "topic": "u"})
    assert [parallelism for _, parallelism, *_ in partitions] == [2, 2, 2, 2, 2]


def test_the_graph_as_text() -> None:
    lines = graph_text(stages_of(parse_spec(PIPELINE, base=Path("/x")))).splitlines()
    assert (
        lines[2]
        == "→ infer         the model at http://a:1, http://b:1  (parallelism 2, shards 16, capacity 9)"
    )


def test_graph_of_an_application_without_a_model_has_no_engine() -> None:
    application = {"type": "topics", "labels": False, "embeddings": "words"}
    sink = {"type": "jsonl", "path": "out"}
    found = names(prompt=None, application=application, event_time={}, sink=sink)
    assert [name for name, *_ in found] == ["source", "topics", "sink", "dead_letters", "assignments"]
    assert found[-2] == ("dead_letters", 1, None, None, "topics")
    asked = names(prompt=None, application={**application, "labels": True}, sink=sink)
    assert asked[-1] == ("assignments", 1, None, None, "topics")


SETTINGS = Settings(home=Path("/home"), python=Path())


def plan(**changes: Any) -> Plan:
    return Plan(parse_spec({**PIPELINE, **changes}, base=Path("/x")), SETTINGS)


@pytest.mark.parametrize(
    ("changes", "connectors", "planner"),
    [
        ({}, (), False),
        ({"source": {**KAFKA, "topics": ["t"]}}, (jars.KAFKA,), True),
        ({"dead_letters": {**KAFKA, "topic": "t"}}, (jars.KAFKA,), True),
        ({"source": {"type": "jsonl", "path": "in", "time": "at"}, "event_time": {}}, (), True),
        ({"checkpoint": {"dir": "s3://bkt/p"}}, (jars.S3,), False),
        # A word in a text is not a setting.
        ({"prompt": "kafka or s3://bkt/p? {{ event_time }}"}, (), False),
    ],
)
def test_needed_jars_follow_from_the_settings(
    changes: dict[str, Any], connectors: tuple[jars.Jar, ...], planner: bool
) -> None:
    found = plan(**changes)
    assert (found.connectors, found.planner) == (connectors, planner)
    assert [jar.name for jar in found.jars] == [jar.name for jar in connectors if not jar.plugin]


def test_plan_lists_its_folders_and_secrets() -> None:
    found = plan(sink={"type": "jsonl", "path": "s3://bkt/out"}, journal={"path": "j/journal.db"})
    assert {key: str(place) for key, place in found.places.items()} == {
        "sink.path": "s3://bkt/out",
        "dead_letters.path": "s3://bkt/out-dead-letters",
        "checkpoint.dir": "/x/.forebay/p/checkpoints",
        "journal.path": "/x/j",
    }
    assert list(found.in_object_store) == ["sink.path", "dead_letters.path"]
    assert "THE_KEY" in found.settings.secret_variables
    assert replace(found, fresh=True).settings == found.settings


@pytest.mark.parametrize(
    ("engine", "given", "starts"),
    [(None, (), True), (None, ("http://c:1",), False), ("http://a:1", (), False)],
)
def test_run_starts_replicas_only_if_none_are_named(
    engine: str | None, given: tuple[str, ...], starts: bool
) -> None:
    changes = {} if engine is None else {"engine": engine}
    spec = parse_spec({**PIPELINE, "engine": {}, **changes}, base=Path("/x"))
    assert Plan(spec, SETTINGS, engine=given).starts_engine is starts


def test_plan_reaches_another_process_unchanged() -> None:
    found = plan(source={"type": "jsonl", "path": "in", "time": "at"}, event_time={})
    assert pickle.loads(pickle.dumps(found)) == found
