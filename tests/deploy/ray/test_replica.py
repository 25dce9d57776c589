"""A replica and its engine, without Ray."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from forebay.ports import free_port

pytestmark = pytest.mark.heavy

CODE = """
import sys
from forebay.deploy.ray.replica import EngineReplica

engine = EngineReplica(sys.argv[2:], int(sys.argv[1]), 1, startup_s=60, drain_s=0)
engine.check_health()
print("healthy")
print(engine.record_replica_metadata(), engine.record_routing_stats())
engine.__del__()
print(engine.record_routing_stats())
"""


@pytest.fixture(autouse=True)
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the replica's imports of Ray."""
    package = tmp_path / "ray"
    package.mkdir()
    address = "SimpleNamespace(get_node_ip_address=lambda: '127.0.0.1')"
    (package / "__init__.py").write_text(f"from types import SimpleNamespace\nutil = {address}\n")
    (package / "serve.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))


def replica(port: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A running replica whose engine listens at `port`."""
    words = [sys.executable, "-c", CODE, str(port), *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_engine_is_called_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "health").touch()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    server = (sys.executable, "-m", "http.server", "{port}", "--bind", "{host}", "--directory", str(tmp_path))
    port = free_port()
    (tmp_path / "metrics").write_text("vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n")
    done = replica(port, *server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "healthy",
        f"{{'url': 'http://127.0.0.1:{port}'}} {{'running': 3.0, 'waiting': 1.0}}",
        "{'away': True}",
    ]


def test_engine_without_metrics_is_ready(tmp_path: Path) -> None:
    (tmp_path / "health").touch()
    server = (sys.executable, "-m", "http.server", "{port}", "--bind", "{host}", "--directory", str(tmp_path))
    done = replica(free_port(), *server)
    assert done.stdout.splitlines()[1].endswith("} {}"), done.stderr


@pytest.mark.parametrize(("names", "expected"), [(("replica", "stats"), "ray"), (("choice",), "numpy")])
def test_a_replica_needs_only_ray_and_its_router_numpy(names: tuple[str, ...], expected: str) -> None:
    modules = ", ".join(f"forebay.deploy.ray.{name}" for name in names)
    code = f"import sys, {modules}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    needed = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in requires("forebay") or ()}
    assert imported & needed == {expected}


def test_foreign_engine_is_not_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = replica(port, "touch", str(tmp_path / "started"))
    assert f"another process listens at http://127.0.0.1:{port}" in done.stderr
    assert not (tmp_path / "started").exists()
