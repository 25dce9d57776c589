"""A grid over scripted servers: failed cells are reported, and the others continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from benchmarks.grid.cells import GridOptions, Parallelism
from benchmarks.grid.document import cell_rows, grid_document
from benchmarks.grid.measurement import Capacity, Cell, Measurement, RunningEngine
from benchmarks.grid.streamed import grid_pipeline
from tests.benchmarks.grid.scripted_session import ANSWER_S, COMMIT_S, ScriptedPipelines

from forebay.errors import LaunchError
from forebay.pipeline.load import parse_spec
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SMALL: dict[str, Any] = {
    "models": ("default", "random:opt-125m"),
    "parallelisms": (Parallelism(1, 2), Parallelism(2, 1)),
    "arrivals": ("constant", "bursts"),
    "requests": 6,
    "prompt_tokens": 4,
    "mean_tokens": 4,
    "limit_tokens": 16,
    "stream": False,
}


@contextmanager
def scripted(model: str, parallelism: Parallelism) -> Iterator[RunningEngine]:
    if model == "broken":
        raise LaunchError("no room for the model\nand its log")
    script = ReplicaScript(delay=Fixed(0.001))
    with ReplicaThread(script) as first, ReplicaThread(script) as second:
        yield RunningEngine((first.url, second.url)[: parallelism.replicas], None)


def measured(**changed: Any) -> tuple[Measurement, list[Capacity | Cell]]:
    options = GridOptions(**{**SMALL, **changed})
    measurement = Measurement(options, scripted, lambda words: None, local=False)
    return measurement, list(measurement.found())


def test_grid_has_each_engines_capacity_and_all_cells() -> None:
    measurement, found = measured()
    document = grid_document(measurement.options, found, complete=True, provenance={"command": "here"})
    assert len(document["engines"]) == 4
    assert len(document["cells"]) == 4 * 2 * 2
    engine, cell = document["engines"][0], document["cells"][-1]
    assert set(engine["at_once"]) == {"exact", "heavy"}
    assert engine["requests_per_s"] == engine["at_once"]["exact"]["requests_per_s"] > 0
    assert (cell["model"], cell["parallelism"]) == ("random:opt-125m", {"replicas": 2, "cores_each": 1})
    assert (cell["arrival"], cell["tail"]) == ("bursts", "heavy")
    # The rate is a share of what this engine can do.
    assert cell["rate_per_s"] == pytest.approx(document["engines"][-1]["requests_per_s"] * 0.6, abs=1e-3)
    assert cell["serving"]["requests"] == 6
    assert cell["serving"]["e2el_s"]["p50"] > 0
    assert cell["serving"]["e2el_s"]["p99"] is None
    assert document["provenance"] == {"command": "here"}


def test_two_replicas_get_half_of_the_requests_each() -> None:
    script = ReplicaScript(delay=Fixed(0.001))
    with ReplicaThread(script) as first, ReplicaThread(script) as second:

        @contextmanager
        def both(model: str, parallelism: Parallelism) -> Iterator[RunningEngine]:
            yield RunningEngine((first.url, second.url), None)

        options = GridOptions(**{**SMALL, "models": ("default",), "parallelisms": (Parallelism(2, 1),)})
        list(Measurement(options, both, lambda words: None, local=False).found())
        counts = [replica.report().completed for replica in (first, second)]
    assert counts[0] == counts[1] > 12


def streamed(pipelines: ScriptedPipelines, **changed: Any) -> dict[str, Any]:
    sizes = {"models": ("default",), "parallelisms": (Parallelism(2, 1),), "stream": True, **changed}
    options = GridOptions(**{**SMALL, **sizes})
    measurement = Measurement(options, scripted, lambda words: None, local=False, session=pipelines)
    found = list(measurement.found())
    return grid_document(options, found, complete=measurement.complete, provenance={})


def test_an_engines_cells_share_one_pipeline_per_number_of_subtasks() -> None:
    pipelines = ScriptedPipelines()
    document = streamed(pipelines, subtasks=(1, 2))
    assert [asked[3] for asked in pipelines.opened] == [1, 2]
    assert len(pipelines.opened[0][0]) == 2, "both replicas"
    assert len(document["cells"]) == 2 * 4
    cell = document["cells"][0]
    assert cell["stream"]["answered_s"]["p50"] == pytest.approx(ANSWER_S)
    assert cell["stream"]["committed_s"]["max"] == pytest.approx(COMMIT_S)
    assert cell["stream"]["resources"]["preemptions"] == 5
    assert cell["stream"]["resources"]["run_cores_mean"] == 0.25
    assert cell["stream"]["checkpoint_s"]["p50"] == pytest.approx(0.02)
    assert cell["serving"]["requests"] == 6
    # The engine alone is the same for both.
    assert document["cells"][4]["serving"] == cell["serving"]
    heads = cell_rows(document)[0]
    assert {"event to answer p50, s", "engine alone p50"} < set(heads)


def test_the_stream_gets_the_same_rate_and_lengths_as_the_engine_alone() -> None:
    pipelines = ScriptedPipelines()
    document = streamed(pipelines, arrivals=("constant",), tails=("heavy",), rate_per_s=50.0)
    (session,) = pipelines.sessions
    (load,), (events,) = session.loads, session.events
    assert load.schedule.asked() == {"kind": "constant", "rate_per_s": 50.0}
    assert document["cells"][0]["rate_per_s"] == 50.0
    assert sum(event["tokens"] for event in events) == 24
    assert {len(event["text"].split()) for event in events} == {4}


def test_the_pipeline_of_a_grid_is_one_that_forebay_runs() -> None:
    options = GridOptions(**SMALL)
    spec = parse_spec(grid_pipeline(("http://127.0.0.1:9", "http://127.0.0.1:10"), "m", options, 2))
    assert (spec.parallelism, spec.engine.model, len(spec.engine.url)) == (2, "m", 2)
    assert spec.answer_tokens_template() is not None


def test_repeats_have_an_interval() -> None:
    measurement, found = measured(
        models=("default",),
        parallelisms=(Parallelism(1),),
        arrivals=("constant",),
        tails=("exact",),
        repeats=3,
    )
    (repeats,) = grid_document(measurement.options, found, complete=True, provenance={})["repeats"]
    interval = repeats["serving_e2el_p50_s"]
    assert interval["count"] == 3
    assert interval["low"] <= interval["mean"] <= interval["high"]
