"""`forebay gateway` before it serves: one sentence per mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from forebay.testing import wait_until

pytestmark = pytest.mark.heavy

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


def test_a_key_that_is_replaced_counts_without_a_restart(tmp_path: Path) -> None:
    from forebay.testing.replica import ReplicaThread

    key, report, log = tmp_path / "key", tmp_path / "report.json", tmp_path / "access.jsonl"
    key.write_text("sk-1")
    keys = "keys: [{name: a, key: {file: key}}]"
    (tmp_path / "g.yaml").write_text(f"{keys}\naccess_log: access.jsonl\n")
    words = ["gateway", "--config", str(tmp_path / "g.yaml"), "--port", "0", "--json", str(report)]
    with ReplicaThread() as replica:
        command = [sys.executable, "-m", "forebay", *words, "--engine", replica.url]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(report.exists, timeout_s=300)
            url = json.loads(report.read_text())["url"]
            assert _status(url, "sk-1") == 200
            (tmp_path / "new").write_text("sk-2")
            (tmp_path / "new").rename(key)
            wait_until(lambda: _status(url, "sk-2") == 200, timeout_s=300)
            assert _status(url, "sk-1") == 401
        finally:
            running.terminate()
            running.wait(60)
    statuses = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    assert (statuses[0], statuses[-2:]) == (200, [200, 401])


def _status(url: str, key: str) -> int:
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("name", ["uvicorn", "httptools", "prometheus_client"])
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
