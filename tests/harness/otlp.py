"""A local collector for OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.harness.http_server import QuietHandler, in_thread

TRACES = "/v1/traces"


class Collector(HTTPServer):
    """`got`: the last document at each path; `spans`: all; `keys`: values of the header `x-key`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: dict[str, bytes] = {}
        self.spans: list[Any] = []
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got[self.path] = body
        if self.path == TRACES:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += resource.scope_spans[0].spans
        self.server.keys.add(self.headers["x-key"])
        self.answer(b"")


@contextmanager
def collecting() -> Iterator[Collector]:
    server = Collector()
    with in_thread(server):
        yield server
