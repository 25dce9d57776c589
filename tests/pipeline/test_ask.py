"""Answers for lines without Flink: parsing, order and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.formats import dead_letter_json
from forebay.pipeline.ask import WAITING_PER_SLOT, Lines, answers, events
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage


def read(data: bytes, kind: str = "auto", max_bytes: int = 100) -> list[Event | DeadLetter]:
    lines, found = Lines(BytesIO(data), kind, max_bytes), []  # type: ignore[arg-type]
    while (record := lines.next()) is not None:
        found.append(record)
    return found


def shown(record: Event | DeadLetter) -> object:
    return dict(record.fields) if isinstance(record, Event) else record.cause


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a\nb", [{"text": "a"}, {"text": "b"}]),
        (b'{"a": 1}\r\n\n  \n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        (b"\xef\xbb\xbf" + b'{"a": 1}\n', [{"a": 1}]),
        (b'{"a": 1}\nnope\n', [{"a": 1}, "malformed_record"]),
        (b'a\n{"a": 1}\n', [{"text": "a"}, {"text": '{"a": 1}'}]),
        (b"\xff\n", ["malformed_record"]),
        (b"", []),
    ],
)
def test_first_line_decides_the_kind(data: bytes, found: list[object]) -> None:
    assert [shown(record) for record in read(data)] == found


def test_given_kind_is_not_guessed() -> None:
    assert shown(read(b'{"a": 1}\n', "text")[0]) == {"text": '{"a": 1}'}
    assert shown(read(b"a\n", "jsonl")[0]) == "malformed_record"


def test_too_long_line_is_cut_and_the_next_is_read() -> None:
    long, after = read(b"x" * 1_000_000 + b"\nafter\n")
    assert isinstance(long, DeadLetter)
    assert (len(long.raw), long.cut_bytes, long.position) == (100, 999_900, "line 1")
    assert (shown(after), after.position) == ({"text": "after"}, "line 2")
    assert [shown(record) for record in read(b"x" * 100 + b"\r\n" + b"x" * 101)] == [
        {"text": "x" * 100},
        "malformed_record",
    ]


@pytest.mark.parametrize("size", [101, 102, 103, 65_638, 65_639])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_cut_bytes_are_counted(size: int, end: bytes) -> None:
    (long,) = read(b"x" * size + end)
    assert isinstance(long, DeadLetter)
    assert (long.raw, long.cut_bytes) == (b"x" * 100, size - 100)
    assert f"the line has {size} bytes" in long.detail
    assert orjson.loads(dead_letter_json(long))["cut_bytes"] == {"input": size - 100}


@pytest.mark.parametrize("kind", ["auto", "text", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
def test_lines_of_another_encoding_are_dead_letters(kind: str, encoding: str) -> None:
    for record in read('{"text": "café"}\n{"text": "café"}'.encode(encoding), kind):
        assert isinstance(record, DeadLetter)
        assert f"if the input is {encoding}, convert it first: iconv -f {encoding} -t utf-8" in record.detail


@given(st.binary(max_size=300))
def test_lines_survive_any_bytes(data: bytes) -> None:
    assert len(read(data, max_bytes=20)) <= data.count(b"\n") + 1


class Answering:
    """Answers on command, and records its requests."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[None]] = {}
        self.cancelled = 0

    async def answer(self, item: KeyedEvent) -> Result:
        gate = self.asked[item.id] = asyncio.get_running_loop().create_future()
        try:
            await gate
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Result(item.id, "", item.event.fields, item.id, Usage(), 1, item.read_ms, 0.0, 0.0)


async def records(count: int) -> AsyncIterator[Event | DeadLetter]:
    for n in range(count):
        yield Event(b"x", {}, position=f"{n}")


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("ordered", "order"), [(True, ["0", "1", "2"]), (False, ["2", "1", "0"])])
async def test_answers_are_ordered_or_as_completed(ordered: bool, order: list[str]) -> None:
    handler, left = Answering(), []

    async def collect() -> None:
        async for answer in answers(handler, records(3), capacity=3, ordered=ordered, now_ms=lambda: 0):
            left.append(answer.id)

    task = asyncio.create_task(collect())
    await settle()
    for name in ("2", "1", "0"):
        handler.asked[name].set_result(None)
        await settle()
    await task
    assert left == order


async def test_requests_and_held_answers_are_bounded() -> None:
    handler = Answering()
    task = asyncio.create_task(anext(answers(handler, records(100), capacity=2, ordered=True)))
    await settle()
    assert len(handler.asked) == 2
    for n in range(1, 50):
        if f"{n}" in handler.asked:
            handler.asked[f"{n}"].set_result(None)
            await settle()
    assert len(handler.asked) == 2 * WAITING_PER_SLOT
    handler.asked["0"].set_result(None)
    assert (await task).id == "0"


async def test_dead_letter_keeps_its_place_in_the_order() -> None:
    async def mixed() -> AsyncIterator[Event | DeadLetter]:
        yield DeadLetter(b"", "malformed_record", "no")

    found = [answer async for answer in answers(Answering(), mixed(), capacity=1, ordered=True)]
    assert [type(answer) for answer in found] == [DeadLetter]


async def test_stopping_cancels_requests_in_flight() -> None:
    handler = Answering()
    async with aclosing(answers(handler, records(5), capacity=5, ordered=False)) as answered:
        waiting = asyncio.ensure_future(anext(answered))
        await settle()
        handler.asked["3"].set_result(None)
        assert (await waiting).id == "3"
    assert handler.cancelled == 4


async def test_input_error_is_raised_after_the_answers() -> None:
    async def failing() -> AsyncIterator[Event | DeadLetter]:
        yield DeadLetter(b"", "malformed_record", "no")
        raise OSError("gone")

    answered = answers(Answering(), failing(), capacity=1, ordered=True)
    assert isinstance(await anext(answered), DeadLetter)
    with pytest.raises(OSError, match="gone"):
        await anext(answered)


async def test_reading_does_not_block_the_loop() -> None:
    found = [shown(record) async for record in events(Lines(BytesIO(b"a\nb\n")))]
    assert found == [{"text": "a"}, {"text": "b"}]
