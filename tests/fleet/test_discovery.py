from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine import Deadline
from forebay.errors import SettingError
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import (
    MAX_BYTES,
    MAX_REPLICAS,
    DnsReplicas,
    FileReplicas,
    FixedReplicas,
    ScaledReplicas,
    ScaledReplicaSet,
    checked,
    read_listing,
    read_replicas,
    write_listing,
)
from forebay.testing.script import Fixed

TWO = ("http://a:8000", "http://b:8000")


async def test_fixed_list_is_read_once_and_deduplicated() -> None:
    replicas = FixedReplicas(("http://a:8000/v1/", "http://b:8000", "http://a:8000"))
    assert await replicas.urls() == TWO
    assert [urls async for urls in replicas.updates()] == [TWO]


@pytest.mark.parametrize("urls", [(), ("ftp://a",), ("http://u:secret@a:1",), (1,), ("",)])
def test_invalid_list_is_rejected_without_showing_secrets(urls: tuple[Any, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        FixedReplicas(urls)
    assert "secret" not in str(caught.value)


def test_list_length_is_bounded() -> None:
    urls = [f"http://r:{port}" for port in range(1, MAX_REPLICAS + 2)]
    assert len(checked(urls[:-1], where="x")) == MAX_REPLICAS
    with pytest.raises(SettingError, match="more than 1000 replicas"):
        checked(urls, where="x")


@pytest.mark.parametrize(
    "text",
    [
        "http://a:8000\nhttp://b:8000\n",
        "\ufeff# ours\n  http://a:8000  # first\n\nhttp://b:8000/v1",
        "- http://a:8000\n- 'http://b:8000'\n",
        '["http://a:8000", "http://b:8000"]',
    ],
)
async def test_list_file_may_be_lines_yaml_or_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "replicas"
    file.write_text(text, encoding="utf-8")
    assert await FileReplicas(str(file)).urls() == TWO


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "holds no replica"),
        (b"# none\n", "holds no replica"),
        (b"[1]", "expected URLs, found int"),
        (b'["http://a:1"', "not a JSON list"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a: b\n", "the engine's URL"),
        (b"http://a:1\n" * (MAX_BYTES // 10), "larger than"),
    ],
)
def test_broken_list_file_is_one_error_with_its_cause(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "replicas"
    file.write_bytes(data)
    with pytest.raises(SettingError, match=says) as caught:
        read_replicas(file)
    assert str(file) in str(caught.value)


def test_missing_list_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        read_replicas(tmp_path / "none")


@given(st.binary(max_size=300))
def test_any_bytes_parse_as_a_list_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz"
    file.write_bytes(data)
    with contextlib.suppress(SettingError):
        assert read_replicas(file)


async def test_every_address_of_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        asked.append((host, port))
        addresses = ["10.0.0.2", "10.0.0.1", "10.0.0.2"]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]
        return [*found, (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", port, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    urls = await DnsReplicas("http://vllm.svc:8000/v1").urls()
    assert urls == ("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000")
    assert asked == [("vllm.svc", 8000)]


async def test_unknown_host_name_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(SettingError, match=r"the name vllm\.svc cannot be resolved: Name or service"):
        await DnsReplicas("http://vllm.svc:8000").urls()


def test_https_needs_a_host_name_not_an_address() -> None:
    with pytest.raises(SettingError, match="expected http://NAME:PORT"):
        DnsReplicas("https://vllm.svc")


def test_written_list_is_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    for listing in (
        ScaledReplicaSet(()),
        ScaledReplicaSet(("http://127.0.0.1:8100", "http://127.0.0.1:8101"), 7, 3),
    ):
        write_listing(path, listing)
        found = read_listing(path)
        assert (found, found.version, found.wanted) == (listing, listing.version, listing.wanted)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b'{"replicas": 1, "version": 1, "wanted": 1}',
        b'{"replicas": ["nonsense"], "version": 1, "wanted": 1}',
        b'{"replicas": [1], "version": 1, "wanted": 1}',
        b'{"replicas": [], "version": "1", "wanted": 1}',
        b" " * (1 << 20),
    ],
)  # fmt: skip
def test_invalid_document_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "replicas.json").write_bytes(content)
    with pytest.raises(SettingError):
        read_listing(tmp_path / "replicas.json")


@pytest.mark.heavy
async def test_requests_wait_for_a_replica_and_end_with_a_leaving_one(
    fleet_of: Any, ask: Any, wait_for: Any, tmp_path: Path
) -> None:
    path = tmp_path / "replicas.json"
    write_listing(path, ScaledReplicaSet(()))
    async with fleet_of(2) as fakes:
        first, second = (replica.url for replica in fakes.replicas)
        engine = type(fakes.engine)(
            FleetConfig(ScaledReplicas(str(path), every_s=0.01), model="m", check_s=0.05, scaled=True)
        )
        client = engine.client
        try:
            deadline = Deadline(60.0)
            clock = asyncio.get_running_loop()
            deadline.wait(clock.time(), counts=True)
            held = asyncio.ensure_future(engine.complete(ask(1), timeout_s=60.0, deadline=deadline))
            await wait_for(lambda: client.waiting == 1)
            assert deadline.left_s(clock.time() + 3600) > 0, "with nothing to send it to, no time counts"
            write_listing(path, ScaledReplicaSet((first, second), 1, 2))
            await wait_for(lambda: client.usable == 2)
            assert (await held).text
            assert (client.listing, client.wanted) == (1, 2)
            fakes.change(0, delay=Fixed(0.3))
            fakes.change(1, delay=Fixed(0.3))
            both = [asyncio.ensure_future(engine.complete(ask(n), timeout_s=60.0)) for n in range(2, 6)]
            await wait_for(lambda: min(client.at_replicas().values()) > 0)
            write_listing(path, ScaledReplicaSet((second,), 2, 1))
            await wait_for(lambda: client.listing == 2)
            assert client.at_replicas()[first] > 0, "it is listed until its last request has ended"
            assert all(found.text for found in await asyncio.gather(*both))
            await wait_for(lambda: first not in client.at_replicas())
            write_listing(path, ScaledReplicaSet((), 3, 0))
            await wait_for(lambda: client.listing == 3)
            assert client.at_replicas() == {}
        finally:
            await engine.close()
