"""Final counts of runs that write results and dead letters to a real node's topics."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.topic_client import consume, consume_committed

from forebay.flink.job import RunningJob
from forebay.pipeline.state_store import read_state
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = pytest.mark.flink


def test_run_that_ends_before_its_metrics_is_counted(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, letters = topic(), topic()
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    lines = [*({"text": f"event {n}"} for n in range(20)), b"no JSON", b"[1]", {"body": "no text"}]
    pipelines.write(*lines)
    monkeypatch.setattr(RunningJob, "counts", lambda self: {})
    spec = pipelines.spec(
        prompt="{{ text }}",
        sink={**access, "topic": results},
        dead_letters={**access, "topic": letters},
        parallelism=2,
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        last = pipelines.run(spec, replica.url)
    assert (last.state, last.accepted, last.results, last.dead_letters) == ("FINISHED", 23, 20, 3)
    assert last.failed == {"malformed_record": 2, "template_failed": 1}
    assert last.completion_tokens > 0
    assert (len(consume(node.bootstrap, results)), len(consume(node.bootstrap, letters))) == (20, 3)


@pytest.mark.slow
def test_output_before_a_restart_is_counted_once(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any
) -> None:
    results, killed = topic(), []

    def watch(now: Any) -> None:
        if now.state == "RUNNING" and not killed and len(consume_committed(node.bootstrap, results)) >= 20:
            state = read_state(pipelines.folder / ".forebay" / "p" / "checkpoints")
            assert state is not None
            assert state.jvm is not None
            killed.append(state.jvm)
            os.kill(state.jvm[0], signal.SIGKILL)

    spec = pipelines.spec(
        source={"type": "generator", "count": 200, "rate": 20.0},
        prompt="{{ text }}",
        sink={"type": "kafka", "bootstrap": node.bootstrap, "topic": results},
    )
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        last = pipelines.run(spec, replica.url, watch=watch, in_process=False)
        assert (last.state, len(last.resumes), last.results) == ("FINISHED", 1, 200)
        assert len(consume(node.bootstrap, results)) == 200
        # Another run of the same pipeline counts its own.
        again = pipelines.run(spec, replica.url, fresh=True)
    assert again.results == 200
