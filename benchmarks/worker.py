"""`python -m benchmarks.worker`: runs one system on one workload in its own process and JVM.

Reads a JSON order from standard input, and prints a JSON report as the last line of standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs import async_function_job, drive, forebay_job
from benchmarks.workload import Checkpoint, Seen, Workload, figures
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.errors import LaunchError
from forebay.flink.environment import FlinkConfig, Restart, embedded_rest, flink_environment
from forebay.flink.job import RunningJob, submit
from forebay.flink.task_managers import standalone_cluster
from forebay.ports import free_port

POLL_S = 0.25


def main() -> int:
    order = json.load(sys.stdin)
    load = Workload(**order["load"])
    if order["system"] == "direct":
        report: dict[str, Any] = asdict(figures(load, asyncio.run(drive(load))))
    else:
        report = _job(order["system"], load)
    print(json.dumps(report), flush=True)
    return 0


def _job(system: str, load: Workload) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as place:
        home, port = Path(place), free_port()
        config = FlinkConfig(
            checkpoint_dir=home / "checkpoints",
            checkpoint_interval_s=load.checkpoint_s,
            restart=Restart(attempts=0),
            log_dir=home / "logs",
            parallelism=load.parallelism,
            task_managers=load.task_managers,
            options={
                "rest.port": str(port),
                "rest.bind-port": str(port),
                "web.checkpoints.history": "100000",
            },
        )
        with standalone_cluster(config):
            env = flink_environment(config)
            if system == "async_function":
                async_function_job(env, load, home / "out")
            else:
                forebay_job(env, load, home / "out")
            job = submit(env, f"overhead-{system}", embedded_rest(config, port))
            checkpoints, memory = _watch(job, load)
        seen = [Seen.parse(line.decode()) for line in read_jsonl_sink(home / "out")]
        return {**asdict(figures(load, seen, checkpoints)), "memory": memory}


def _watch(job: RunningJob, load: Workload) -> tuple[list[Checkpoint], list[dict[str, float]]]:
    done: tuple[tuple[int, int], ...] = ()
    wall_to_monotonic_s = time.monotonic() - time.time()
    memory: list[dict[str, float]] = []
    while (cause := job.ended()) is None:
        time.sleep(POLL_S)
        with suppress(LaunchError):
            done = job.checkpoints().done
            if load.sample_memory:
                memory.append({"results": job.counts().get("results", 0.0), **_resident()})
    if cause:
        raise LaunchError(f"the job failed: {cause}")
    return [Checkpoint(at / 1000 + wall_to_monotonic_s, took) for at, took in done], memory


def _resident() -> dict[str, float]:
    sizes = {"jvm_mb": 0.0, "python_mb": 0.0}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            kind = "jvm_mb" if process.name() == "java" else "python_mb"
            sizes[kind] += process.memory_info().rss / 1e6
    return sizes


if __name__ == "__main__":
    sys.exit(main())
