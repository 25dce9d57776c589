"""Flink's REST service: a cluster's over HTTP, that of an embedded Flink over TLS with its keys."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from forebay.errors import LaunchError
from forebay.flink.tls_keys import TlsKeys

REST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 << 20


class RestSilent(LaunchError):
    """Flink's REST service took the question and gave no answer in time."""


class NotFound(LaunchError):
    """Flink answered 404."""


@dataclass(frozen=True)
class FlinkRest:
    """The service at `url`; with `keys`, of an embedded Flink that answers nobody else.

    Methods block for one call, at most ten seconds and some; they raise `LaunchError` where there is no good
    answer. No proxy of the environment's is asked for an embedded Flink.
    """

    url: str
    keys: TlsKeys | None = None

    def json(self, path: str, method: str = "GET", wish: object = None) -> Any:
        """What Flink answers; None where that is nothing."""
        return json.loads(self.ask(path, method, wish) or "null")

    def ask(self, path: str, method: str = "GET", wish: object = None) -> bytes:
        """The answer as it is, of at most 8 MiB; `wish` is sent as JSON."""
        url = self.url + path
        data = None if wish is None else json.dumps(wish).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=REST_TIMEOUT_S) as answer:
                body: bytes = answer.read(MAX_ANSWER_BYTES)
                return body
        except urllib.error.HTTPError as error:
            kind = NotFound if error.code == 404 else LaunchError
            raise kind(f"{url} answered {error.code}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            silent = isinstance(getattr(error, "reason", error), TimeoutError)
            raise (RestSilent if silent else LaunchError)(f"{url} does not answer: {error}") from None

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        if self.keys is None:
            return urllib.request.build_opener()
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=self.keys.client_context()),
        )
