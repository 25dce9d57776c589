"""What the gateway itself says instead of an answer, in the form of OpenAI's errors."""

from __future__ import annotations

import math

import orjson

from forebay.errors import ForebayError
from forebay.gateway.asgi import RawHeaders, json_headers

MAX_MESSAGE_CHARS = 1000
INVALID = "invalid_request_error"
SERVER = "server_error"


class Refusal(ForebayError):
    """One request gets no answer from a replica; the client is told why.

    `code` is stable and counted in metrics. `param` names the part of the body that is wrong. `close`: the
    connection cannot be used for another request.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        retry_after_s: float | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
        self.close = close

    def body(self) -> bytes:
        return error_body(self.code, str(self), kind=self.kind, param=self.param)

    def headers(self) -> RawHeaders:
        headers = json_headers()
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after_s))))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


def error_body(code: str, message: str, *, kind: str = INVALID, param: str | None = None) -> bytes:
    """An error as OpenAI's clients read it."""
    message = message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def too_large(limit: int) -> Refusal:
    return Refusal(
        413, "request_too_large", f"the body is larger than the {limit} bytes that are taken", close=True
    )


def no_room() -> Refusal:
    message = "the gateway holds too many large requests; try again later"
    return Refusal(503, "gateway_full", message, kind=SERVER, retry_after_s=1, close=True)


def slow_body(seconds: float) -> Refusal:
    return Refusal(408, "request_timeout", f"the body did not come whole within {seconds:g} s", close=True)


def wrong_key() -> Refusal:
    # Says nothing of what was sent: a key with one letter wrong is a secret too.
    return Refusal(
        401, "invalid_api_key", "the API key is missing or wrong; send it as `Authorization: Bearer KEY`"
    )


def from_a_page() -> Refusal:
    return Refusal(
        403,
        "origin_refused",
        "requests with an Origin header come from web pages, any of which could use a gateway without keys; "
        "give the gateway keys",
    )


def draining() -> Refusal:
    message = "the gateway is about to stop and takes no new requests; send it to another"
    return Refusal(503, "draining", message, kind=SERVER, retry_after_s=1, close=True)


def no_replica(message: str, *, retry_after_s: float = 1.0) -> Refusal:
    return Refusal(503, "no_replica", message, kind=SERVER, retry_after_s=retry_after_s)


def no_place(seconds: float) -> Refusal:
    return no_replica(f"no replica had room for the request within {seconds:g} s; try again later")


def unknown_model(name: str) -> Refusal:
    message = f"the model {name[:200]!r} is not served; /v1/models says which are"
    return Refusal(404, "model_not_found", message, param="model")


def too_late(seconds: float) -> Refusal:
    return Refusal(504, "request_timeout", f"no answer was there within {seconds:g} s", kind=SERVER)


def own_mistake() -> Refusal:
    return Refusal(500, "internal_error", "the gateway made a mistake; its log says more", kind=SERVER)
