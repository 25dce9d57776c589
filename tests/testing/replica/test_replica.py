from __future__ import annotations

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
from forebay.ports import free_port
from forebay.records import Completion, Request
from forebay.testing.answers import echo
from forebay.testing.replica import (
    ReplicaProcess,
    ReplicaScript,
    ReplicaThread,
    fetch_report,
    fetch_work,
    set_speed,
)
from forebay.testing.replica.__main__ import main, parse, script_of
from forebay.testing.script import Faults, Fixed, Mixture

pytestmark = pytest.mark.heavy

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


def test_killed_process_restarts_on_its_port() -> None:
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


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    with ReplicaThread(NOW) as replica:
        set_speed(replica.url, 2.0)
        assert fetch_work(replica.url).speed == 2.0
        assert fetch_report(replica.url).calls == {}


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


def test_default_script() -> None:
    assert script_of(parse([]), "") == ReplicaScript()


def test_every_option_reaches_the_script() -> None:
    line = (
        "--model a --model b --delay 0.9:0.1,0.1:1 --seed 7 --token-s 0.01 --chunks 4 --slots 8"
        " --max-queue 16 --prefill-s-per-char 0.001 --block-chars 64 --cache-blocks 99 --max-model-len 1000"
        " --fault 500=0.01 --fault cut=0.02"
    )
    assert script_of(parse(line.split()), "") == ReplicaScript(
        models=("a", "b"),
        delay=Mixture(((0.9, 0.1), (0.1, 1.0)), 7),
        token_s=0.01,
        chunks=4,
        slots=8,
        max_queue=16,
        prefill_s_per_char=0.001,
        block_chars=64,
        cache_blocks=99,
        max_model_len=1000,
        faults=Faults((("500", 0.01), ("cut", 0.02)), 7),
    )


def test_a_script_from_standard_input() -> None:
    script = ReplicaScript(slots=3)
    assert script_of(parse(["--script", "-"]), script.to_json()) == script


@pytest.mark.parametrize("wrong", [["--delay", "fast"], ["--fault", "nonsense=1"], ["--script", "{}"]])
def test_settings_that_cannot_be_read_are_one_sentence(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(wrong) == 2
    assert capsys.readouterr().err.startswith("the settings are not valid: ")
