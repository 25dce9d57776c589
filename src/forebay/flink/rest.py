"""Flink's REST service: of a cluster over HTTP, of an embedded Flink over TLS with its keys."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from forebay.errors import LaunchError
from forebay.flink.tls_keys import TlsKeys

REST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 << 20
HEADERS = {"Content-Type": "application/json"}
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


class RestSilent(LaunchError):
    """Flink's REST service accepted the request but did not answer in time."""


class NotFound(LaunchError):
    """Flink answered 404."""


@dataclass(frozen=True)
class FlinkRest:
    """The service at `url`; `keys`: of an embedded Flink.

    Methods block for one call, about ten seconds at most, and raise `LaunchError` without a good answer. No
    proxy is used for this machine. Each thread keeps a connection to an embedded Flink, because connecting
    takes longer than a request.
    """

    url: str
    keys: TlsKeys | None = None

    def json(self, path: str, method: str = "GET", wish: object = None) -> Any:
        body = self.ask(path, method, wish)
        try:
            return json.loads(body or "null")
        except ValueError:
            raise LaunchError(f"{self.url}{path} did not answer with JSON: {body[:80]!r}") from None

    def ask(self, path: str, method: str = "GET", wish: object = None) -> bytes:
        """The raw answer, of at most 8 MiB; `wish` is sent as JSON."""
        url = self.url + path
        data = None if wish is None else json.dumps(wish).encode()
        ask = self._ask_anew if self.keys is None else self._ask_kept
        try:
            status, body = ask(path, method, data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            silent = isinstance(getattr(error, "reason", error), TimeoutError)
            raise (RestSilent if silent else LaunchError)(f"{url} does not answer: {error}") from None
        if status >= 300:
            raise (NotFound if status == 404 else LaunchError)(f"{url} answered {status}")
        return body

    def _ask_anew(self, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, data, HEADERS, method=method)
        try:
            with self._opener.open(request, timeout=REST_TIMEOUT_S) as answer:
                return answer.status, _body(answer)
        except urllib.error.HTTPError as error:
            return error.code, b""

    def _ask_kept(self, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
        connection = self._connection()
        if method != "GET":
            # On a kept connection it is unknown whether Flink processed a request before it closed.
            connection.close()
        kept = connection.sock is not None
        try:
            return _ask_once(connection, path, method, data)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
            if not kept:
                raise
            # Flink has closed it since: it was idle, or this is another Flink.
            return _ask_once(connection, path, method, data)

    def _connection(self) -> _Connection:
        assert self.keys is not None
        if not hasattr(self._kept, "connection"):
            host = urlsplit(self.url)
            self._kept.connection = _Connection(
                host.hostname or "", host.port, timeout=REST_TIMEOUT_S, context=self.keys.client_context()
            )
        connection: _Connection = self._kept.connection
        return connection

    @cached_property
    def _kept(self) -> threading.local:
        return threading.local()

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        if urlsplit(self.url).hostname in LOCAL:
            # A proxy would connect to its own machine.
            return urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener()


class _Connection(http.client.HTTPSConnection):
    """Closed with the thread that used it."""

    def __del__(self) -> None:
        self.close()


def _ask_once(connection: _Connection, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
    try:
        connection.request(method, path, data, HEADERS)
        answer = connection.getresponse()
        body = _body(answer)
    except BaseException:
        connection.close()
        raise
    if not answer.isclosed():
        # There is more of it.
        connection.close()
    return answer.status, body


def _body(answer: http.client.HTTPResponse) -> bytes:
    """At most `MAX_ANSWER_BYTES` of an answer. Raises `IncompleteRead` if it ends before its length."""
    body = answer.read(MAX_ANSWER_BYTES)
    # A limited read does not report that the connection ended.
    if answer.length and len(body) < MAX_ANSWER_BYTES:
        raise http.client.IncompleteRead(body, answer.length)
    return body
