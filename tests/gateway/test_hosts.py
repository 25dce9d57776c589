"""A page whose name leads to the gateway reads nothing there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.cors import Hosts

from .conftest import CHAT, before

CALL = "/v1/chat/completions"
PATHS = ("/health", "/metrics", "/openapi.json", "/v1/models")


@pytest.mark.parametrize(
    ("host", "address", "names", "allowed"),
    [
        (b"page.example", "127.0.0.1", (), False),
        (b"page.example:8080", "::1", (), False),
        (b"page.example", "::ffff:127.0.0.1", (), False),
        (b"page.example", "10.0.0.1", (), True),
        (b"page.example", "10.0.0.1", ("a.example",), False),
        (b"A.example.:80", "127.0.0.1", ("a.Example",), True),
        (b"b.a.example", "127.0.0.1", ("a.example",), False),
        (b"localhost:8080", "127.0.0.1", (), True),
        (b"app.LOCALHOST", "127.0.0.1", (), True),
        (b"localhost.page.example", "127.0.0.1", (), False),
        (b"notlocalhost", "127.0.0.1", (), False),
        (b"127.0.0.1:80", "127.0.0.1", (), True),
        (b"[::1]:80", "::1", (), True),
        (b"10.0.0.1", "10.0.0.1", ("a.example",), True),
        (b"127.0.0.1.page.example", "127.0.0.1", (), False),
        (b"", "127.0.0.1", (), False),
        (b"page.example", "", (), False),
        (None, "127.0.0.1", (), True),
    ],
)
def test_allowed_host_names(host: bytes | None, address: str, names: tuple[str, ...], allowed: bool) -> None:
    assert Hosts(names).allow(host, address) is allowed


@given(host=st.binary(max_size=60))
def test_any_bytes_are_an_allowed_or_rejected_host(host: bytes) -> None:
    Hosts(("a.example",)).allow(host, "127.0.0.1")


async def test_dns_rebinding_page_reads_nothing() -> None:
    page = {"host": "page.example:8080"}
    async with before() as (served, [replica]):
        for path in PATHS:
            async with served.session.get(served.url + path, headers=page) as response:
                assert (path, response.status) == (path, 403)
                assert (await response.json())["error"]["code"] == "host_refused"
        async with served.session.post(served.url + CALL, json=CHAT, headers=page) as response:
            assert response.status == 403
        assert not replica.report().calls


@pytest.mark.heavy
async def test_configured_host_names_and_keys_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_KEY", "sesame")
    host = {"host": "api.example", "authorization": "Bearer sesame"}
    secret = {"env": "CLIENT_KEY"}
    closed: dict[str, Any] = {"keys": [{"name": "a", "key": secret}]}
    for settings, allowed in (({"hosts": ["api.example"]}, PATHS), (closed, ("/v1/models",))):
        async with before(**settings) as (served, _):
            for path in PATHS:
                async with served.session.get(served.url + path, headers=host) as response:
                    assert (path, response.status == 200) == (path, path in allowed)
