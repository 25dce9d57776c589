"""A Ray cluster that is started for a fleet whose file names none; `ray` is a script here."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.deploy.ray.local_cluster import find_ray, start_local_cluster, until_it_answers
from forebay.errors import DeployError
from forebay.ports import free_port
from forebay.ray_serve.rest import ServeRest

SCRIPT = """#!/bin/sh
echo "$RAY_AUTH_MODE $RAY_ADDRESS $@" >> {folder}/calls
case "$1" in
    get-auth-token) mkdir -p "$HOME/.ray"; echo secret > "$HOME/.ray/auth_token"; echo secret ;;
    start) {start} ;;
esac
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


def scripted(folder: Path, start: str = "exit 0") -> Path:
    path = folder / "ray"
    path.write_text(SCRIPT.format(folder=folder, start=start))
    path.chmod(0o700)
    return path


def test_it_is_of_this_machine_alone_and_asks_for_a_token(home: Path, address: str) -> None:
    said: list[str] = []
    ray = scripted(home)
    assert start_local_cluster(address, said.append, ray=lambda: ray)
    token, start = (home / "calls").read_text().splitlines()
    assert token == "token  get-auth-token --generate"
    assert start.startswith("token  start --head --include-dashboard=true --dashboard-host=127.0.0.1 ")
    assert f"--dashboard-port={address.rsplit(':', 1)[1]} --node-ip-address=127.0.0.2" in start
    assert said == [
        f"there is no Ray cluster at {address}: one is started on this machine; `ray stop` ends it"
    ]
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0
    # The token is there now, and stays.
    assert start_local_cluster(address, said.append, ray=lambda: ray)
    assert len((home / "calls").read_text().splitlines()) == 3


def test_who_wants_no_token_gets_none(home: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray = scripted(home)
    assert start_local_cluster(address, lambda words: None, ray=lambda: ray)
    (call,) = (home / "calls").read_text().splitlines()
    assert call.startswith("disabled  start")


def test_a_cluster_that_is_there_is_left_alone(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert not start_local_cluster(address, lambda words: None, ray=lambda: scripted(home))
    assert not (home / "calls").exists()


def test_a_start_that_fails_is_told_with_its_last_words(home: Path, address: str) -> None:
    ray = scripted(home, "echo no memory left >&2; exit 7")
    with pytest.raises(DeployError, match="ray start ended with 7: no memory left"):
        start_local_cluster(address, lambda words: None, ray=lambda: ray)
    ray.chmod(0o600)
    with pytest.raises(DeployError, match=r"Permission denied; pip install 'forebay\[ray\]'"):
        start_local_cluster(address, lambda words: None, ray=lambda: ray)


def test_without_ray_it_is_said_what_is_needed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr("sys.executable", str(home / "bin" / "python"))
    with pytest.raises(DeployError, match="no Ray to start one: pip install"):
        find_ray()
    ray = scripted(home)
    assert find_ray() == ray
    beside = home / "bin" / "ray"
    beside.parent.mkdir()
    os.link(ray, beside)
    assert find_ray() == beside


async def test_a_dashboard_is_waited_for(home: Path) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    answers = [b"starting", b"starting", body(application("web"))]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        await until_it_answers(rest, sleep=pause)
    assert len(paused) == 2
    async with ScriptedServe([b"starting"]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="expected JSON"):
            await until_it_answers(rest, sleep=pause)
