"""The scripted server: its bytes and times."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from http.client import IncompleteRead

import pytest

from forebay.testing.stream_server import (
    DONE,
    ScriptedAnswer,
    StreamServer,
    StreamServerProcess,
    completion,
    event,
    whole,
)


def get(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=20) as answer:
        return bytes(answer.read())


def test_pieces_come_in_order_and_not_before_their_time() -> None:
    answer = ScriptedAnswer(((0.0, b"a"), (0.05, b"b"), (0.05, b"c"), (0.1, b"d")))
    with StreamServer(lambda _: answer) as server:
        began_s = time.monotonic()
        assert get(server.url + "/some/path", b"asked") == b"abcd"
        assert time.monotonic() - began_s >= 0.1
        (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/some/path", b"asked")


def test_an_answer_without_pieces_is_empty() -> None:
    with StreamServer(lambda _: ScriptedAnswer(())) as server:
        assert get(server.url) == b""


def test_a_refusal_and_a_cut() -> None:
    with (
        StreamServer(lambda _: whole({"error": "no"}, 429)) as server,
        pytest.raises(urllib.error.HTTPError, match="429"),
    ):
        get(server.url)
    with (
        StreamServer(lambda _: ScriptedAnswer(((0.0, b"a"),), ends=False)) as server,
        pytest.raises(IncompleteRead),
    ):
        get(server.url)


def test_a_process_serves_completions() -> None:
    with StreamServerProcess(3, 0.01, 0.001, cores=[0]) as server:
        assert b'"id":"scripted"' in get(server.url + "/v1/models")
        events = get(server.url + "/v1/completions", b"{}").split(b"\n\n")
    assert (
        events[:-1]
        == b"".join((event_bytes for _, event_bytes in completion(3, 0.0, 0.0)(_post()).pieces)).split(
            b"\n\n"
        )[:-1]
    )
    assert sum(b'"text":" word"' in one for one in events) == 3
    assert b'"completion_tokens":3' in events[3]
    assert events[4] + b"\n\n" == DONE
    assert event({"a": 1}) == b'data: {"a":1}\n\n'


def _post() -> object:
    from forebay.testing.stream_server import ScriptedRequest

    return ScriptedRequest("POST", "/", b"")
