from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.connectors.feeds.feed import Backoff
from forebay.connectors.feeds.sse import MAX_ID_BYTES, MAX_RETRY_S, SseDecoder, _with_retry


def decode(*chunks: bytes, max_bytes: int = 1000) -> list[tuple[bytes, str | None, bool]]:
    decoder = SseDecoder(max_bytes=max_bytes)
    return [(event.data, event.id, event.own_id) for chunk in chunks for event in decoder.feed(chunk)]


LINES = st.sampled_from(
    [b"data: a", b"data:", b"data: \xff{}", b"id: 1", b"id", b": c", b"retry: 5", b"", b"x"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 200)))
def test_chunking_does_not_change_the_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    text = b"".join(line + end for line, end in lines)
    points = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(points)]
    assert decode(*pieces) == decode(text)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        (b"event: x\nevent\ndata: a\n\n", ["message"]),
        # A block without data is not an event, and its type ends with it.
        (b"event: x\n\ndata: a\n\n", ["message"]),
        (b"event: " + b"x" * MAX_ID_BYTES + b"\ndata: a\n\n", ["x" * MAX_ID_BYTES]),
        (b"event: " + b"x" * (MAX_ID_BYTES + 1) + b"\ndata: a\n\n", [None]),
        (b"event: a\0b\ndata: a\n\n", ["a\0b"]),
    ],
)
def test_the_type_of_an_event(text: bytes, types: list[str | None]) -> None:
    assert [event.type for event in SseDecoder(max_bytes=100_000).feed(text)] == types


@pytest.mark.parametrize(
    ("text", "retry_s"),
    [
        (b"retry: 2500\n", 2.5),
        (b"retry:0\n", 0.0),
        (b"retry: 0000000000002500\n", 2.5),
        (b"retry: " + b"9" * 5000 + b"\n", MAX_RETRY_S),
        (b"retry: 5 \n", None),
        (b"retry: -5\n", None),
        (b"retry: 1.5\n", None),
        (b"retry: \xd9\xa1\n", None),
        (b"retry\n", None),
        (b"retry: 5", None),
    ],
)
def test_retry_delay_must_be_digits(text: bytes, retry_s: float | None) -> None:
    decoder = SseDecoder(max_bytes=100_000)
    assert list(decoder.feed(text)) == []
    assert decoder.retry_s == retry_s


def test_block_without_data_changes_the_last_id() -> None:
    decoder = SseDecoder(last_id="1")
    assert list(decoder.feed(b"id: 2\n")) == []
    assert decoder.last_id == "1"
    assert list(decoder.feed(b"\n")) == []
    assert decoder.last_id == "2"


@given(st.binary(max_size=300))
def test_any_bytes_are_accepted(text: bytes) -> None:
    decode(text)


@given(st.lists(st.binary(max_size=40_000).filter(lambda line: not set(line) & set(b"\r\n")), min_size=1))
@example([b"x" * 40_000, b"y" * 40_000])
def test_the_missing_bytes_of_an_event_are_counted(lines: list[bytes]) -> None:
    (event, after) = SseDecoder(max_bytes=100).feed(
        b"".join(b"data: " + line + b"\n" for line in lines) + b"\ndata: y\n\n"
    )
    assert event.data == b"\n".join(lines)[:101]
    assert len(event.data) + event.cut_bytes == len(b"\n".join(lines))
    assert after.cut_bytes == 0


def test_buffered_part_of_an_endless_line_is_bounded() -> None:
    decoder = SseDecoder(max_bytes=100)
    for _ in range(1000):
        assert list(decoder.feed(b"y" * 1000)) == []
    assert len(decoder._line) < MAX_ID_BYTES + 100


def test_id_is_kept_over_connections_until_reset() -> None:
    decoder = SseDecoder(last_id="7")
    events = [*decoder.feed(b"data: a\n\n"), *decoder.feed(b"id\ndata: b\n\n")]
    assert [(event.id, event.own_id) for event in events] == [("7", False), ("", True)]


def test_retry_delay_of_the_server() -> None:
    assert _with_retry(Backoff(0.5, 30), 2.5) == Backoff(5.0, 30)
    assert _with_retry(Backoff(0.5, 30), 60.0) == Backoff(120.0, 120.0)
    assert _with_retry(Backoff(0.5, 30), None) == Backoff(0.5, 30)
