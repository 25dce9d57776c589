"""The gateway's own errors, in the format of the client: OpenAI's or Anthropic's."""

from __future__ import annotations

import math

import orjson

from forebay.errors import (
    AttemptTimeout,
    EngineError,
    ForebayError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    Unauthorized,
)
from forebay.gateway.asgi import RawHeaders, json_headers

MAX_MESSAGE_CHARS = 1000
INVALID = "invalid_request_error"
SERVER = "server_error"


class Refusal(ForebayError):
    """An error that answers a request in place of a replica.

    `code` is stable and counted in metrics. `param`: what is invalid. `close`: the connection cannot be
    reused.
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

    def body(self, *, anthropic: bool = False) -> bytes:
        if anthropic:
            return anthropic_error_body(self.status, str(self))
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
    return orjson.dumps({"error": {"message": _plain(message), "type": kind, "param": param, "code": code}})


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_body(status: int, message: str) -> bytes:
    kind = ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": _plain(message)}})


def _plain(message: str) -> str:
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()


def invalid_value(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", f"{param}: {message}", param=param)


def no_route(path: str, model: str) -> Refusal:
    message = f"the engine that serves {model[:200]!r} has no {path}; it may be of another kind or version"
    return Refusal(404, "unsupported_call", message)


def too_large(limit: int) -> Refusal:
    return Refusal(
        413, "request_too_large", f"the body is larger than the limit of {limit} bytes", close=True
    )


def no_room() -> Refusal:
    message = "the gateway holds too many large requests; try again later"
    return Refusal(503, "gateway_full", message, kind=SERVER, retry_after_s=1, close=True)


def many_values(wait_s: float) -> Refusal:
    message = (
        "large bodies with many values wait for their turn while other clients are active; send fewer at a "
        "time, or smaller ones"
    )
    return Refusal(429, "too_many_values", message, retry_after_s=math.ceil(wait_s))


def slow_body(seconds: float) -> Refusal:
    return Refusal(408, "request_timeout", f"the body did not arrive within {seconds:g} s", close=True)


def wrong_key() -> Refusal:
    # Never quotes what was sent: a key with one wrong letter is a secret, too.
    return Refusal(
        401,
        "invalid_api_key",
        "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
    )


def from_a_page() -> Refusal:
    return Refusal(
        403,
        "origin_refused",
        "requests with an Origin header come from web pages, any of which could use a gateway without keys; "
        "give the gateway keys, or list the page's origin in cors",
    )


def wrong_host() -> Refusal:
    return Refusal(
        403,
        "host_refused",
        "this gateway is not called by the name in Host, which may be a web page's; use localhost or an IP "
        "address, or have the operator list the name in hosts",
    )


def draining() -> Refusal:
    message = "the gateway is stopping and accepts no new requests; use another one"
    return Refusal(503, "draining", message, kind=SERVER, retry_after_s=1, close=True)


def no_replica(message: str, *, retry_after_s: float = 1.0) -> Refusal:
    return Refusal(503, "no_replica", message, kind=SERVER, retry_after_s=retry_after_s)


def out_of_time(seconds: float, *, waited: bool, replicas: int) -> Refusal:
    if not waited:
        return Refusal(504, "request_timeout", f"there was no answer within {seconds:g} s", kind=SERVER)
    why = "no replica had room" if replicas else "no replica was up"
    return no_replica(f"{why} for the request within {seconds:g} s; try again later")


def unknown_model(name: str) -> Refusal:
    message = f"the model {name[:200]!r} is not served; /v1/models lists those that are"
    return Refusal(404, "model_not_found", message, param="model")


def own_mistake() -> Refusal:
    return Refusal(500, "internal_error", "internal error of the gateway; see its log", kind=SERVER)


def refusal_for(failure: EngineError, model: str) -> Refusal:
    """The client's error after all attempts have failed; names no replica."""
    if isinstance(failure, ModelNotFound):
        return unknown_model(model)
    if isinstance(failure, AttemptTimeout):
        return Refusal(504, "replica_timeout", "no replica began to answer in time", kind=SERVER)
    if isinstance(failure, Overloaded | RateLimited):
        wait_s = failure.retry_after_s or 2.0
        message = "every replica rejects further requests for now; try again later"
        if isinstance(failure, RateLimited):
            return Refusal(429, "rate_limited", message, kind=SERVER, retry_after_s=wait_s)
        return no_replica(message, retry_after_s=wait_s)
    if isinstance(failure, Unauthorized):
        message = "the replica rejects the gateway; the gateway's operator must fix its engine settings"
        return Refusal(502, "replica_refused", message, kind=SERVER)
    return Refusal(502, "replica_failed", "the replica could not be reached or broke off", kind=SERVER)
