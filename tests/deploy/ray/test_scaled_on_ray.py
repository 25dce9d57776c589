"""A burst scales a fleet on a real Ray cluster from one replica to four and back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.kubernetes.burst import ID, BurstOptions, Stream
from benchmarks.ray_fleet.cluster import RayCluster

from forebay.bench.stream.feed import FeedProcess
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.fleet.endpoints import RayReplicas
from forebay.ports import free_port
from forebay.testing.waiting import wait_until

REPORTER = "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
LONGEST_S = 400.0


def start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "FOREBAY_HOME": str(folder / "home")},
        )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.flink
def test_a_burst_takes_a_fleet_up_and_down(ray_cluster: RayCluster, tmp_path: Path) -> None:
    port = free_port()
    fleet, pipeline = tmp_path / "fleet.yaml", tmp_path / "p.yaml"
    document = ray_cluster.fleet("scaled")
    document["command"] += ["--delay", "1:4", "--slots", "4"]
    document["drain_s"] = 120
    fleet.write_bytes(orjson.dumps(document))
    to_ray = ("--address", ray_cluster.address)
    replicas = RayReplicas(f"{ray_cluster.address}/scaled")

    def count() -> int:
        return len(asyncio.run(replicas.urls()))

    def results() -> list[Any]:
        return [orjson.loads(line) for line in read_jsonl_sink(tmp_path / "out")]

    subprocess.run(
        [sys.executable, "-m", "forebay", "deploy", "ray", fleet, "--apply", *to_ray],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    # A boot is shorter than the SLO even if it takes ten times as long: else the policy keeps replicas for
    # the next burst. So the burst is more than three replicas can answer in time.
    options = BurstOptions(rate=0.2, burst=300, engine={}, pipeline={}, scaling={}, quiet_s=5.0)
    with FeedProcess(tmp_path) as feed:
        pipeline.write_bytes(
            orjson.dumps(
                {
                    "name": "p",
                    "source": {"type": "sse", "url": feed.url, "idle_timeout_s": 600.0},
                    "id": "{{ " + ID + " }}",
                    "prompt": "{{ text }}",
                    "sink": {"type": "jsonl", "path": "out"},
                    "engine": {"ray": replicas.place, "model": "small"},
                    "capacity": 300,
                    "sampling": {"max_tokens": 16},
                    "checkpoint": {"interval_s": 1.0},
                    "scaling": {
                        "min": 1, "max": 4, "slo_s": 60.0, "boot_s": 5.0, "every_s": 1.0,
                        "answer_tokens_per_s": 16.0, "prompt_tokens_per_s": 300.0, "requests_per_replica": 4,
                    },
                    "flink": {
                        "metrics.reporters": "prometheus",
                        "metrics.reporter.prometheus.factory.class": REPORTER,
                        "metrics.reporter.prometheus.port": str(port),
                    },
                }
            )
        )  # fmt: skip
        metrics = ("--metrics", f"http://127.0.0.1:{port}/metrics")
        scaler = (
            "autoscale",
            "ray",
            str(fleet),
            *to_ray,
            *metrics,
            "--max",
            "4",
            "--requests-per-replica",
            "4",
        )
        processes = [
            start(tmp_path, "run", "run", str(pipeline)),
            start(tmp_path, "scaler", *scaler, "--settle-s", "3", "--interval-s", "0.5"),
        ]
        try:
            stream = Stream(options, feed, tmp_path)

            def come_to(most: int) -> bool:
                stream.go_on()
                assert [each.poll() for each in processes] == [None, None], tail(tmp_path)
                return count() == most

            for most in (4, 1):
                wait_until(partial(come_to, most), LONGEST_S, emit=lambda: tail(tmp_path))
            wait_until(lambda: len(results()) >= len(stream.ids), emit=lambda: tail(tmp_path))
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
                process.wait()
    found = Counter(line["id"] for line in results())
    assert set(found.values()) == {1}
    assert found.keys() >= set(stream.ids)
    assert all(line["attempts"] == 1 for line in results()), "no request was cut off"
    subprocess.run(
        [sys.executable, "-m", "forebay", "deploy", "ray", fleet, "--remove", *to_ray],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def tail(folder: Path) -> str:
    return "".join((folder / f"{name}.log").read_text()[-1500:] for name in ("run", "scaler"))
