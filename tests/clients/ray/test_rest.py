"""Calls of Ray Serve's REST interface, and errors if it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.clients.ray.rest import ServeRest
from forebay.errors import DeployError
from forebay.ports import free_port


async def test_what_runs() -> None:
    made = ScriptedServe([body(application("web"))])
    async with made.served() as serve, ServeRest(f"{serve.address}/") as rest:
        assert list((await rest.instance()).applications) == ["web"]


@pytest.mark.parametrize("token", ["", "  a-token\n"])
async def test_calls_carry_the_token_of_ray(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    async with ScriptedServe([body()]).served() as serve, ServeRest(serve.address) as rest:
        await rest.instance()
        await rest.submit({"applications": []})
        assert serve.authorizations == ["Bearer a-token" if token else None] * 2


async def test_a_token_that_cannot_be_read_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "gone"))
    with pytest.raises(DeployError, match=r"Ray's token: secret file .*gone cannot be read"):
        async with ServeRest("http://127.0.0.1:1"):
            pass


async def test_a_token_of_two_lines_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "first\nsecond")
    with pytest.raises(DeployError, match="expected printable text in one line") as caught:
        async with ServeRest("http://127.0.0.1:1"):
            pass
    assert "first" not in str(caught.value)


async def test_scaling_names_application_deployment_and_number() -> None:
    async with ScriptedServe([body()]).served() as serve, ServeRest(serve.address) as rest:
        await rest.scale("fleet", "engine", 3)
        assert serve.scaled == [
            ("/api/v1/applications/fleet/deployments/engine/scale", {"target_num_replicas": 3})
        ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "requires a token: .*; put the cluster's token into RAY_AUTH_TOKEN"),
        (403, "rejects the token: .*; put"),
        (404, "Ray Serve is not running there"),
        (503, "not available for now"),
        (400, r"Ray Serve rejects it \(400\)"),
        (302, r"Ray Serve rejects it \(302\)"),
    ],
)
async def test_what_the_cluster_refuses(status: int, said: str) -> None:
    async with ScriptedServe([b"why"], status).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=said):
            await rest.instance()
        with pytest.raises(DeployError, match=said):
            await rest.submit({"applications": []})


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "no such application with a 'engine'"), (412, "external_scaler_enabled=false"), (503, "for now")],
)
async def test_what_cannot_be_scaled(status: int, said: str) -> None:
    async with ScriptedServe([body()], status).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=said):
            await rest.scale("fleet", "engine", 3)


@pytest.mark.parametrize("answer", [b"<html>", [], {"applications": []}])
async def test_what_is_no_ray_cluster(answer: Any) -> None:
    async with ScriptedServe([answer]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=r"expected JSON|unknown form"):
            await rest.instance()


async def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.clients.ray.rest.MAX_BYTES", 1000)
    async with ScriptedServe([b"x" * 100_000]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="an answer of more than"):
            await rest.instance()


async def test_nobody_listens() -> None:
    async with ServeRest(f"http://127.0.0.1:{free_port()}") as rest:
        with pytest.raises(
            DeployError, match=r"no Ray cluster: Connection refused; .* head .*--include-dashboard"
        ):
            await rest.instance()
