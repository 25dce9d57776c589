"""Runs on a real Flink while replicas (scripted processes) start and stop: the output is exact."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch import LocalPlaces, ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.fleet.autoscale.base import ReplicaSpeed, ScalingLimits, Timings
from forebay.fleet.autoscale.settings import ScalingSettings
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.scaled_engine import ScaledEngine
from forebay.pipeline.scaling_record import COURSE, read_course, running_statuses
from forebay.pipeline.snapshot import Snapshot
from forebay.ports import free_port
from forebay.settings import Settings
from forebay.testing.cluster import local_cluster

pytestmark = pytest.mark.flink

SETTINGS = ScalingSettings(
    ScalingLimits(0, 2),
    slo_s=1.0,
    timings=Timings(boot_s=1.0, drain_s=0.5, interval_s=0.3),
    speed=ReplicaSpeed(0.001, 0.01, requests=4),
)


def scripted(port: int, cores: tuple[int, ...]) -> EngineLaunch:
    command = ("-m", "forebay.testing.replica", "--port", str(port), "--delay", "1:0.15", "--slots", "4")
    return EngineLaunch((sys.executable, *command, "--model", "fake"))


@contextmanager
def engine_of(folder: Path) -> Iterator[ScaledEngine]:
    registry = ReplicaRegistry(folder / "replicas.json")
    with Replicas(registry, scripted, model="fake", grace_s=2.0) as replicas:
        places = LocalPlaces(replicas, ((),) * 2)
        scaling = folder / "home" / "run" / "scaling" / "p"
        engine = ScaledEngine(places, SETTINGS, scaling, name="p", model="fake", port_base=free_port())
        yield engine
        engine.close()
    assert registry.read() == []


def run(pipelines: Any, spec: Any, engine: Any, watch: Any, *, cluster: str | None = None) -> Snapshot:
    settings = Settings(home=pipelines.folder / "home", python=Path())
    plan = Plan(spec, settings, cluster=cluster, in_process=cluster is None)
    try:
        return run_pipeline(plan, engine, watch)
    finally:
        pipelines._keep_jvm(Path(spec.checkpoint.dir))


def test_scaling_with_a_death_and_a_restore_keeps_output_exact(pipelines: Any) -> None:
    texts = [f"event {number}" for number in range(400)]
    pipelines.write(*({"text": text} for text in texts))
    spec = pipelines.spec(prompt="{{ text }}", retry={"base_s": 0.1}, capacity=32)
    seen: list[Snapshot] = []
    statuses: list[Any] = []
    killed: list[str] = []
    home = Settings(home=pipelines.folder / "home", python=Path())

    def stop(now: Snapshot) -> None:
        seen.append(now)
        statuses.extend(running_statuses(home))
        if now.results >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(pipelines, spec, engine_of(pipelines.folder), stop)
    assert 0 < len(pipelines.lines()) < len(texts)

    engines: list[ScaledEngine] = []

    @contextmanager
    def second() -> Iterator[ScaledEngine]:
        with engine_of(pipelines.folder) as engine:
            engines.append(engine)
            yield engine

    def kill_one(now: Snapshot) -> None:
        seen.append(now)
        ready = [kept for kept in engines[0].replicas.kept if kept.state == "ready"] if engines else []
        if len(ready) == 2 and not killed:
            killed.append(ready[0].replica.url)
            for process in ready[0].replica.processes():
                process.kill()

    last = run(pipelines, spec, second(), kill_one)
    assert sorted(line["fields"]["text"] for line in pipelines.lines()) == sorted(texts)
    assert (last.dead_letters, len(killed)) == (0, 1)
    assert any("while it served" in now.engine_failure for now in seen)
    # From nothing, with a reason; and what was decided is on record.
    scalings = [now.scaling for now in seen if now.scaling is not None]
    assert any(not each.ready and each.starting for each in scalings)
    assert any(each.ready == 2 for each in scalings)
    assert all(each.reason for each in scalings if each.wanted)
    assert any(status["replicas"] and status["decision"]["waiting"] for status in statuses)
    course = read_course(home.run / "scaling" / "p" / COURSE)
    assert course[0]["ready"] == 0
    assert max(line["ready"] for line in course) == 2
    assert max(line["backlog_tokens"] for line in course) > 0
    assert list(running_statuses(home)) == []


@pytest.mark.long
def test_local_cluster_subtasks_get_replicas(pipelines: Any, tmp_path: Path) -> None:
    texts = [f"event {number}" for number in range(150)]
    pipelines.write(*({"text": text} for text in texts))
    spec = pipelines.spec(prompt="{{ text }}", capacity=32, parallelism=2)
    with local_cluster(tmp_path / "cluster", slots=2) as address:
        last = run(pipelines, spec, engine_of(pipelines.folder), lambda now: None, cluster=address)
    assert sorted(line["fields"]["text"] for line in pipelines.lines()) == sorted(texts)
    assert (last.dead_letters, last.engine_failure) == (0, "")
    course = read_course(pipelines.folder / "home" / "run" / "scaling" / "p" / COURSE)
    assert course[0]["ready"] == 0
    assert max(line["ready"] for line in course) == 2
    assert max(line["backlog_tokens"] for line in course) > 0
