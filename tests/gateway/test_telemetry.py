"""Traces that leave the process, and those that do not."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from forebay.errors import SetupError
from forebay.gateway.telemetry import Tracing, open_tracing


def test_spans_reach_the_collector_before_the_end() -> None:
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracing = open_tracing(f"http://127.0.0.1:{server.server_port}/v1/traces", 1.0)
        span = tracing.begin("POST", "/v1/completions", {}, "r1")
        (name, parent), *_ = tracing.hand_on(span)
        tracing.end(span, "cut", {"forebay.key": "a"})
        tracing.close()
        server.shutdown()
    assert (name, len(parent)) == ("traceparent", 55)
    assert [path for path, _ in got] == ["/v1/traces"]
    for text in (b"forebay-gateway", b"POST /v1/completions", b"r1", b"cut"):
        assert text in got[0][1]


def test_without_a_collector_nothing_is_recorded() -> None:
    tracing = open_tracing(None, 1.0)
    span = tracing.begin("GET", "/v1/models", {b"traceparent": b"nonsense"}, "r1")
    assert not span.is_recording()
    assert tracing.hand_on(span) == []
    tracing.end(span, "200", {})
    tracing.close()


def test_a_share_of_none_traces_nothing_new() -> None:
    tracing = open_tracing("http://127.0.0.1:9/v1/traces", 0.0)
    assert not tracing.begin("GET", "/v1/models", {}, "r1").is_recording()
    asked = {b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert tracing.begin("GET", "/v1/models", asked, "r1").is_recording()


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SetupError, match=r"pip install 'forebay\[gateway-traces\]'"):
        open_tracing("http://127.0.0.1:9/v1/traces", 1.0)
    assert isinstance(open_tracing(None, 1.0), Tracing)
