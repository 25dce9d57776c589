"""Large bodies are read elsewhere: as small ones are, and at nobody else's cost."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psutil
import pytest
from tests.harness.clock import run_virtual

from forebay.gateway.asked import Asked, read_asked
from forebay.gateway.body_reader import LARGE_BYTES, MAX_PAUSE_S, BodyReader, pause_after
from forebay.gateway.refusal import Refusal

from .conftest import CHAT, before, until
from .test_bad_input import HEAD, fine, raw

pytestmark = pytest.mark.heavy

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


async def test_large_body_is_parsed_like_a_small_one() -> None:
    body = orjson.dumps(LONG)
    async with reading() as reader:
        assert await reader.read("a", PATH, body, max_depth=64) == read_asked(PATH, body, max_depth=64)
        for wrong in (body[:-1], body[:-1] + b',"priority":1}', b"[" * 3000 + b"]" * 3000):
            with pytest.raises(Refusal) as there:
                await reader.read("a", PATH, wrong, max_depth=64, fields=("x",))
            with pytest.raises(Refusal) as here:
                read_asked(PATH, wrong, max_depth=64, fields=("x",))
            assert there.value.body() == here.value.body()


async def test_parser_process_has_no_secrets_and_ends_with_the_gateway() -> None:
    async with reading({"PATH": os.environ["PATH"], "KEPT": "1"}) as reader:
        await reader.read("a", PATH, orjson.dumps(LONG), max_depth=64)
        process = process_of(reader)
        assert set(process.environ()) <= {"PATH", "KEPT", "LC_CTYPE"}
    assert not process.is_running()


async def test_killed_parser_process_is_replaced() -> None:
    body = orjson.dumps(LONG)
    async with reading() as reader:
        await reader.read("a", PATH, body, max_depth=64)
        process_of(reader).send_signal(signal.SIGKILL)
        with pytest.raises(Refusal, match="internal error"):
            await reader.read("a", PATH, body, max_depth=64)
        assert (await reader.read("a", PATH, body, max_depth=64)).answers == 2


async def test_abandoned_body_does_not_affect_the_next() -> None:
    other = orjson.dumps(LONG | {"user": "other"})
    async with reading() as reader:
        await reader.read("a", PATH, orjson.dumps(LONG), max_depth=64)
        given_up = asyncio.ensure_future(reader.read("a", PATH, orjson.dumps(LONG), max_depth=64))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await reader.read("b", PATH, other, max_depth=64)).session == "other"
        await until(lambda: reader._lines == {})


async def test_body_abandoned_in_the_queue_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_sources_take_turns_with_large_bodies() -> None:
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


def test_pause_is_proportional_to_the_values_of_a_body() -> None:
    assert pause_after(orjson.dumps(LONG)) < 0.001
    assert pause_after(orjson.dumps({"input": [1] * 100_000})) == pytest.approx(0.6, rel=0.01)
    assert pause_after(b"," * 50_000_000) == MAX_PAUSE_S


async def test_body_is_not_parsed_again_for_a_prefill() -> None:
    few, many = (
        orjson.dumps(CHAT | {"metadata": {"texts": ["long" * 8] * count}}) for count in (99_000, 101_000)
    )
    assert read_asked(PATH, many, max_depth=64).transferable
    async with reading() as reader:
        assert (await reader.read("a", PATH, few, max_depth=64)).transferable
        assert not (await reader.read("a", PATH, many, max_depth=64)).transferable


TOOK_S = 0.02
MANY = orjson.dumps(CHAT | {"metadata": {"numbers": [1] * 1_000_000}})


def ended_at(*order: tuple[str, bytes, float], drains_s: float = math.inf) -> list[tuple[str, float]]:
    """When the body of each source, sent at this time, was read or refused (with the seconds to wait)."""
    asked = read_asked(PATH, orjson.dumps(CHAT), max_depth=64)
    ended: list[tuple[str, float]] = []

    async def there(path: str, body: bytes, options: Mapping[str, Any]) -> Asked:
        await asyncio.sleep(TOOK_S)
        return asked

    async def main() -> None:
        loop, reader = asyncio.get_running_loop(), BodyReader()
        reader._read_there = there  # type: ignore[method-assign]
        begin_s = loop.time()
        if drains_s < math.inf:
            loop.call_later(drains_s, setattr, reader, "draining", True)

        async def read(source: str, body: bytes, at_s: float) -> None:
            await asyncio.sleep(at_s)
            try:
                await reader.read(source, PATH, body, max_depth=64)
            except Refusal as refusal:
                source = f"{source} {refusal.status} {refusal.retry_after_s:g}"
            ended.append((source, round(loop.time() - begin_s, 6)))

        await asyncio.gather(*(read(*each) for each in order))
        await reader.close()

    run_virtual(main())
    return ended


SMALL = orjson.dumps(CHAT)


def test_pause_delays_no_other_source() -> None:
    found = ended_at(("b", SMALL, 0.0), ("a", MANY, 0.0), ("a", MANY, 0.0), ("b", MANY, 1.0))
    assert found == [("b", 0.0), ("a", 0.02), ("b", 1.02), ("a", pytest.approx(6.04, abs=0.01))]


def test_single_source_does_not_pause() -> None:
    assert ended_at(*[("a", MANY, 0.0)] * 3) == [("a", 0.02), ("a", 0.04), ("a", 0.06)]
    assert ended_at(("b", SMALL, 0.0), *[("a", MANY, 6.0)] * 2)[1:] == [("a", 6.02), ("a", 6.04)]


def test_too_long_line_is_rejected() -> None:
    found = ended_at(("b", SMALL, 0.0), *[("a", MANY, 0.0)] * 6)
    assert [source for source, _ in found].count("a 429 13") == 4


def test_draining_ends_all_pauses() -> None:
    found = ended_at(("b", SMALL, 0.0), *[("a", MANY, at_s) for at_s in (0.0, 0.0, 3.0)], drains_s=1.0)
    times = [at_s for _, at_s in found[1:]]
    assert times == [pytest.approx(at_s, abs=0.01) for at_s in (0.02, 6.04, 6.06)]


KINDS = {
    "lists": b"[],",
    "objects": b"{},",
    "lists in lists": b"[[]],",
    "numbers": b"1,",
    "texts": b'"a",',
}


@pytest.mark.parametrize("kind", KINDS)
async def test_slow_to_parse_bodies_delay_no_other_request(kind: str) -> None:
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
