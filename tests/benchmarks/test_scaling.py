"""The measurement of a burst, with scripted replicas instead of vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.scaling import BurstOptions, BurstReport, levels_of, measure_scaling

from forebay.engine.launch import LocalPlaces, ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.pipeline.scaled_engine import ScaledEngine
from forebay.pipeline.scaling_record import scaling_folder
from forebay.pipeline.spec import PipelineSpec
from forebay.ports import free_port
from forebay.settings import Settings


def course(*ready: int) -> list[dict[str, Any]]:
    return [{"ready": count, "booted_s": []} for count in ready]


def report(**changes: Any) -> BurstReport:
    return replace(
        BurstReport(
            events=3, answered=3, dead_letters=0, lost=0, doubled=0, cut_off=0, levels=[0, 1, 2, 1, 0],
            boots_s=[], first_answer_s=1.0, burst_done_s=1.0, ended_s=1.0, course=[],
        ),
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"lost": 1, "answered": 2}, {"doubled": 1}, {"cut_off": 1}, {"dead_letters": 1, "answered": 2},
        {"levels": [0, 2, 0]}, {"levels": [0, 1, 2, 1]}, {"levels": [0, 1, 0]},
    ],
)  # fmt: skip
def test_a_run_passes_only_with_every_event_and_the_whole_course(changes: dict[str, Any]) -> None:
    assert report().passed
    assert not report(**changes).passed


def scripted(port: int, cores: tuple[int, ...]) -> EngineLaunch:
    command = ("-m", "forebay.testing.replica", "--port", str(port), "--delay", "1:0.5", "--slots", "4")
    return EngineLaunch((sys.executable, *command, "--model", "fake"))


@pytest.mark.long
@pytest.mark.flink
def test_a_burst_on_scripted_replicas_is_answered_and_leaves_none(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", python=Path())

    @contextmanager
    def opened(spec: PipelineSpec) -> Iterator[ScaledEngine]:
        assert spec.scaling is not None
        with Replicas(
            ReplicaRegistry(tmp_path / "replicas.json"), scripted, model="fake", grace_s=2.0
        ) as replicas:
            scaling = spec.scaling.settings(spec.sampling.max_tokens)
            quick = replace(
                scaling, timings=replace(scaling.timings, boot_s=1.0, drain_s=1.0, interval_s=0.5)
            )
            folder = scaling_folder(settings, spec.name, str(spec.checkpoint.dir))
            places = LocalPlaces(replicas, ((),) * 2)
            yield ScaledEngine(places, quick, folder, name="scaling", model="fake", port_base=free_port())

    work = tmp_path / "work"
    work.mkdir()
    options = BurstOptions(trickle=2, quiet_s=3.0, burst=60, burst_s=1.0, slo_s=30.0, longest_s=200.0)
    found = measure_scaling(options, settings, work, open_engine=opened)
    assert (found.answered, found.lost, found.doubled, found.cut_off) == (62, 0, 0, 0)
    assert found.levels[0] == found.levels[-1] == 0
    assert max(found.levels) >= 1
    assert max(line["waiting"] for line in found.course) > 0


def test_levels_are_reported_as_often_as_they_are_come_to() -> None:
    assert levels_of(course(0, 0, 1, 1, 2, 2, 1, 0, 0)) == [0, 1, 2, 1, 0]
    assert levels_of([]) == []
