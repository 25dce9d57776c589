"""A fleet on a real Ray cluster with scripted replicas as engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path

import orjson
import psutil
import pytest
from benchmarks.ray_fleet.cluster import LOOPBACK, RayCluster
from typer.testing import CliRunner, Result

from forebay.cli import application
from forebay.deploy.kubernetes.ray import NODE_HEALTH
from forebay.errors import DeployError
from forebay.fleet.endpoints import RayReplicas
from forebay.testing.waiting import wait_until

OTHER = {"name": "other", "route_prefix": None, "import_path": "other_application:app"}
RAY_S = 300.0
"""On a busy machine, Ray's head may need a minute to start a first replica."""


def put(cluster: RayCluster, *applications: object) -> None:
    data = orjson.dumps({"proxy_location": "Disabled", "applications": applications})
    with urllib.request.urlopen(cluster.request(data), timeout=RAY_S):
        pass


def look(cluster: RayCluster) -> dict[str, str]:
    """The status of each application."""
    with urllib.request.urlopen(cluster.request(), timeout=RAY_S) as answer:
        found = orjson.loads(answer.read())["applications"]
    return {name: str(each["status"]) for name, each in found.items()}


def engine_process(url: str) -> psutil.Process:
    """The process that listens at `url`."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    (pid,) = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and tuple(each.laddr) == (host, int(port))
    }
    return psutil.Process(pid)


@pytest.mark.slow
def test_fleet_starts_grows_recovers_and_ends(ray_cluster: RayCluster, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(orjson.dumps(ray_cluster.fleet("fleet")))

    def run(*words: str) -> Result:
        command = ["deploy", "ray", str(path), "--address", ray_cluster.address, *words]
        return CliRunner().invoke(application(), command)

    def urls() -> tuple[str, ...]:
        return asyncio.run(RayReplicas(f"{ray_cluster.address}/fleet").urls())

    put(ray_cluster, OTHER)
    wait_until(lambda: look(ray_cluster).get("other") == "RUNNING")
    done = run("--apply", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    fleet = json.loads(done.stdout)["fleet"]
    assert fleet["replicas"] == {"RUNNING": 1}
    assert look(ray_cluster) == {"other": "RUNNING", "fleet": "RUNNING"}
    (first,) = urls()
    assert (first,) == tuple(fleet["engines"])

    # It grows, and keeps its number when it is submitted again, without a restart.
    assert run("--replicas", "2").exit_code == 0
    wait_until(lambda: len(urls()) == 2)
    assert first in urls()
    before = urls()
    assert run("--apply").exit_code == 0
    assert urls() == before

    # An engine that is killed takes its replica with it, and another one comes.
    engine_process(first).kill()
    wait_until(lambda: len(urls()) == 2 and first not in urls())

    # A replica that is killed takes its engine with it.
    victim = urls()[0]
    engine = engine_process(victim)
    replica = engine.parent()
    assert replica is not None
    os.kill(replica.pid, signal.SIGKILL)
    engine.wait(RAY_S)
    wait_until(lambda: len(urls()) == 2 and victim not in urls())

    engines = [engine_process(each) for each in urls()]
    done = run("--remove", "--json")
    assert json.loads(done.stdout)["removed"] is True
    assert look(ray_cluster) == {"other": "RUNNING"}
    assert not any(each.is_running() for each in engines)
    assert "not found at" in run("--status").stdout


@pytest.mark.long
@pytest.mark.slow
def test_an_engine_that_ends_at_once_is_reported(ray_cluster: RayCluster, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    fleet = ray_cluster.fleet("broken")
    fleet["command"] = ["sh", "-c", "echo no such model: {host} {port}; exit 3"]
    path.write_bytes(orjson.dumps(fleet))
    command = ["deploy", "ray", str(path), "--address", ray_cluster.address]
    done = CliRunner().invoke(application(), [*command, "--apply"])
    assert isinstance(done.exception, DeployError)
    # Messages of Ray's libraries in the same process may be in between.
    text = str(done.exception)
    assert "the engine ended with 3 before it was healthy" in text
    assert "no such model" in text
    assert CliRunner().invoke(application(), [*command, "--remove"]).exit_code == 0


@pytest.mark.slow
def test_cluster_answers_only_with_its_token(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(orjson.dumps(ray_cluster.fleet("closed")))
    command = ["deploy", "ray", str(path), "--address", ray_cluster.address, "--status"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert "requires a token" in str(CliRunner().invoke(application(), command).exception)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    refused = str(CliRunner().invoke(application(), command).exception)
    assert "rejects the token" in refused
    assert "another" not in refused
    # Except probes, which have no token.
    probe = f"http://{LOOPBACK}:{ray_cluster.agent_port}{NODE_HEALTH}"
    with urllib.request.urlopen(probe, timeout=RAY_S) as answer:
        assert answer.status == 200
