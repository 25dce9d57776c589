"""The scripted server in a process of its own."""

from __future__ import annotations

import urllib.request

import pytest

from forebay.testing.stream_server import DONE, ScriptedRequest, StreamServerProcess, completion, event

pytestmark = pytest.mark.heavy


def get(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=20) as answer:
        return bytes(answer.read())


def test_a_process_serves_completions() -> None:
    with StreamServerProcess(3, 0.01, 0.001, cores=[0]) as server:
        assert b'"id":"scripted"' in get(server.url + "/v1/models")
        found = get(server.url + "/v1/completions", b"{}")
    pieces = completion(3, 0.0, 0.0)(ScriptedRequest("POST", "/v1/completions", b"")).pieces
    assert found == b"".join(piece for _, piece in pieces)
    assert found.count(b'"text":" word"') == 3
    assert b'"completion_tokens":3' in found
    assert found.endswith(DONE)
    assert event({"a": 1}) == b'data: {"a":1}\n\n'
