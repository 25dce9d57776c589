"""A pipeline over several replicas, on a real Flink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

pytestmark = pytest.mark.flink


@pytest.fixture
def replicas() -> Iterator[list[ReplicaProcess]]:
    with ExitStack() as stack:
        script = ReplicaScript(delay=Fixed(0.05), slots=8)
        yield [stack.enter_context(ReplicaProcess(script)) for _ in range(3)]


def test_separate_prefill_and_decode(
    pipelines: Any, flink_logs: Path, replicas: list[ReplicaProcess]
) -> None:
    from forebay.flink.jvm import start_jvm
    from forebay.pipeline.plan import Plan
    from forebay.pipeline.run import run_pipeline
    from forebay.settings import Settings

    start_jvm(flink_logs, heap_mb=768)
    prefills, *decode = replicas
    spec = pipelines.spec(
        source={"type": "generator", "rate": 100.0},
        prompt="{{ text }}",
        engine={"url": [replica.url for replica in decode], "prefill": prefills.url},
    )
    settings = Settings(home=pipelines.folder / "home", python=Path())
    plan = Plan(spec, settings, in_process=True)
    last = run_pipeline(plan, nullcontext(()), enough=lambda now: now.results >= 100)
    assert last.dead_letters == 0
    assert len(pipelines.lines()) == last.results
    taken = [times for replica in decode for times in replica.report().kv_reads.values()]
    assert len(taken) >= last.results
    assert set(taken) == {1}
    assert not prefills.report().kv_reads
    assert last.kv_transfers is not None
    assert last.kv_transfers.transferred >= 100
    assert last.kv_transfers.fallbacks == 0


def test_replica_death_during_the_run_loses_no_record(
    pipelines: Any, flink_logs: Path, replicas: list[ReplicaProcess]
) -> None:
    from forebay.flink.jvm import start_jvm
    from forebay.pipeline.plan import Plan
    from forebay.pipeline.run import run_pipeline
    from forebay.pipeline.snapshot import Snapshot
    from forebay.settings import Settings

    start_jvm(flink_logs, heap_mb=768)
    (pipelines.folder / "replicas.txt").write_text("\n".join(replica.url for replica in replicas))
    spec = pipelines.spec(
        source={"type": "generator", "rate": 60.0},
        prompt="{{ text }}",
        engine={"file": "replicas.txt", "priority": True},
        priority="{{ 1 if 'a' in text else 2 }}",
        parallelism=2,
        capacity=32,
    )
    killed_at: list[int] = []

    def watch(now: Snapshot) -> None:
        # Each has had its share.
        if now.results >= 40 and not killed_at and all(replica.report().calls for replica in replicas):
            replicas[0].kill()
            killed_at.append(now.results)

    def enough(now: Snapshot) -> bool:
        return bool(killed_at) and now.results >= killed_at[0] + 100

    settings = Settings(home=pipelines.folder / "home", python=Path())
    last = run_pipeline(Plan(spec, settings, in_process=True), nullcontext(()), watch, enough=enough)
    assert last.dead_letters == 0
    positions = sorted(line["position"] for line in pipelines.lines())
    assert positions == sorted(f"generator@{n}" for n in range(last.results))
