"""Runs on a real Flink while replicas (scripted processes) start and stop: the output is exact."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forebay.engine.launch import LocalPlaces, ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.fleet.autoscale.base import Decision, ReplicaSpeed, Scaler, ScalingLimits, Signals, Timings
from forebay.fleet.autoscale.learned import LearnedSpeed
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


TELLING = """
import asyncio, json, signal, sys
from pathlib import Path
from forebay.testing.replica import FakeReplica, ReplicaScript

def delay(request_id):
    return 0.1 if Path(sys.argv[3]).exists() else 0.5

async def serve():
    script = ReplicaScript(models=("fake",), delay=delay, slots=4)
    async with FakeReplica(script, port=int(sys.argv[1])) as replica:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()
        found = replica.report()
        with Path(sys.argv[2]).open("a") as file:
            print(json.dumps([sum(found.calls.values()), found.completed, found.in_flight]), file=file)

asyncio.run(serve())
"""
"""A replica that prints its calls, answers and open requests at SIGTERM. It is slow until a file exists."""


@contextmanager
def engine_of(
    folder: Path,
    settings: ScalingSettings,
    most: int = 2,
    launch: Callable[[int, tuple[int, ...]], EngineLaunch] = scripted,
    grace_s: float = 2.0,
) -> Iterator[ScaledEngine]:
    registry = ReplicaRegistry(folder / "replicas.json")
    with Replicas(registry, launch, model="fake", grace_s=grace_s) as replicas:
        places = LocalPlaces(replicas, ((),) * most)
        scaling = folder / "home" / "run" / "scaling" / "p"
        engine = ScaledEngine(places, settings, scaling, name="p", model="fake", port_base=free_port())
        yield engine
        engine.close()
    assert registry.read() == []


def run(
    pipelines: Any, spec: Any, engine: Any, watch: Any, *, cluster: str | None = None, **options: Any
) -> Snapshot:
    settings = Settings(home=pipelines.folder / "home", python=Path())
    plan = Plan(spec, settings, cluster=cluster, in_process=cluster is None)
    try:
        return run_pipeline(plan, engine, watch, **options)
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
        run(pipelines, spec, engine_of(pipelines.folder, SETTINGS), stop)
    assert 0 < len(pipelines.lines()) < len(texts)

    engines: list[ScaledEngine] = []

    @contextmanager
    def second() -> Iterator[ScaledEngine]:
        with engine_of(pipelines.folder, SETTINGS) as engine:
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
        last = run(pipelines, spec, engine_of(pipelines.folder, SETTINGS), lambda now: None, cluster=address)
    assert sorted(line["fields"]["text"] for line in pipelines.lines()) == sorted(texts)
    assert (last.dead_letters, last.engine_failure) == (0, "")
    course = read_course(pipelines.folder / "home" / "run" / "scaling" / "p" / COURSE)
    assert course[0]["ready"] == 0
    assert max(line["ready"] for line in course) == 2
    assert max(line["backlog_tokens"] for line in course) > 0


MOST = 3


@dataclass
class Chance:
    """One to three replicas; a new number as soon as the last one is reached, in `random`'s order: some,
    fewer, more, then any.
    """

    random: Random = field(default_factory=lambda: Random(0))
    wanted: list[int] = field(default_factory=list)

    def decide(self, signals: Signals) -> Decision:
        settled = not signals.starting and not signals.draining
        if not self.wanted or (settled and signals.ready == self.wanted[-1]):
            self.wanted.append(self._another())
        return Decision(self.wanted[-1], "by chance")

    def _another(self) -> int:
        if not self.wanted:
            return self.random.randint(2, MOST)
        last, step = self.wanted[-1], len(self.wanted)
        fewer, more = list(range(1, last)), list(range(last + 1, MOST + 1))
        return self.random.choice(fewer if step == 1 else more if step == 2 else fewer + more)


@dataclass(frozen=True)
class ByChance(ScalingSettings):
    def scaler(self) -> tuple[Scaler, LearnedSpeed]:
        speed = LearnedSpeed(self.speed)
        return Scaler(CHANCE, speed, self.limits), speed


CHANCE = Chance()


@pytest.mark.slow
def test_removing_replicas_under_load_aborts_no_request(pipelines: Any) -> None:
    texts = [f"event {number}" for number in range(600)]
    pipelines.write(*({"text": text} for text in texts))
    spec = pipelines.spec(prompt="{{ text }}", capacity=32, parallelism=2)
    seed = Random().randrange(1 << 32)
    print(f"numbers of replicas by the seed {seed}")
    CHANCE.random, wanted = Random(seed), CHANCE.wanted
    wanted.clear()
    settings = ByChance(ScalingLimits(0, MOST), timings=replace(SETTINGS.timings), speed=SETTINGS.speed)
    told, enough = pipelines.folder / "told", pipelines.folder / "enough"

    def telling(port: int, cores: tuple[int, ...]) -> EngineLaunch:
        return EngineLaunch((sys.executable, "-c", TELLING, str(port), str(told), str(enough)))

    def hurry(now: Snapshot) -> None:
        if len(wanted) >= 3:
            enough.touch()

    # On a busy machine, a stopping replica writes its counts late.
    engine = engine_of(pipelines.folder, settings, MOST, telling, grace_s=60.0)
    last = run(pipelines, spec, engine, hurry)
    lines = pipelines.lines()
    assert sorted(line["fields"]["text"] for line in lines) == sorted(texts)
    assert len(wanted) >= 3, "replicas were taken away, and more were asked for"
    assert (last.dead_letters, last.retries) == (0, 0)
    # A request that is cut off is made again, perhaps elsewhere: the replicas know.
    ends = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(ends) >= wanted[0], "those that were there first, some of which were taken away"
    assert [in_flight for _, _, in_flight in ends] == [0] * len(ends)
    asked, answered = (sum(each) for each in list(zip(*ends, strict=True))[:2])
    assert asked == answered
    # If Flink itself restarts the job, requests in flight are sent again.
    assert asked == len(texts) or last.restarts, last
