"""Large bodies are read elsewhere: as small ones are, and at nobody else's cost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import psutil
import pytest
from tests.harness.clock import run_virtual

from forebay.gateway.asked import Asked, read_asked
from forebay.gateway.body_reader import LARGE_BYTES, MAX_REST_S, BodyReader, rest_after
from forebay.gateway.refusal import Refusal

from .conftest import CHAT, before, until
from .test_bad_input import HEAD, fine, raw

PATH = "/v1/chat/completions"
LONG = CHAT | {"messages": [{"role": "user", "content": "wörds " * LARGE_BYTES}], "n": 2, "user": "u"}


@asynccontextmanager
async def reading(environment: dict[str, str] | None = None) -> AsyncIterator[BodyReader]:
    reader = BodyReader(environment)
    try:
        yield reader
    finally:
        await reader.close()


def process_of(reader: BodyReader) -> psutil.Process:
    assert reader._process is not None
    return psutil.Process(reader._process.pid)


async def test_a_large_body_is_read_as_a_small_one() -> None:
    body = orjson.dumps(LONG)
    async with reading() as reader:
        assert await reader.read("a", PATH, body, max_depth=64) == read_asked(PATH, body, max_depth=64)
        for wrong in (body[:-1], body[:-1] + b',"priority":1}', b"[" * 3000 + b"]" * 3000):
            with pytest.raises(Refusal) as there:
                await reader.read("a", PATH, wrong, max_depth=64, fields=("x",))
            with pytest.raises(Refusal) as here:
                read_asked(PATH, wrong, max_depth=64, fields=("x",))
            assert there.value.body() == here.value.body()


async def test_the_process_gets_no_secrets_and_ends_with_the_gateway() -> None:
    async with reading({"PATH": os.environ["PATH"], "KEPT": "1"}) as reader:
        await reader.read("a", PATH, orjson.dumps(LONG), max_depth=64)
        process = process_of(reader)
        assert set(process.environ()) <= {"PATH", "KEPT", "LC_CTYPE"}
    assert not process.is_running()


async def test_a_process_that_was_killed_is_replaced() -> None:
    body = orjson.dumps(LONG)
    async with reading() as reader:
        await reader.read("a", PATH, body, max_depth=64)
        process_of(reader).send_signal(signal.SIGKILL)
        with pytest.raises(Refusal, match="internal error"):
            await reader.read("a", PATH, body, max_depth=64)
        assert (await reader.read("a", PATH, body, max_depth=64)).answers == 2


async def test_a_body_that_was_given_up_leaves_nothing_to_the_next() -> None:
    other = orjson.dumps(LONG | {"user": "other"})
    async with reading() as reader:
        await reader.read("a", PATH, orjson.dumps(LONG), max_depth=64)
        given_up = asyncio.ensure_future(reader.read("a", PATH, orjson.dumps(LONG), max_depth=64))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await reader.read("b", PATH, other, max_depth=64)).session == "other"
        await until(lambda: reader._lines == {})


async def test_a_body_that_is_given_up_in_line_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    async with reading() as reader:
        there = reader._read_there
        monkeypatch.setattr(
            reader, "_read_there", lambda path, body, rest: read.append(body) or there(path, body, rest)
        )
        bodies = [orjson.dumps(LONG | {"user": name}) for name in ("first", "second", "third")]
        first, second, third = (
            asyncio.ensure_future(reader.read("a", PATH, body, max_depth=64)) for body in bodies
        )
        await asyncio.sleep(0)
        second.cancel()
        assert [(await first).session, (await third).session] == ["first", "third"]
        assert read == [bodies[0], bodies[2]]


async def test_a_source_waits_for_one_body_of_each_other() -> None:
    body, order = orjson.dumps(LONG), []
    async with reading() as reader:

        async def read(source: str) -> None:
            await reader.read(source, PATH, body, max_depth=64)
            order.append(source)

        many = [asyncio.ensure_future(read("many")) for _ in range(6)]
        await asyncio.sleep(0)
        await read("one")
        assert order.index("one") <= 2
        await asyncio.gather(*many)


def test_only_bodies_that_are_slow_to_read_need_a_pause() -> None:
    assert rest_after(0.004, 2_000_000) == 0
    assert rest_after(0.014, 2_000_000) == pytest.approx(0.99)
    assert rest_after(3.0, 2_000_000) == MAX_REST_S


async def test_a_body_that_is_slow_to_read_is_not_read_again_for_a_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = orjson.dumps(CHAT | {"metadata": {"texts": ["a"] * LARGE_BYTES}})
    assert read_asked(PATH, body, max_depth=64).transferable
    monkeypatch.setattr("forebay.gateway.body_reader.USUAL_S", -1.0)
    async with reading() as reader:
        assert not (await reader.read("a", PATH, body, max_depth=64)).transferable


def test_pause_holds_up_no_other_source() -> None:
    body, took_s, rest_s = orjson.dumps(LONG), 0.02, 0.5
    asked = read_asked(PATH, body, max_depth=64)
    ended: list[tuple[str, float]] = []

    async def there(path: str, body: bytes, options: Mapping[str, Any]) -> tuple[Asked | Refusal, float]:
        await asyncio.sleep(took_s)
        return asked if len(ended) != 2 else Refusal(400, "invalid_json", "no"), rest_s

    async def main() -> None:
        reader = BodyReader()
        reader._read_there = there  # type: ignore[method-assign]

        async def read(source: str) -> None:
            with suppress(Refusal):
                await reader.read(source, PATH, body, max_depth=64)
            ended.append((source, asyncio.get_running_loop().time()))

        await asyncio.gather(read("a"), read("a"), read("a"), read("b"))
        await reader.close()

    run_virtual(main())
    begin_s = ended[0][1] - took_s
    assert [(source, round(at_s - begin_s, 6)) for source, at_s in ended] == [
        ("a", 0.02),
        ("b", 0.04),
        ("a", 0.54),
        ("a", 1.06),
    ]


KINDS = {
    "lists": b"[],",
    "objects": b"{},",
    "lists in lists": b"[[]],",
    "numbers": b"1,",
    "texts": b'"a",',
}


@pytest.mark.parametrize("kind", KINDS)
async def test_bodies_that_are_slow_to_read_hold_up_nobody(kind: str) -> None:
    """60 of 2 MB, complete at once: others are answered before all of them are read."""
    item = KINDS[kind]
    begin = orjson.dumps(CHAT)[:-1] + b',"tools":['
    body = begin + item * ((2_000_000 - len(begin)) // len(item)) + b"1]}"
    async with before() as (served, _):
        await fine(served)
        head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
        clients: list[Any] = [await raw(served, head, body[:-1]) for _ in range(60)]
        await until(lambda: served.gateway._room.held == 60 * (len(body) - 1))
        ended = [asyncio.ensure_future(one.read(1)) for one, _ in clients]
        for _, writer in clients:
            writer.write(body[-1:])
        for _ in range(20):
            await fine(served)
        # All of them are of one client, and so in one line.
        assert sum(one.done() for one in ended) < 60
        for one, (_, writer) in zip(ended, clients, strict=True):
            one.cancel()
            writer.close()
