from __future__ import annotations

from benchmarks.grid.engines import SpreadTarget

from forebay.bench.client import measure
from forebay.bench.load.schedules import ClosedLoop, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.targets.openai import OpenAiTarget
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


def test_requests_go_to_the_replicas_by_turns() -> None:
    script = ReplicaScript(delay=Fixed(0.001))
    with ReplicaThread(script) as first, ReplicaThread(script) as second:
        target = SpreadTarget([OpenAiTarget(first.url), OpenAiTarget(second.url)])
        probes = first.report().completed
        run = measure(target, make_load(ClosedLoop(2), RandomTokens(Exactly(8), Exactly(4)), 9))
        seen = [first.report().completed - probes, second.report().completed - probes]
    assert all(record.answered for record in run.records)
    # Each was probed once.
    assert seen == [5 + 1, 4 + 1]
    assert target.name == f"{first.url}/v1/completions, {second.url}/v1/completions"
