"""Clients of the gateway, with and without a key, take its event loop, memory and connections from others."""

from __future__ import annotations

import asyncio
import resource
import ssl
from typing import Any

import orjson
import pytest

from forebay.gateway import connections
from forebay.gateway.asked import read_asked, with_model
from forebay.gateway.connections import within_files
from forebay.gateway.form import form_fields
from forebay.gateway.refusal import Refusal
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from ..gateway.conftest import CHAT, before, spec_of, until  # noqa: TID252
from ..gateway.test_bad_input import HEAD, answer, fine, raw  # noqa: TID252
from ..gateway.test_closed import tls  # noqa: F401, TID252
from ..gateway.test_form import KIND, form_of  # noqa: TID252

SPEECH = "/v1/audio/transcriptions"
KEYS = [{"name": name, "key": {"env": f"KEY_{name}"}} for name in ("a", "b")]
ATTACKER, OTHER = ({"authorization": f"Bearer of {name}"} for name in ("a", "b"))
KNOWN = HEAD + b"authorization: Bearer of a\r\n"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        monkeypatch.setenv(f"KEY_{name}", f"of {name}")


@pytest.mark.parametrize("where", ["content type", "part"])
def test_headers_that_are_slow_to_parse_are_rejected(where: str) -> None:
    """30 KB of them took half a second of the event loop, a form with 30 such parts three seconds."""
    slow = b';"' + b";" * 8000
    kind, body = KIND, form_of([("model", b"m")])
    if where == "content type":
        kind += slow
    else:
        body = body.replace(b'name="model"', b'name="model"' + slow + b'"')
    with pytest.raises(Refusal, match="a header has more than 20 parameters"):
        form_fields(kind, body)


@pytest.mark.parametrize("name", ["b", 'a"\\é', "m" * 500])
def test_model_is_replaced_without_parsing_the_body(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = CHAT | {"model": "ä", "user": "model", "n": 2}
    asked = read_asked("/v1/chat/completions", orjson.dumps(chat), max_depth=64)
    form = form_of([("prompt", b"model"), ("model", "ä".encode()), ("file", b"RIFF")], file="file")
    spoken = read_asked(SPEECH, form, max_depth=64, content_type=KIND)
    with monkeypatch.context() as patch:
        patch.setattr(orjson, "loads", lambda body: pytest.fail("it was read again"))
        for model in (name, "x", name):
            asked, spoken = with_model(asked, model), with_model(spoken, model)
    assert orjson.loads(asked.body) == chat | {"model": name}
    assert (asked.model, spoken.model) == (name, name)
    assert spoken.body == form.replace("ä".encode(), name.encode())


async def test_one_key_cannot_use_all_memory_for_bodies() -> None:
    async with before(keys=KEYS, limits={"max_held_bytes": 4000}) as (served, _):
        begun = KNOWN + b"content-length: 2000\r\n\r\n" + b" " * 1500
        held = [await raw(served, begun) for _ in range(4)]
        await until(lambda: served.gateway._room.held == 1500)
        refused = [await answer(reader) for reader, _ in held[1:]]
        assert {(status, error["code"]) for status, error in refused} == {(503, "gateway_full")}
        await fine(served, OTHER)
        for _, writer in held:
            writer.close()


async def test_idle_connections_are_closed_for_others() -> None:
    async with before(keys=KEYS, limits={"connections": 4}) as (served, _):
        get = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer of a\r\n\r\n"
        held = []
        for _ in range(8):
            held.append(await raw(served, get))
            await held[-1][0].readuntil(b"\r\n\r\n")
        await fine(served, OTHER)
        assert len(served.server.server_state.connections) <= 4
        for _, writer in held:
            writer.close()


async def test_unauthenticated_connections_are_closed_first() -> None:
    async with before(keys=KEYS, limits={"connections": 2}) as (served, _):
        await fine(served, OTHER)
        [kept] = served.server.server_state.connections
        for _ in range(4):
            await raw(served)
        await until(lambda: len(served.server.server_state.connections) == 2)
        assert kept in served.server.server_state.connections
        await fine(served, OTHER)


@pytest.mark.heavy
async def test_unfinished_handshakes_hold_no_connections(
    tls: dict[str, str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections.Handshakes.__init__, "__defaults__", (4,))
    async with before(tls=tls) as (served, _):
        held = [await raw(served) for _ in range(20)]
        for reader, _ in held[:16]:
            # 60 s without a bound.
            assert await asyncio.wait_for(reader.read(), 30) == b""
        url = f"https://127.0.0.1:{served.port}/v1/chat/completions"
        trusted = ssl.create_default_context(cafile=tls["certificate"])
        async with served.session.post(url, json=CHAT, ssl=trusted) as response:
            assert response.status == 200
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize(
    ("limits", "raised", "connections"),
    [
        ((1024, 1 << 20), 4096 + 2048 + 256, 4096),
        ((1024, resource.RLIM_INFINITY), 4096 + 2048 + 256, 4096),
        ((1 << 20, 1 << 20), 1 << 20, 4096),
        ((1024, 4096), 4096, 1920),
        ((1024, 1024), 1024, 384),
    ],
)
def test_connections_leave_file_descriptors_for_replicas(
    limits: tuple[int, int], raised: int, connections: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: now.append(limits))
    spec = within_files(spec_of(["http://127.0.0.1:1"]))
    assert (spec.limits.connections, now[-1][0]) == (connections, raised)
    assert ("raise the limit (ulimit -n 6400)" in caplog.text) == (connections < 4096)


@pytest.mark.heavy
async def test_trickling_bodies_are_cut_off_without_a_trace() -> None:
    script = ReplicaScript(delay=Fixed(0.0))
    limits = {"body_s": 0.3, "in_flight": 40}
    async with before(script, keys=KEYS, limits=limits) as (served, _):
        begun = KNOWN + b"content-length: 100000\r\n\r\n{"
        held = [await raw(served, begun) for _ in range(100)]
        await fine(served, OTHER)
        told = [await answer(reader) for reader, _ in held]
        # On a slow machine the first have been cut off before the last begin.
        assert 408 in {status for status, _ in told} <= {408, 503}
        assert served.gateway.in_flight == served.gateway._room.held == 0
        for _, writer in held:
            writer.close()
