"""`forebay gateway` before it serves: mistakes are one sentence each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
sys.modules[{name!r}] = None
from forebay.cli import main
sys.argv = ["forebay", "gateway", "--engine", "http://127.0.0.1:9"]
main()
"""


PATIENT = """
import sys
from forebay.cli import main
from forebay.gateway.app import Gateway
# Without a replica's answer within five seconds a gateway serves until there is one.
Gateway.open.__defaults__ = (300.0,)
sys.argv = ["forebay", "gateway", *sys.argv[1:]]
main()
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PATIENT, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def test_without_replicas() -> None:
    done = run()
    assert (done.returncode, "--engine URL" in done.stderr) == (2, True)


def test_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("engine: http://127.0.0.1:9\nlimit: {}\n")
    done = run("--config", str(tmp_path / "g.yaml"))
    assert done.returncode == 2
    assert "g.yaml:2: unknown key 'limit'; did you mean 'limits'?" in done.stderr


def test_replicas_that_do_not_serve_the_model(tmp_path: Path) -> None:
    from forebay.testing.replica import ReplicaThread

    (tmp_path / "g.yaml").write_text("engine: {model: another}\n")
    with ReplicaThread() as replica:
        done = run("--config", str(tmp_path / "g.yaml"), "--engine", replica.url, "--port", "0")
    assert done.returncode == 2
    assert "no replica serves the model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["uvicorn", "httptools", "prometheus_client", "opentelemetry"])
def test_a_missing_package(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'forebay[gateway]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
