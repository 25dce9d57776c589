import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error

import psutil
import pytest

from forebay.engine.client import HttpEngine
from forebay.errors import LaunchError
from forebay.records import Completion, Request
from forebay.testing.answers import echo
from forebay.testing.replica import ReplicaProcess, ReplicaScript, ReplicaThread, fetch_report
from forebay.testing.script import Fixed

NOW = ReplicaScript(delay=Fixed(0.0))


def call(url: str, id: str) -> Completion:
    async def once() -> Completion:
        engine = HttpEngine(url)
        try:
            return await engine.complete(Request(id, "fake", prompt="hello"), timeout_s=30)
        finally:
            await engine.close()

    return asyncio.run(once())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_thread_serves_and_ends() -> None:
    with ReplicaThread(NOW) as replica:
        assert call(replica.url, "r1").text == echo("hello")
        assert replica.report().calls == {"r1": 1}
    with pytest.raises(urllib.error.URLError):
        fetch_report(replica.url)


def test_a_process_serves_is_killed_and_comes_back_on_its_port() -> None:
    with ReplicaProcess(NOW) as replica:
        url, pid = replica.url, replica.pid
        assert call(url, "r1").text == echo("hello")
        assert replica.report().calls == {"r1": 1}
        with pytest.raises(LaunchError, match="is running"):
            replica.start()
        replica.kill()
        with pytest.raises(urllib.error.URLError):
            fetch_report(url)
        replica.start()
        assert (replica.url, replica.pid != pid) == (url, True)
        assert replica.report().calls == {}
        replica.stop()
        assert replica.pid is None
        replica.start()
        pid = replica.pid
    assert pid is not None
    assert gone(pid)


def test_a_port_in_use_is_a_launch_error(capfd: pytest.CaptureFixture[str]) -> None:
    with ReplicaProcess(NOW) as replica, pytest.raises(LaunchError, match=str(replica.port)):
        ReplicaProcess(NOW, port=replica.port).start()
    assert "address already in use" in capfd.readouterr().err


def test_a_key_is_in_no_argument_of_the_process() -> None:
    with ReplicaProcess(ReplicaScript(api_key="sk-secret")) as replica:
        assert replica.pid is not None
        assert "sk-secret" not in " ".join(psutil.Process(replica.pid).cmdline())


def test_it_ends_when_its_parent_is_killed() -> None:
    code = (
        "import time; from forebay.testing.replica import ReplicaProcess as R\n"
        "r = R(); r.start(); print(r.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while not gone(pid):
        time.sleep(0.02)
