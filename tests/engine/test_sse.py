import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.failures import Quoter
from forebay.engine.sse import SseParser
from forebay.errors import ProtocolViolation


def parser_of(max_event_bytes: int = 1 << 20) -> SseParser:
    return SseParser(replica="http://r", quote=Quoter("sk-key"), max_event_bytes=max_event_bytes)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# No line ends in a payload; JSON has none.
payloads = st.lists(
    st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=8
)


@given(payloads, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_and_any_line_end_give_the_same_events(
    events: list[bytes], places: list[int], end: bytes
) -> None:
    pieces = ((b": ping", b"data: " + event, b"data: 2", b"") for event in events)
    stream = b"".join(line + end for lines in pieces for line in lines) + b"\n"
    parser = parser_of()
    found = [event for chunk in cut(stream, places) for event in parser.feed(chunk)]
    parser.end()
    assert found == [event + b"\n2" for event in events]


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_arbitrary_bytes_give_events_or_a_protocol_violation(chunks: list[bytes]) -> None:
    parser = parser_of(100)
    try:
        for chunk in chunks:
            assert all(len(event) <= 100 for event in parser.feed(chunk))
        parser.end()
    except ProtocolViolation as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 500


def test_data_lines_of_one_event_are_joined_and_other_fields_skipped() -> None:
    stream = b"\xef\xbb\xbfevent: message\nid: 7\nretry: 10\ndata: a\ndata:b\ndata\n\n"
    assert parser_of().feed(stream) == [b"a\nb\n"]


def test_an_event_without_its_blank_line_is_not_given() -> None:
    parser = parser_of()
    assert parser.feed(b"data: a\n") == []
    parser.end()


@pytest.mark.parametrize("garbage", [b"<html>\n", b"\x00\x01\x02\n", b'{"error": 1}\n'])
def test_a_line_that_is_no_field_is_a_violation(garbage: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not an event stream"):
        parser_of().feed(garbage)


def test_an_unfinished_line_of_garbage_is_a_violation_at_the_end() -> None:
    parser = parser_of()
    parser.feed(b"<html>")
    with pytest.raises(ProtocolViolation):
        parser.end()


def test_garbage_is_quoted_without_the_key() -> None:
    with pytest.raises(ProtocolViolation, match=r"http://r.*\[API key\]"):
        parser_of().feed(b"your key is sk-key\n")


@pytest.mark.parametrize("start", [b"", b"da", b"data", b"data: {half", b": comm", b"ev"])
def test_an_unfinished_field_is_no_violation_at_the_end(start: bytes) -> None:
    parser = parser_of()
    assert parser.feed(start) == []
    parser.end()


@pytest.mark.parametrize("piece", [b"x" * 10, b"data: " + b"x" * 10 + b"\n", b"data:\n"])
def test_an_event_beyond_the_limit_is_a_violation(piece: bytes) -> None:
    parser = parser_of(1000)
    parser.feed(b"data: ")
    for _ in range(900 // max(len(piece), 6)):
        parser.feed(piece)
    with pytest.raises(ProtocolViolation, match="1000 bytes"):
        parser.feed(piece * 1001)


def test_the_limit_is_that_of_one_event() -> None:
    assert len(parser_of(100).feed(b"data: xxxxxxxx\n\n" * 100)) == 100


def test_one_byte_at_a_time_costs_linear_time() -> None:
    # A quadratic parser would copy 128 GiB here and never be done within the test's timeout.
    parser = parser_of()
    parser.feed(b"data: ")
    for _ in range(500_000):
        parser.feed(b"x")
    assert len(parser.feed(b"\n\n")[0]) == 500_000
