"""Pods that report their metrics, late, slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from forebay.deploy.controller.scrape import MAX_CHARS, read_all, read_metrics, scrape
from forebay.deploy.kubernetes.deployment import IN_FLIGHT, WANTED
from forebay.errors import DeployError
from forebay.testing.replica.server import FakeReplica

LONG_S = 1000.0
SHORT_S = 0.05


def words(told: object) -> str:
    assert isinstance(told, DeployError)
    return str(told)


def test_targets_are_read_concurrently_and_returned_in_order() -> None:
    async def check() -> None:
        asked: list[str] = []
        every = asyncio.Event()

        async def read(url: str) -> str:
            asked.append(url)
            if len(asked) == 3:
                every.set()
            await every.wait()
            return f"of {url}"

        assert await read_all("abc", read, pod_s=LONG_S, round_s=LONG_S) == ["of a", "of b", "of c"]
        assert await read_all("", read) == []

    asyncio.run(check())


async def _never(url: str) -> str:
    await asyncio.Event().wait()
    return url


def test_silent_target_does_not_delay_others() -> None:
    async def read(url: str) -> str:
        return await _never(url) if url == "b" else url

    told = asyncio.run(read_all("abc", read, pod_s=SHORT_S, round_s=LONG_S))
    assert (told[0], told[2]) == ("a", "c")
    assert words(told[1]) == "b: reading metrics timed out after 0.05 s"


def test_round_ends_in_time_with_too_many_targets() -> None:
    told = asyncio.run(read_all("abcd", _never, pod_s=LONG_S, round_s=SHORT_S, at_once=2))
    assert [words(each) for each in told] == [
        f"{url} was not read within the 0.05 s for all" for url in "abcd"
    ]


def test_error_of_one_target_is_its_own() -> None:
    async def read(url: str) -> str:
        if url == "a":
            raise DeployError("a: cannot read metrics: refused")
        return url

    told = asyncio.run(read_all("ab", read))
    assert words(told[0]) == "a: cannot read metrics: refused"
    assert told[1] == "b"


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pod(answer: Answer) -> AsyncIterator[str]:
    """URL of a server that always answers this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
    finally:
        server.close()


async def told_by(answer: Answer, pod_s: float = LONG_S) -> str | DeployError:
    async with pod(answer) as url, aiohttp.ClientSession(auto_decompress=False) as http:
        (told,) = await read_all([url], lambda url: read_metrics(http, url), pod_s=pod_s, round_s=LONG_S)
        return told


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n"], ids=["body", "head"])
def test_trickling_target_is_abandoned_at_its_timeout(head: bytes) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(SHORT_S / 10)

    assert "reading metrics timed out after" in words(asyncio.run(told_by(drip, pod_s=SHORT_S * 4)))


def answers(text: bytes, header: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n" + text)
        await writer.drain()

    return answer


@pytest.mark.heavy
def test_only_our_lines_of_a_long_text_are_kept() -> None:
    own = [f'{WANTED}{{host="a"}} 3.0', f"{IN_FLIGHT} 2.0"]
    text = "\n".join(["# HELP x", "flink_jobmanager_Status 1", *own, "jvm 4", ""]).encode()
    assert asyncio.run(told_by(answers(text))) == "\n".join(own)
    huge = b"x\n" * (MAX_CHARS // 2 + 1)
    assert "more than 16 MiB of metrics" in words(asyncio.run(told_by(answers(huge))))
    long = b"x" * 1_000_000 + b"\n"
    assert asyncio.run(told_by(answers(long + text + long))) == "\n".join(own)
    wide = WANTED.encode() + long
    assert "a line of more than 64 KiB" in words(asyncio.run(told_by(answers(wide))))


@pytest.mark.parametrize("encoding", ["gzip", "Identity"])
def test_compressed_metrics_are_an_error_that_names_the_encoding(encoding: str) -> None:
    own = f"{WANTED} 3.0"
    told = asyncio.run(told_by(answers(own.encode(), f"Content-Encoding: {encoding}\r\n".encode())))
    if encoding == "gzip":
        assert "expected no Content-Encoding, found 'gzip'" in words(told)
    else:
        assert told == own


def test_metrics_are_read_over_http() -> None:
    async def check() -> None:
        async with FakeReplica() as replica:
            url = f"{replica.url}/metrics"
            told = await asyncio.to_thread(scrape, [url, "http://127.0.0.1:9/metrics", f"{replica.url}/none"])
            # vLLM's metrics are not ours.
            assert told[0] == ""
            assert "cannot read metrics: " in words(told[1])
            assert "404" in words(told[2])

    asyncio.run(check())


async def test_redirects_are_not_followed() -> None:
    async def elsewhere(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /fine\r\nContent-Length: 0\r\n\r\n")

    assert "found 302" in words(await told_by(elsewhere))


@pytest.mark.parametrize("wrong", ["127.0.0.1:9", "host:port", "["], ids=["away", "port", "form"])
async def test_a_password_in_an_address_is_not_shown(wrong: str) -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(DeployError, match="cannot read metrics") as caught:
            await read_metrics(http, f"http://me:geheim@{wrong}/metrics?token=geheim#geheim")
    assert "geheim" not in str(caught.value)
    assert f"http://{wrong}/metrics: cannot" in str(caught.value)
