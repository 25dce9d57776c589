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
            checkpoints = _watch(job)
        seen = [Seen.parse(line.decode()) for line in read_jsonl_sink(home / "out")]
        return asdict(figures(load, seen, checkpoints))


def _watch(job: RunningJob) -> list[Checkpoint]:
    done: tuple[tuple[int, int], ...] = ()
    wall_to_monotonic_s = time.monotonic() - time.time()
    while (cause := job.ended()) is None:
        time.sleep(POLL_S)
        with suppress(LaunchError):
            done = job.checkpoints().done
    if cause:
        raise LaunchError(f"the job failed: {cause}")
    return [Checkpoint(at / 1000 + wall_to_monotonic_s, took) for at, took in done]


if __name__ == "__main__":
    sys.exit(main())
