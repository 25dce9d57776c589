"""Runs on a real Flink."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch import ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.errors import PipelineFailed, SettingError
from forebay.ports import free_port
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = pytest.mark.flink


def fake_replica(port: int, cores: tuple[int, ...]) -> EngineLaunch:
    command = (sys.executable, "-m", "forebay.testing.replica", "--port", str(port), "--delay", "1:0.05")
    return EngineLaunch(command)


@pytest.mark.slow
def test_local_engine_killed_during_a_run_loses_no_record(pipelines: Any, flink_logs: Path) -> None:
    from forebay.flink.jvm import start_jvm
    from forebay.pipeline.plan import Plan
    from forebay.pipeline.run import run_pipeline
    from forebay.pipeline.snapshot import Snapshot
    from forebay.settings import Settings

    start_jvm(flink_logs, heap_mb=768)
    spec = pipelines.spec(
        source={"type": "generator", "rate": 20.0}, prompt="{{ text }}", retry={"base_s": 0.1}
    )
    text: set[str] = set()
    killed_at: list[int] = []
    with Replicas(
        ReplicaRegistry(pipelines.folder / "replicas.json"), fake_replica, model="fake"
    ) as replicas:
        replicas.start([()], port_base=free_port())

        def watch(now: Snapshot) -> None:
            text.add(now.engine_failure)
            if now.results >= 10 and not killed_at:
                killed_at.append(now.results)
                replicas.kill(0)

        def enough(now: Snapshot) -> bool:
            return now.engine_restarts == 1 and now.results >= killed_at[0] + 40

        settings = Settings(home=pipelines.folder / "home", python=Path())
        plan = Plan(spec, settings, in_process=True)
        last = run_pipeline(plan, nullcontext(replicas), watch, enough=enough)
    assert (last.dead_letters, last.engine_restarts) == (0, 1)
    assert any("ended and is being restarted" in words for words in text)
    positions = sorted(line["position"] for line in pipelines.lines())
    assert positions == sorted(f"generator@{n}" for n in range(last.results))


@pytest.mark.slow
def test_results_are_committed_long_before_the_interval(pipelines: Any) -> None:
    folder = pipelines.folder / "in"
    folder.mkdir()
    spec = pipelines.spec(
        source={"type": "jsonl", "path": "in", "follow": True},
        prompt="{{ text }}",
        checkpoint={"interval_s": 3600.0},
    )

    def add(number: int) -> None:
        pipelines.write({"text": f"event {number}"}, name="new")
        (pipelines.folder / "new").rename(folder / f"{number}.jsonl")

    def committed(count: int) -> bool:
        if len(pipelines.lines()) == count:
            return True
        if not (folder / f"{len(pipelines.lines())}.jsonl").exists():
            # One commit after the other.
            add(len(pipelines.lines()))
        return False

    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:
        pipelines.interrupt(spec, replica.url, lambda: committed(3))
        pipelines.interrupt(spec, replica.url, lambda: committed(5))
    texts = [line["fields"]["text"] for line in pipelines.lines()]
    assert sorted(texts) == [f"event {n}" for n in range(5)]
    # A job has one file, however often it commits.
    assert len(list((pipelines.folder / "out").glob("part-*.jsonl"))) == 2


def first_ten(request_id: str) -> float:
    return 0.01 if int(request_id.rpartition("@")[2]) <= 10 else 600.0


def test_a_folder_may_have_any_name(pipelines: Any) -> None:
    odd = pipelines.in_folder("My files, é #1 100%20")
    odd.write(*({"text": f"event {n}"} for n in range(20)))
    spec = odd.spec(prompt="{{ text }}", capacity=4)
    with ReplicaThread(ReplicaScript(delay=first_ten)) as replica:
        odd.interrupt(spec, replica.url, lambda: len(odd.lines()) == 10)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:
        assert odd.run(spec, replica.url).results == 10
    assert sorted(int(line["position"].rpartition("@")[2]) for line in odd.lines()) == list(range(1, 21))
    assert [path.name for path in odd.folder.parent.iterdir() if "files" in path.name] == [odd.folder.name]


@pytest.mark.parametrize(
    ("flink", "kind", "says"),
    [
        # At the environment, when the job is translated, and when it is submitted.
        (
            {"restart-strategy.exponential-delay.attempts-before-reset-backoff": "x"},
            SettingError,
            "found 'x'",
        ),
        ({"python.fn-execution.bundle.size": "many"}, SettingError, "bundle.size, found 'many'"),
        ({"taskmanager.memory.network.min": "soon"}, SettingError, "network.min, found 'soon'"),
        ({"taskmanager.numberOfTaskSlots": 0}, PipelineFailed, "Flink refused the job: .*slots"),
    ],
)
def test_rejected_flink_options_are_one_sentence(
    pipelines: Any, flink: dict[str, Any], kind: type[Exception], says: str
) -> None:
    pipelines.write({"text": "a"})
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica, pytest.raises(kind, match=says) as caught:
        pipelines.run(pipelines.spec(flink=flink), replica.url)
    assert "\n" not in str(caught.value)
