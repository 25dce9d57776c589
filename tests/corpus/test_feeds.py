"""Streams of server-sent events, in any cut, and messages of a WebSocket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.corpus.case import Refused, cases, check
from tests.corpus.sources import WIKIMEDIA, from_feed
from tests.corpus.way import check_way

from forebay.connectors.feeds.feed import Mark
from forebay.connectors.feeds.jetstream import JetstreamFeed, ReplayWindow, _time_us
from forebay.connectors.feeds.sse import SseDecoder, SseFeed
from forebay.connectors.formats import Format
from forebay.records import DeadLetter, Event

TEXT = Format("text", max_record_bytes=50)


@dataclass(frozen=True)
class Stream:
    """The bytes of a connection, and the texts of its events, each with its type and id if it has one."""

    name: str
    content: bytes
    events: list[Any]


def one(name: str, content: bytes, text: Any, type: str = "message", id: str | None = None) -> Stream:
    return Stream(name, content, [(text, type, id)])


STREAMS = (
    one("LF", b"data: a\n\n", "a"),
    one("CR LF", b"data: a\r\n\r\n", "a"),
    one("CR", b"data: a\r\r", "a"),
    one("mixed line ends", b"data: a\r\ndata: b\rdata: c\n\r\n", "a\nb\nc"),
    Stream("LF after CR is one end", b"data: a\r\ndata: b\r\r\n", [("a\nb", "message", None)]),
    Stream("two events", b"data: a\n\ndata: b\n\n", [("a", "message", None), ("b", "message", None)]),
    Stream("no empty line at the end", b"data: a\n\ndata: b\n", [("a", "message", None)]),
    Stream("no data", b"event: x\nid: 1\n\n: ping\n\nretry: 5\n\n", []),
    Stream("id without data stays", b"id: 7\n\ndata: a\n\n", [("a", "message", "7")]),
    Stream(
        "id is inherited", b"id: 7\ndata: a\n\ndata: b\n\n", [("a", "message", "7"), ("b", "message", "7")]
    ),
    Stream(
        "the same again under an inherited id", b"id: 7\ndata: a\n\ndata: a\n\n", [("a", "message", "7")] * 2
    ),
    Stream(
        "id is taken back",
        b"id: 7\ndata: a\n\nid\ndata: b\n\n",
        [("a", "message", "7"), ("b", "message", None)],
    ),
    Stream(
        "type is not inherited",
        b"event: x\ndata: a\n\ndata: b\n\n",
        [("a", "x", None), ("b", "message", None)],
    ),
    one("empty type", b"event:\ndata: a\n\n", "a"),
    one("last type counts", b"event: x\nevent: y\ndata: a\n\n", "a", "y"),
    one("id with NUL is ignored", b"id: 1\nid: 2\0\ndata: a\n\n", "a", id="1"),
    one("long id is ignored", b"id: 1\nid: " + b"2" * 16_385 + b"\ndata: a\n\n", "a", id="1"),
    one("no blank", b"data:a\n\n", "a"),
    one("two blanks", b"data:  a \n\n", " a "),
    one("a tab is data", b"data:\ta\n\n", "\ta"),
    one("no colon", b"data\n\n", ""),
    one("empty data", b"data:\ndata:\n\n", "\n"),
    one("comment", b": a\ndata: b\n:c\n\n", "b"),
    one("unknown field", b"date: 1\nData: 2\n data: 3\ndata: b\n\n", "b"),
    one("BOM", b"\xef\xbb\xbfdata: a\n\n", "a"),
    Stream("BOM of a later line", b"\n\xef\xbb\xbfdata: a\n\n", []),
    one("BOM of data", b"data: \xef\xbb\xbfa\n\n", "a"),
    one("colons", b"data: a: b:c\n\n", "a: b:c"),
    one("line ends of Unicode", "data: a\u2028b\x85c\x0bd\x0ce\n\n".encode(), "a\u2028b\x85c\x0bd\x0ce"),
    one("NUL", b"data: a\0b\n\n", "a\0b"),
    one("not UTF-8", b"data: \xff\n\n", Refused("not UTF-8: byte 1 is 0xff")),
    one("type of Latin-1", b"event: \xe9\ndata: a\n\n", "a", "\ufffd"),
    one("id of Unicode", "id: ü\u2028\ndata: a\n\n".encode(), "a", id="ü\u2028"),
    one("at the limit", b"data: " + b"x" * 50 + b"\n\n", "x" * 50),
    one("above the limit", b"data: " + b"x" * 51 + b"\n\n", Refused("the limit is 50")),
    one("far above the limit", b"data: " + b"x" * 100_000 + b"\n\n", Refused("the limit is 50")),
    one("lines above the limit", b"data: x\n" * 100_000 + b"\n", Refused("the limit is 50")),
    one("a long unknown field", b"x" * 100_000 + b"\ndata: a\n\n", "a"),
    one("wrong retry", b"retry: -5\nretry: 5.5\nretry: \xd9\xa1\ndata: a\n\n", "a"),
    one("endless retry", b"retry: " + b"9" * 1000 + b"\ndata: a\n\n", "a"),
)


def received(chunks: Iterable[bytes]) -> list[Event | DeadLetter]:
    feed, mark = (SseFeed(WIKIMEDIA, max_record_bytes=TEXT.max_record_bytes), Mark())
    decoder = SseDecoder(max_bytes=TEXT.max_record_bytes)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [from_feed(feed, feed._received(mark, event), TEXT) for event in events]


@pytest.mark.heavy
@cases(STREAMS)
@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_chunking_does_not_change_the_events(case: Stream, cut: int) -> None:
    size = max(cut, len(case.content) // 2000)
    content = case.content
    records = received(content[at : at + size] for at in range(0, len(content), size))
    assert len(records) == len(case.events), records
    for record, (expected, type, id) in zip(records, case.events, strict=True):
        sse = {"event": type, "id": id}
        check(
            record, expected if isinstance(expected, Refused) else {"text": expected, "sse": sse}, case.name
        )
        named = {"sse-event": type, "sse-id": id}
        assert record.headers == {name: value.encode() for name, value in named.items() if value}
        if not isinstance(expected, Refused):
            check_way(record, TEXT, case.name)


MESSAGES = {
    "in order": ([b'{"time_us": 1}', b'{"time_us": 2}'], 2),
    "the same again": ([b'{"time_us": 1}', b'{"time_us": 1}'], 1),
    "two of one microsecond": ([b'{"time_us": 1, "a": 1}', b'{"time_us": 1, "a": 2}'], 2),
    "backwards": ([b'{"time_us": 4000000}', b'{"time_us": 1}', b'{"time_us": 4000000}'], 2),
    "no time": ([b'{"a": 1}', b'{"a": 1}', b'{"a": 2}'], 3),
    "time of text": ([b'{"time_us": "1"}', b'{"time_us": "1"}'], 2),
    "time below 0": ([b'{"time_us": -1}'], 1),
    "time of 2**63": ([b'{"time_us": 9223372036854775808}', b'{"time_us": 1}'], 2),
    "time of 2**63 - 1": ([b'{"time_us": 9223372036854775807}'], 1),
    "time of 1e400": ([b'{"time_us": 1e400}', b'{"time_us": 5}'], 2),
    "time with a fraction": ([b'{"time_us": 1.5}'], 1),
    "true as a time": ([b'{"time_us": true}'], 1),
    "null as a time": ([b'{"time_us": null}'], 1),
    "no JSON": ([b"hello", b"", b"[]", b"null", b"\xff"], 5),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_each_message_of_a_websocket_is_one_record(name: str) -> None:
    messages, count = MESSAGES[name]
    feed, window = JetstreamFeed("wss://jetstream2.us-east.bsky.network/subscribe"), ReplayWindow.of(None)
    taken = [feed._received(window, raw, _time_us(raw)) for raw in messages]
    records = [from_feed(feed, each, Format()) for each in taken if each is not None]
    assert len(records) == count
    for record in records:
        assert record.raw in messages
        if record.raw.startswith(b"{"):
            assert isinstance(record, Event), record
        else:
            check(record, Refused(""), name)
        check_way(record, Format(), name)
    last = ReplayWindow.of(str(window.snapshot()))
    assert [feed._received(last, raw, _time_us(raw)) for raw in messages if _time_us(raw) is not None] == [
        None for raw in messages if _time_us(raw) is not None
    ]
