"""A Ray cluster that is started if a fleet file names none; `ray` is a script here."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from tests.harness.clock import ManualClock
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.clients.ray.rest import ServeRest
from forebay.deploy.ray.local_cluster import find_ray, start_local_cluster, until_it_answers
from forebay.errors import DeployError, SettingError
from forebay.ports import free_port

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
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
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


def test_its_dashboard_is_on_loopback_and_requires_a_token(home: Path, address: str) -> None:
    text: list[str] = []
    ray = scripted(home)
    assert start_local_cluster(address, text.append, ray=lambda: ray)
    token, start = (home / "calls").read_text().splitlines()
    assert token == "token  get-auth-token --generate"
    assert start.startswith("token  start --head --include-dashboard=true --dashboard-host=127.0.0.1 ")
    assert f"--dashboard-port={address.rsplit(':', 1)[1]} --node-ip-address=127.0.0.2" in start
    assert len(text) == 1
    assert "ports are open to the network, and require Ray's token" in text[0]
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o077 == 0
    # The token is there now, and stays.
    assert start_local_cluster(address, text.append, ray=lambda: ray)
    assert len((home / "calls").read_text().splitlines()) == 3


def test_no_other_user_can_write_to_rays_code_folders(home: Path, address: str) -> None:
    # As Ray does with its folder.
    opens = 'mkdir -p "${word#*=}" && chmod 777 "${word#*=}"'
    ray = scripted(home, 'for word; do case "$word" in --temp-dir=*) ' + opens + " ;; esac; done")
    assert start_local_cluster(address, lambda words: None, ray=lambda: ray)
    [folder] = home.glob("forebay-ray-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(SettingError, match="forebay-ray-0 belongs to user 12345"):
            start_local_cluster(address, lambda words: None, ray=lambda: ray)


@pytest.mark.parametrize("mode", ["", " TOKEN "])
def test_token_is_created_for_any_mode(
    mode: str, home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    ray = scripted(home)
    assert start_local_cluster(address, lambda words: None, ray=lambda: ray)
    assert [call.split()[:2] for call in (home / "calls").read_text().splitlines()] == [
        ["token", "get-auth-token"],
        ["token", "start"],
    ]


def test_no_cluster_is_started_open_to_the_network(
    home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray = scripted(home)
    with pytest.raises(DeployError, match="anybody who reaches this machine could run programs"):
        start_local_cluster(address, lambda words: None, ray=lambda: ray)
    assert not (home / "calls").exists()


def test_object_store_keys_are_not_passed_to_the_cluster(
    home: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    ray = scripted(home, f"env > {home}/environment")
    assert start_local_cluster(address, lambda words: None, ray=lambda: ray)
    assert "AWS_SECRET" not in (home / "environment").read_text()


def test_missing_token_file_is_reported(home: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "gone"))
    with pytest.raises(DeployError, match="Ray's token: secret file"):
        start_local_cluster(address, lambda words: None, ray=lambda: scripted(home))


def test_a_cluster_that_is_there_is_left_alone(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert not start_local_cluster(address, lambda words: None, ray=lambda: scripted(home))
    assert not (home / "calls").exists()


def test_failed_start_is_reported_with_its_last_output(home: Path, address: str) -> None:
    ray = scripted(home, "echo no memory left >&2; exit 7")
    with pytest.raises(DeployError, match="ray start ended with 7: no memory left"):
        start_local_cluster(address, lambda words: None, ray=lambda: ray)
    ray.chmod(0o600)
    with pytest.raises(DeployError, match=r"Permission denied; pip install 'forebay\[ray\]'"):
        start_local_cluster(address, lambda words: None, ray=lambda: ray)


def test_missing_ray_is_reported_with_the_fix(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_dashboard_is_waited_for_a_minute() -> None:
    clock = ManualClock()
    answers = [b"starting", b"starting", body(application("web"))]
    async with ScriptedServe(answers).served() as serve, ServeRest(serve.address) as rest:
        await until_it_answers(rest, clock=clock, sleep=clock.sleep)
    assert sum(clock.slept_s) == 1.0
    async with ScriptedServe([b"starting"]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="expected JSON"):
            await until_it_answers(rest, clock=clock, sleep=clock.sleep)
    assert sum(clock.slept_s) == 61.0


async def test_a_token_that_is_refused_is_not_tried_again() -> None:
    clock = ManualClock()
    async with ScriptedServe([b"no"], 403).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="rejects the token"):
            await until_it_answers(rest, clock=clock, sleep=clock.sleep)
        assert len(serve.authorizations) == 1
