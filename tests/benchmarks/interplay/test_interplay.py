"""One factor at a time around a base point, over scripted servers and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.grid.engines import RunningEngine
from benchmarks.interplay.measurement import InterplayMeasurement, interplay_document, point_rows
from benchmarks.interplay.pipeline import (
    BASE_AGAIN,
    BASE_POINT,
    FACTORS,
    SMALL_KV_CACHE_GIB,
    Events,
    InterplayOptions,
    by_engine,
    by_pipeline,
    point_pipeline,
    points,
    sized,
    write_events,
)
from tests.benchmarks.grid.scripted_session import ScriptedPipelines

from forebay.errors import LaunchError
from forebay.pipeline.load import parse_spec
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SMALL: dict[str, Any] = {"events": 12, "prompt_tokens": 9, "mean_tokens": 4.0, "limit_tokens": 16}


def options(*factors: str, **changed: Any) -> InterplayOptions:
    return InterplayOptions(factors=factors or tuple(FACTORS), **{**SMALL, **changed})


def measured(pipelines: ScriptedPipelines, *factors: str, broken: float | None = None) -> dict[str, Any]:
    @contextmanager
    def start(kv_cache_gib: float) -> Iterator[RunningEngine]:
        if kv_cache_gib == broken:
            raise LaunchError("no room for the KV cache")
        with ReplicaThread(ReplicaScript(delay=Fixed(0.001))) as replica:
            yield RunningEngine((replica.url,), None)

    asked = options(*factors)
    wanted = points(asked.factors)
    measurement = InterplayMeasurement(asked, start, open=pipelines)
    found = list(measurement.found(wanted))
    return interplay_document(
        asked,
        found,
        rate_per_s=measurement.rate_per_s,
        expected=len(wanted),
        complete=measurement.complete,
        provenance={},
    )


def test_the_base_point_is_measured_first_and_once_more() -> None:
    found = points(tuple(FACTORS))
    assert found[0] == BASE_POINT
    assert BASE_AGAIN in found
    assert len(found) == 2 + sum(len(values) for values in FACTORS.values())
    assert {point.factor for point in found} == {"base", *FACTORS}
    # Each point differs from the base point in one thing.
    for point in found:
        changed = (bool(point.settings), point.events != Events(), point.kv_cache_gib != 1.0)
        assert sum(changed) == (point.factor != "base") or point.factor in ("ordering", "windows")


def test_points_of_one_engine_and_of_one_pipeline_follow_one_another() -> None:
    engines = list(by_engine(points(tuple(FACTORS))))
    assert [kv_cache_gib for kv_cache_gib, _ in engines] == [1.0, SMALL_KV_CACHE_GIB]
    pipelines = list(by_pipeline(engines[0][1]))
    assert [point.factor for point in pipelines[0][1]] == ["base", "prefix", "prefix"]
    alike = [[point.factor for point in group] for _, group in pipelines]
    assert ["ordering", "ordering", "ordering"] in alike


@pytest.mark.parametrize("point", points(tuple(FACTORS)), ids=lambda point: point.name)
def test_the_pipeline_of_each_point_is_one_that_forebay_runs(point: Any) -> None:
    spec = parse_spec(point_pipeline("http://127.0.0.1:9", "m", options(), point.settings))
    assert spec.capacity == point.settings.get("capacity", 16)
    assert spec.checkpoint.interval_s == point.settings.get("checkpoint.interval_s", 1.0)
    assert spec.ordering == point.settings.get("ordering", "unordered")
    assert spec.task_managers == point.settings.get("task_managers", 1)
    assert (spec.application is not None) == (point.factor == "windows")


def test_events_share_the_given_parts(tmp_path: Path) -> None:
    def texts(events: Events) -> list[dict[str, Any]]:
        path = write_events(tmp_path / "events.jsonl", options(events=200), events)
        return [orjson.loads(line) for line in path.read_bytes().splitlines()]

    own, shared = texts(Events()), texts(Events(shared=2 / 3, keys=4, skewed=True))
    for found in (own, shared):
        assert {len(one["text"].split()) for one in found} == {9}
        assert sum(one["tokens"] for one in found) == pytest.approx(200 * 4, abs=10)
    assert len({" ".join(one["text"].split()[:6]) for one in shared}) == 1
    assert len({one["text"] for one in shared}) > 150
    assert len({" ".join(one["text"].split()[:6]) for one in own}) > 150
    assert len({one["user"] for one in own}) > 30
    counts = sorted(sum(one["user"] == f"u{key}" for one in shared) for key in range(4))
    # Half of all, and a quarter of the other half.
    assert counts[-1] == pytest.approx(125, abs=25)
    # New ones each time, so that none is cached.
    assert not {one["text"] for one in texts(Events())} & {one["text"] for one in own}


def test_every_point_is_measured_and_reported() -> None:
    pipelines = ScriptedPipelines()
    document = measured(pipelines, "prefix", "capacity")
    assert [cell["factor"] for cell in document["cells"]] == [
        *("base", "prefix", "prefix"),
        *("capacity", "capacity", "capacity", "base"),
    ]
    assert len(pipelines.opened) == 5
    assert pipelines.opened[1][3] == {"capacity": 1}
    assert document["rate_per_s"] > 0
    assert document["cells"][0]["stream"]["resources"]["running_mean"] == 3
    heads, *rows = point_rows(document)
    assert heads[:3] == ["", "running, mean", "preemptions"]
    assert "KV cache, most" not in heads, "it was not measured"
    assert rows[1][:2] == ["prefix: a third of each prompt shared", "3.0"]


def test_a_point_with_windows_is_as_long_as_some_of_them() -> None:
    by_name = {point.value: point for point in FACTORS["windows"]}
    six = sized(options(), by_name["tumbling, 6 s, 2 keys"].settings, 2.5)
    assert (six.rate_per_s, six.events) == (2.5, 90)
    assert sized(options(), {"capacity": 4}, 2.5).events == SMALL["events"]
    # The engine holds its longer calls, except with the small KV cache, which they do not use.
    assert (options().max_model_len(1.0), options().max_model_len(SMALL_KV_CACHE_GIB)) == (2048, 50)
