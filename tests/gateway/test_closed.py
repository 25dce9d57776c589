"""What the gateway shows to whom: HTTPS, monitoring with a key or port of its own, connections per client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.errors import SettingError
from forebay.gateway.connections import client_of
from forebay.gateway.serve import GatewayServer, listen, make_gateway
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .conftest import CHAT, before, spec_of, until
from .test_bad_input import HEAD, answer, fine, raw

CALL = "/v1/chat/completions"
KEYS = [{"name": "a", "key": {"env": "CLIENT_KEY"}}]
KNOWN = HEAD + b"authorization: Bearer sesame\r\n"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_KEY", "sesame")
    monkeypatch.setenv("MONITORING_KEY", "watcher")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    files = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    command = (
        "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost -days 2"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-out", files["certificate"], "-keyout", files["key"]]
    subprocess.run([*command.split(), *names, *out], check=True, capture_output=True)
    return files


async def test_with_a_certificate_only_https_is_served(tls: dict[str, str]) -> None:
    async with before(tls=tls, limits={"max_headers": 20}) as (served, _):
        url = f"https://127.0.0.1:{served.port}"
        trusted = ssl.create_default_context(cafile=tls["certificate"])
        async with served.session.post(url + CALL, json=CHAT, ssl=trusted) as response:
            assert response.status == 200
        async with served.session.post(url + CALL, json=CHAT | {"stream": True}, ssl=trusted) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
        many = {f"x-{number}": "1" for number in range(40)}
        async with served.session.get(url + "/health", headers=many, ssl=trusted) as response:
            assert response.status == 431
        with pytest.raises(aiohttp.ClientError):
            await served.session.post(served.url + CALL, json=CHAT)
        context = served.server.config.ssl
        assert context is not None
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("broken", ["missing", "empty", "locked"])
def test_unusable_tls_files_are_one_error(tls: dict[str, str], broken: str) -> None:
    if broken == "missing":
        Path(tls["key"]).unlink()
    elif broken == "empty":
        Path(tls["certificate"]).write_text("")
    else:
        locked = ["openssl", "ec", "-in", tls["key"], "-aes256", "-passout", "pass:x", "-out", tls["key"]]
        subprocess.run(locked, check=True, capture_output=True)
    spec = spec_of(["http://127.0.0.1:1"], tls=tls)
    with pytest.raises(SettingError, match=r"tls: .*cannot be used"):
        GatewayServer(make_gateway(spec), spec)


async def test_monitoring_key_is_required() -> None:
    monitoring = {"key": {"env": "MONITORING_KEY"}}
    keys = [{"name": "search", "key": {"env": "CLIENT_KEY"}}]
    async with before(keys=keys, monitoring=monitoring) as (served, _):
        for path in ("/health", "/metrics"):
            for headers, status in (({}, 401), (bearer("sesame"), 401), (bearer("watcher"), 200)):
                async with served.session.get(served.url + path, headers=headers) as response:
                    assert response.status == status
        async with served.session.get(served.url + "/openapi.json") as response:
            assert response.status == 200
        async with served.session.post(served.url + CALL, json=CHAT, headers=bearer("watcher")) as response:
            assert response.status == 401


@pytest.mark.heavy
async def test_monitoring_port_is_exclusive() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    async with AsyncExitStack() as stack:
        served, replicas = await stack.enter_async_context(before(monitoring={"port": port}))
        spec = spec_of([replicas[0].url])
        second = stack.enter_context(listen("127.0.0.1", port))
        server = GatewayServer(served.gateway, spec)
        running = asyncio.ensure_future(server.serve(sockets=[second]))
        await until(lambda: server.started)
        other = f"http://127.0.0.1:{port}"
        expected = [
            *(
                (served.url + "/health", 404),
                (served.url + "/metrics", 404),
                (served.url + "/v1/models", 200),
            ),
            *((other + "/health", 200), (other + "/metrics", 200), (other + "/v1/models", 404)),
            (other + "/openapi.json", 404),
        ]
        for url, status in expected:
            async with served.session.get(url) as response:
                assert (url, response.status) == (url, status)
        async with served.session.post(other + CALL, json=CHAT) as response:
            assert response.status == 404
        server.should_exit = True
        await running


@pytest.mark.parametrize("closed", [True, False])
async def test_key_names_are_shown_to_monitoring_only(closed: bool) -> None:
    keys = [{"name": "search", "key": {"env": "CLIENT_KEY"}}]
    monitoring: dict[str, Any] = {"key": {"env": "MONITORING_KEY"}} if closed else {}
    async with before(keys=keys, monitoring=monitoring) as (served, _):
        async with served.session.post(served.url + CALL, json=CHAT, headers=bearer("sesame")) as response:
            assert response.status == 200
            await response.read()
        await until(lambda: served.gateway.in_flight == 0)
        async with served.session.get(served.url + "/metrics", headers=bearer("watcher")) as response:
            text = await response.text()
        name = "search" if closed else "known"
        assert f'forebay_gateway_requests_total{{key="{name}",outcome="200"' in text
        assert ("search" in text) is closed


def test_monitoring_key_is_not_a_client_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITORING_KEY", "sesame")
    keys = [{"name": "search", "key": {"env": "CLIENT_KEY"}}]
    with pytest.raises(SettingError, match="another key"):
        make_gateway(
            spec_of(["http://127.0.0.1:1"], keys=keys, monitoring={"key": {"env": "MONITORING_KEY"}})
        )


@pytest.mark.parametrize("limits", [{"connections_per_client": 4}, {"connections": 4}])
async def test_silent_connections_are_closed_for_new_ones(limits: dict[str, int]) -> None:
    async with before(keys=KEYS, limits=limits) as (served, _):
        held = [await raw(served) for _ in range(20)]
        await until(lambda: len(served.server.server_state.connections) <= 4)
        await fine(served, bearer("sesame"))
        for reader, writer in held[:16]:
            assert await reader.read() == b""
            writer.close()
        for _, writer in held[16:]:
            writer.close()
        protocol: Any = served.server.config.http_protocol_class
        await until(lambda: len(protocol.opened) == 1)


async def test_authenticated_connections_are_kept() -> None:
    async with before(ReplicaScript(delay=Fixed(600.0)), keys=KEYS, limits={"connections": 2}) as (served, _):
        body = orjson.dumps(CHAT)
        head = KNOWN + b"content-length: %d\r\n\r\n" % len(body)
        held = [await raw(served, head, body) for _ in range(2)]
        await until(lambda: served.gateway.in_flight == 2)
        reader, writer = await raw(served)
        status, error = await answer(reader)
        assert (status, error["code"]) == (503, "gateway_full")
        assert served.gateway.in_flight == 2
        for _, one in [*held, (reader, writer)]:
            one.close()


@pytest.mark.heavy
async def test_unread_refusals_hold_no_slot() -> None:
    """Nor their connections for long."""
    limits = {"in_flight": 4, "header_s": 0.3}
    async with before(keys=KEYS, limits=limits) as (served, _), aiohttp.ClientSession() as own:
        await until(lambda: served.server.started)
        listening = served.server.servers[0].sockets[0]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        held = []
        for _ in range(20):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.port))
            held.append(sock)
        for _ in range(40):
            for sock in held:
                with suppress(OSError):
                    sock.send(HEAD + b"content-length: 0\r\n\r\n")
            async with own.post(served.url + CALL, json=CHAT, headers=bearer("sesame")) as response:
                assert response.status == 200
        opened = served.server.server_state.connections
        await until(lambda: len(opened) == 1)
        for sock in held:
            sock.close()


async def test_pipelined_requests_on_one_connection_are_bounded() -> None:
    async with before(ReplicaScript(delay=Fixed(600.0)), keys=KEYS) as (served, _):
        body = orjson.dumps(CHAT)
        first = KNOWN + b"content-length: %d\r\n\r\n" % len(body) + body
        reader, writer = await raw(served, first)
        await until(lambda: served.gateway.in_flight == 1)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_client_is_an_address_or_a_network(address: str, client: str) -> None:
    assert client_of(address) == client


async def test_without_keys_web_pages_are_rejected() -> None:
    async with before() as (served, [replica]):
        for kind in ("text/plain", "application/json"):
            page = {"origin": "http://page.example", "content-type": kind}
            async with served.session.post(served.url + CALL, json=CHAT, headers=page) as response:
                assert response.status == 403
                assert (await response.json())["error"]["code"] == "origin_refused"
        async with served.session.get(served.url + "/v1/models", headers=page) as response:
            assert response.status == 403
        assert not replica.report().calls
        await fine(served)


async def test_with_a_key_web_pages_are_served() -> None:
    keys = [{"name": "a", "key": {"env": "CLIENT_KEY"}}]
    page = {"origin": "http://page.example", **bearer("sesame")}
    async with (
        before(keys=keys) as (served, _),
        served.session.post(served.url + CALL, json=CHAT, headers=page) as response,
    ):
        assert response.status == 200
