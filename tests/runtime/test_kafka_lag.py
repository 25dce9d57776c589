"""What waits in a topic of a real node while an engine is slow, and how a run ends once it has enough."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume, produce

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

RUN = """
import json, sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from forebay.runtime import watch as watching
from forebay.config import load_spec
from forebay.runtime.run import RunOptions, run_pipeline
from forebay.settings import load_settings
from benchmarks.topic_client import produce

watching.COUNT_EVERY_S = 0.3
url, bootstrap, topic = sys.argv[1:]
more = []

def watch(now):
    print(json.dumps({"fed": bool(more), **asdict(now)}))
    waits = now.backlog.records if now.backlog else 0
    if more and waits >= 250 and now.in_flight == 4:
        Path("go").touch()
    if not more and now.results >= 20 and waits >= 100:
        texts = [(n, json.dumps({"text": f"event {n}"})) for n in range(200, 400)]
        more.extend({"value": text, "partition": n % 2} for n, text in texts)
        produce(bootstrap, topic, more)

def enough(now):
    return Path("go").exists() and now.backlog is not None and not now.backlog.records

options = RunOptions(enough=enough, in_process=True)
run_pipeline(load_spec("p.yaml"), nullcontext([url]), options, load_settings(), watch)
"""


class HeldReplica(ReplicaThread):
    """Answers forty calls, and the others once the file `gate` is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__(ReplicaScript(delay=Fixed(0.01)))
        self._gate = gate

    async def _start(self) -> None:
        await super()._start()
        assert self._replica is not None
        answer, calls = self._replica._answer, itertools.count()

        async def held(*arguments: Any) -> Any:
            first = next(calls) < 40
            while not first and not self._gate.exists():  # noqa: ASYNC110 (another process opens it)
                await asyncio.sleep(0.01)
            return await answer(*arguments)

        self._replica._answer = held  # type: ignore[method-assign]


@pytest.mark.flink
def test_what_waits_is_seen_while_the_source_is_held_back_and_falls_to_nothing(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    read, results = topic(2), topic(1)
    produce(
        node.bootstrap,
        read,
        ({"value": orjson.dumps({"text": f"event {n}"}), "partition": n % 2} for n in range(200)),
    )
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    document = {
        "name": "p",
        "source": {**access, "topics": [read]},
        "prompt": "{{ text }}",
        "capacity": 4,
        "sink": {**access, "topic": results},
        "checkpoint": {"interval_s": 0.5},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    with HeldReplica(tmp_path / "go") as replica:
        done = subprocess.run(
            [sys.executable, "-c", RUN, replica.url, node.bootstrap, read],
            cwd=tmp_path,
            env={**os.environ, "FOREBAY_HOME": str(kafka_jar.parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fed"')]
    counted = [now for now in seen if now["backlog"] is not None]
    assert max(now["backlog"]["records"] for now in counted if not now["fed"]) >= 100
    assert max(now["in_flight"] for now in counted) == 4
    # Kafka's consumer has fetched nothing since: it is held back by what it had.
    assert max(now["backlog"]["records"] for now in counted if now["fed"]) >= 250
    assert counted[-1]["backlog"]["records"] == 0
    judged = [now for now in counted if now["results"] and now["state"] == "RUNNING"]
    assert judged
    for now in judged:
        found, mean = now["backlog"], now["prompt_tokens"] / now["results"]
        assert found["prompt_tokens"] == pytest.approx(found["records"] * mean, abs=1.0)
    texts = Counter(
        orjson.loads(message.value())["fields"]["text"] for message in consume(node.bootstrap, results)
    )
    assert texts == Counter(f"event {n}" for n in range(400))
