"""A cluster whose program counts the backlog ends with its job's status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.errors import LaunchError
from forebay.flink.rest import FlinkRest
from forebay.ports import free_ports
from forebay.testing import ReplicaThread, wait_until

from .test_cluster_backlog import application


def cancel(rest: FlinkRest, job: str, processes: list[Any], folder: Path) -> None:
    rest.ask(f"/jobs/{job}?mode=cancel", "PATCH")


def drain(rest: FlinkRest, job: str, processes: list[Any], folder: Path) -> None:
    payload = {"drain": True, "targetDirectory": (folder / "savepoint").as_uri()}
    asked = rest.json(f"/jobs/{job}/stop", "POST", payload)["request-id"]
    # Flink's service stays for minutes if nobody asks how it went.
    wait_until(lambda: rest.json(f"/jobs/{job}/savepoints/{asked}")["status"]["id"] == "COMPLETED")


def fail(rest: FlinkRest, job: str, processes: list[Any], folder: Path) -> None:
    """End the task manager of a job without restarts."""
    processes[1].terminate()


@pytest.mark.flink
@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param(cancel, "CANCELED", marks=pytest.mark.slow),
        pytest.param(fail, "FAILED", marks=pytest.mark.long),
        pytest.param(drain, "SUCCEEDED", marks=pytest.mark.long),
    ],
)
def test_cluster_ends_with_its_jobs_status(
    *,
    end: Callable[..., None],
    status: str,
    node: Any,
    kafka_jar: Path,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    access = {"type": "kafka", "bootstrap": node.bootstrap}
    metrics_port, queue_port = free_ports(2)
    with ReplicaThread() as replica:
        document = {
            "name": "topics",
            "source": {**access, "topics": [topic(1)]},
            "prompt": "{{ text }}",
            "engine": replica.url,
            "scaling": {"max": 2},
            "sink": {"type": "jsonl", "path": str(tmp_path / "out")},
            "checkpoint": {"interval_s": 1.0},
            "flink": {"restart-strategy.type": "none"},
        }
        # JSON is YAML.
        (tmp_path / "pipeline.yaml").write_bytes(orjson.dumps(document))
        with application(tmp_path, kafka_jar, metrics_port=metrics_port, queue_port=queue_port) as processes:
            conf = orjson.loads((tmp_path / "conf" / "config.yaml").read_bytes())
            rest = FlinkRest(f"http://localhost:{conf['rest.port']}")

            def running() -> str:
                assert all(process.poll() is None for process in processes), said(tmp_path)
                try:
                    (job,) = rest.json("/jobs")["jobs"]
                    found = rest.json(f"/jobs/{job['id']}")
                except (LaunchError, ValueError):
                    return ""
                tasks = {vertex["status"] for vertex in found["vertices"]}
                return str(job["id"]) if tasks == {"RUNNING"} else ""

            wait_until(lambda: bool(running()), describe=lambda: said(tmp_path))
            end(rest, running(), processes, tmp_path)
            wait_until(lambda: processes[0].poll() is not None, describe=lambda: said(tmp_path))
            code = processes[0].returncode
    log = (tmp_path / "jobmanager.log").read_text()
    assert f"down with application status {status}" in log, log[-3000:]
    assert (code == 0) == (status != "FAILED")


def said(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("*manager.*"))
