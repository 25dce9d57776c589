"""The backlog in a real node's topic behind a slow engine, and the end of a run that has enough."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, produce

from forebay.pipeline import backlog
from forebay.pipeline.snapshot import Snapshot
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


class HeldReplica(ReplicaThread):
    """Answers forty calls, and the others once the file `gate` exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__(ReplicaScript(delay=Fixed(0.01)))
        self._gate = gate

    async def _start(self) -> None:
        await super()._start()
        assert self._replica is not None
        answer, calls = self._replica._answer, itertools.count()

        async def held(*arguments: Any) -> Any:
            first = next(calls) < 40
            while not first and not self._gate.exists():  # noqa: ASYNC110 (another thread opens it)
                await asyncio.sleep(0.01)
            return await answer(*arguments)

        self._replica._answer = held  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.flink
def test_backlog_is_seen_under_backpressure_and_falls_to_zero(
    node: Any, kafka_jar: Path, topic: Callable[..., str], pipelines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "COUNT_EVERY_S", 0.3)
    read, results, gate = topic(2), topic(1), pipelines.folder / "go"

    def feed(begin: int, end: int) -> None:
        values = ((n, orjson.dumps({"text": f"event {n}"})) for n in range(begin, end))
        produce(node.bootstrap, read, [{"value": value, "partition": n % 2} for n, value in values])

    feed(0, 200)
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    spec = pipelines.spec(
        source={**access, "topics": [read]},
        prompt="{{ text }}",
        capacity=4,
        sink={**access, "topic": results},
    )
    first: list[Snapshot] = []
    then: list[Snapshot] = []

    def watch(now: Snapshot) -> None:
        (then if then else first).append(now)
        waits = now.backlog.records if now.backlog else 0
        if then and waits >= 250 and now.in_flight == 4:
            gate.touch()
        if not then and now.results >= 20 and waits >= 100:
            feed(200, 400)
            then.append(now)

    def enough(now: Snapshot) -> bool:
        return gate.exists() and now.backlog is not None and not now.backlog.records

    with HeldReplica(gate) as replica:
        pipelines.run(spec, replica.url, watch=watch, enough=enough)
    assert max(now.backlog.records for now in first if now.backlog) >= 100
    counted = [now for now in (*first, *then) if now.backlog]
    assert max(now.in_flight for now in counted) == 4
    # Kafka's consumer has fetched nothing since: it is held back by what it had.
    assert max(now.backlog.records for now in then if now.backlog) >= 250
    assert counted[-1].backlog is not None
    assert counted[-1].backlog.records == 0
    judged = [now for now in counted if now.results and now.state == "RUNNING"]
    assert judged
    for now in judged:
        found, mean = now.backlog, now.prompt_tokens / now.results
        assert found is not None
        assert found.prompt_tokens == pytest.approx(found.records * mean, abs=1.0)
    texts = Counter(
        orjson.loads(message.value())["fields"]["text"] for message in consume(node.bootstrap, results)
    )
    assert texts == Counter(f"event {n}" for n in range(400))
