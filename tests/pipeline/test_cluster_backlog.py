"""A topic's backlog counts in the demand of a job on a Flink cluster, as Prometheus reads it, and answered
offsets are committed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import committed_offsets, consume, produce

from forebay.deploy.controller.scrape import values
from forebay.deploy.kubernetes.deployment import WANTED
from forebay.flink.jvm import import_path
from forebay.flink.thread_mode import FEW_RECORDS
from forebay.ports import free_ports
from forebay.testing import ReplicaThread, wait_until
from forebay.testing.cluster import TASK_MANAGER, start_process, stop_processes, write_configuration
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .test_application import APPLICATION, PROGRAM

RECORDS, CAPACITY, MOST = 1500, 4, 6
QUICK = """
from forebay.pipeline import application, backlog
from forebay.pipeline.kafka import offsets
offsets.CLUSTER_METRICS_S = 3.0
backlog.LOOK_S = 0.5
application.main()
"""
"""The program, on a cluster with fresher metrics than usual."""


class SlowReplica(ReplicaThread):
    """Takes a third of a second per answer, until the file `gate` exists."""

    def __init__(self, gate: Path) -> None:
        super().__init__(ReplicaScript(delay=Fixed(0.005)))
        self._gate = gate

    async def _start(self) -> None:
        await super()._start()
        assert self._replica is not None
        answer = self._replica._answer

        async def slow(*arguments: Any) -> Any:
            if not self._gate.exists():
                await asyncio.sleep(0.3)
            return await answer(*arguments)

        self._replica._answer = slow  # type: ignore[method-assign]


@contextmanager
def application(folder: Path, jar: Path, *, metrics_port: int, queue_port: int) -> Iterator[list[Any]]:
    """The pipeline in `folder` on its own cluster, whose task manager serves its metrics at a port."""
    rest_port, rpc_port, other_port = free_ports(3)
    conf = write_configuration(folder, rest_port, rpc_port, slots=1, heap_mb=512)
    options = orjson.loads((conf / "config.yaml").read_bytes())
    options |= {
        **FEW_RECORDS,
        "execution.checkpointing.dir": (folder / "state").as_uri(),
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "metrics.fetcher.update-interval": "500 ms",
        "rest.cache.checkpoint-statistics.timeout": "500 ms",
        "metrics.reporters": "prometheus",
        "metrics.reporter.prometheus.factory.class": (
            "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
        ),
    }
    (conf / "config.yaml").write_bytes(orjson.dumps(options))

    def start(name: str, main: str, port: int, arguments: Sequence[str]) -> Any:
        reporter = ("-D", f"metrics.reporter.prometheus.port={port}")
        return start_process(
            folder,
            conf,
            name=name,
            main=main,
            heap_mb=512,
            arguments=(*reporter, *arguments),
            python_path=os.pathsep.join((str(folder), import_path())),
            connectors=[jar],
        )

    told = ("--queue-url", f"http://localhost:{queue_port}/")
    (folder / "quick.py").write_text(QUICK)
    program = [*PROGRAM[:-1], "quick", str(folder / "pipeline.yaml"), "--state-id", "s", *told]
    processes = [start("jobmanager", APPLICATION, other_port, program)]
    processes.append(start("taskmanager", TASK_MANAGER, metrics_port, ()))
    try:
        yield processes
    finally:
        stop_processes(processes)


def text_at(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.flink
@pytest.mark.long
def test_topic_backlog_demands_replicas_until_it_is_read(
    node: Any, kafka_jar: Path, topic: Callable[..., str], tmp_path: Path
) -> None:
    read, results, gate = topic(2), topic(1), tmp_path / "go"
    events = (orjson.dumps({"text": f"event {n}"}) for n in range(RECORDS))
    produce(node.bootstrap, read, [{"value": value} for value in events])
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    metrics_port, queue_port = free_ports(2)
    with SlowReplica(gate) as replica:
        document = {
            "name": "topics",
            "source": {**access, "topics": [read]},
            "prompt": "{{ text }}",
            "engine": replica.url,
            "capacity": CAPACITY,
            "sampling": {"max_tokens": 100},
            "scaling": {
                "min": 0,
                "max": MOST,
                "slo_s": 10,
                "boot_s": 1,
                "drain_s": 1,
                "every_s": 0.5,
                "answer_tokens_per_s": 30,
            },
            "sink": {**access, "topic": results, "guarantee": "at-least-once"},
            "checkpoint": {"interval_s": 1.0},
        }
        # JSON is YAML.
        (tmp_path / "pipeline.yaml").write_bytes(orjson.dumps(document))
        with application(tmp_path, kafka_jar, metrics_port=metrics_port, queue_port=queue_port) as processes:

            def wanted() -> tuple[float, ...]:
                assert all(process.poll() is None for process in processes)
                return values(text_at(f"http://localhost:{metrics_port}/metrics"), WANTED)

            def said() -> str:
                page = text_at(f"http://localhost:{metrics_port}/metrics")
                lines = [line for line in page.splitlines() if "forebay" in line and not line.startswith("#")]
                logs = [path.read_text()[-3000:] for path in tmp_path.glob("*manager.*")]
                return "\n".join([text_at(f"http://localhost:{queue_port}/"), *lines, *logs])

            def waits() -> int:
                return int(orjson.loads(text_at(f"http://localhost:{queue_port}/"))["records"])

            # What an answer takes is known. For the handful that the job holds, one replica is enough.
            wait_until(lambda: wanted() == (MOST,) and 800 <= waits() <= RECORDS - 300, describe=said)
            gate.touch()
            wait_until(lambda: wanted() == (0,), describe=said)
            assert waits() == 0

            def seen() -> int:
                return sum(committed_offsets(node.bootstrap, "forebay-topics", read, 2))

            wait_until(lambda: seen() == RECORDS, describe=said)
    assert len(consume(node.bootstrap, results)) == RECORDS
