"""A schema registry of a few schemas, in this process, that can misbehave."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

import orjson
from tests.harness.http_server import QuietHandler


class ScriptedRegistry:
    """Serves `schemas` by id on a free port of this machine; a context manager. `status`: if not
    200, the status of every answer; `failures`: number of requests that get 503 first; `auth`,
    `USER:PASSWORD`: other requests get 401. `padding`: number of blanks after each answer; `gzip`:
    answers are always compressed. `asked`: paths of all requests, in order. `subjects`: schemas
    that others refer to, by subject; `references`: those of an id or a subject. `types`: types of
    schemas that are not Avro, by id or subject; `descriptors`: serialised ones of Protobuf."""

    def __init__(self, schemas: Mapping[int, Any], *, auth: str | None = None, port: int = 0) -> None:
        self.schemas = dict(schemas)
        self.subjects: dict[str, Any] = {}
        self.references: dict[int | str, list[dict[str, Any]]] = {}
        self.types: dict[int | str, str] = {}
        self.descriptors: dict[int | str, bytes] = {}
        self.serializes = True
        self.status = 200
        self.failures = 0
        self.padding = 0
        self.gzip = False
        self.asked: list[str] = []
        self._auth = auth and "Basic " + base64.b64encode(auth.encode()).decode()
        registry = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                status, answer = registry._answer(self.path, self.headers["Authorization"])
                body = orjson.dumps(answer) + b" " * registry.padding
                self.send_response(status)
                if registry.gzip:
                    body = gzip.compress(body)
                    self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                # The client may have disconnected.
                with suppress(ConnectionError):
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedRegistry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, auth: str | None) -> tuple[int, dict[str, Any]]:
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 503, "message": "scripted"}
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": "scripted"}
        if self._auth is not None and auth != self._auth:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        path, _, query = path.partition("?")
        match path.strip("/").split("/"):
            case ["schemas", "ids", id] if int(id) in self.schemas:
                return 200, self._schema(int(id), self.schemas[int(id)], query)
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions", _] if subject in self.subjects:
                return 200, {
                    "subject": subject,
                    "version": 1,
                    "id": 1,
                    **self._schema(subject, self.subjects[subject], query),
                }
            case ["subjects", _, "versions", _]:
                return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, name: int | str, schema: Any, query: str) -> dict[str, Any]:
        kind = self.types.get(name)
        text = json.dumps(schema) if kind is None else str(schema)
        if self.serializes and kind == "PROTOBUF" and "format=serialized" in query:
            text = base64.b64encode(self.descriptors[name]).decode()
        about = {} if kind is None else {"schemaType": kind}
        return {**about, "schema": text, "references": self.references.get(name, [])}
