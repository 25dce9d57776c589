"""One URL per process behind a name."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from forebay.clients.ray.rest import each_address
from forebay.errors import DeployError


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("addresses", "urls"),
    [
        (("10.0.0.2", "10.0.0.1", "10.0.0.2"), ("http://10.0.0.1:8265/a?b=c", "http://10.0.0.2:8265/a?b=c")),
        (("10.0.0.1",), ("http://head:8265/a?b=c",)),
        (("::1", "127.0.0.1"), ("http://head:8265/a?b=c",)),
        (("fd00::2", "fd00::1"), ("http://[fd00::1]:8265/a?b=c", "http://[fd00::2]:8265/a?b=c")),
    ],
    ids=["two", "one", "one of each kind", "IPv6"],
)
async def test_each_address_gives_a_url(
    addresses: tuple[str, ...], urls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, *addresses)
    assert await each_address("http://head:8265/a?b=c") == urls


@pytest.mark.parametrize("url", ["https://head:8265", "http://head:port", "http://["])
async def test_another_stays_as_it_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "10.0.0.1", "10.0.0.2")
    assert await each_address(url) == (url,)


async def test_a_name_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(DeployError, match="the name head cannot be resolved: Name or service not known"):
        await each_address("http://me:geheim@head:8265")
