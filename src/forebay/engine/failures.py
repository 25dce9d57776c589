"""Map a replica's error responses to the classes of `forebay.errors`, by OpenAI's error codes and the
messages of vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
from yarl import URL

from forebay.clients.http.readers import WholeAnswer
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unauthorized,
)

MAX_QUOTE_CHARS = 300
MAX_RETRY_AFTER_S = 3600.0

TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|(maximum|model's) context length|context length is only"
    r"|maximum model length|max_model_len|exceeds the available context|(prompt|input) is too long",
    re.IGNORECASE,
)

ABSENT = frozenset((404, 405, 501))
CALLED = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings", "/health", "/metrics")
WEB_PAGE = re.compile(
    rb"\s*<(?:!doctype html|html)\b(?:.{0,2000}?<title>(.{0,200}?)</title>)?", re.IGNORECASE | re.DOTALL
)

CODES: Mapping[str, int] = {
    "badrequesterror": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "authenticationerror": 401,
    "permissiondeniederror": 403,
    "model_not_found": 404,
    "notfounderror": 404,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "internalservererror": 500,
    "server_error": 500,
    "serviceunavailableerror": 503,
    "overloaded_error": 503,
}


@dataclass(frozen=True, slots=True, repr=False)
class Redactor:
    """Makes a server's text fit for a message: one line, short, printable, without the API key."""

    secret: str | None = None

    def __call__(self, text: str) -> str:
        # Replaced before the text is cut: half a key is a secret too.
        hidden = text.replace(self.secret, "[API key]") if self.secret else text
        line = " ".join("".join(c if c.isprintable() else " " for c in hidden[:10_000]).split())
        return line if len(line) <= MAX_QUOTE_CHARS else line[:MAX_QUOTE_CHARS] + "…"


def error_from_status(
    status: int,
    body: bytes,
    *,
    replica: str,
    model: str,
    quote: Redactor,
    retry_after_s: float | None = None,
    location: str | None = None,
) -> EngineError:
    page = web_page(body, quote)
    if page and (status == 200 or status in ABSENT):
        kind = ProtocolViolation if status == 200 else ModelNotFound
        return kind(
            f"no engine answers at {replica}: another server answered {status} with {page}; check the URL"
        )
    detail, code = (page, None) if page else _read_body(body)
    detail = quote(detail)
    # A long one makes the record a dead letter long before its deadline.
    asked = f" with Retry-After: {retry_after_s:g} s" if retry_after_s else ""
    error = _from_code(
        status, f"{replica} answered {status}{asked}", detail, code, model=model, retry_after_s=retry_after_s
    )
    if error is not None:
        return error
    if 300 <= status < 400:
        redirect = describe_redirect(replica, location, quote)
        return ProtocolViolation(f"{replica} answered {status}, {redirect}")
    return ProtocolViolation(f"{replica} answered {status}, which is not an answer to a completion: {detail}")


def error_from_answer(answer: WholeAnswer, *, replica: str, quote: Redactor) -> EngineError:
    """Of a request without a model."""
    return error_from_status(
        answer.status,
        bytes(answer.data),
        replica=replica,
        model="",
        quote=quote,
        location=answer.location,
    )


def web_page(body: bytes, quote: Redactor) -> str:
    """What to call `body` in a message if it is a web page; else empty."""
    page = WEB_PAGE.match(body)
    if page is None:
        return ""
    title = quote((page[1] or b"").decode("utf-8", "replace"))
    return f"a web page, {title!r}" if title else "a web page"


def describe_redirect(replica: str, location: str | None, quote: Redactor) -> str:
    """`location` is shown without user, password, query and fragment: they may hold secrets."""
    try:
        target = URL(replica).join(URL(location or ""))
        shown = target.with_user(None).with_query(None).with_fragment(None)
    except ValueError:
        location = None
    if not location:
        return "a redirect without a valid target; check the engine's URL"
    base = str(shown).rstrip("/")
    for path in CALLED:
        base = base.removesuffix(path)
    fix = f"set the engine's URL to {quote(base)}"
    if base in (replica, str(shown)):
        # A page to log in, for example.
        fix = "check the engine's URL"
    return f"a redirect to {quote(str(shown))}, which is not followed; {fix}"


def error_from_object(error: object, *, replica: str, model: str, quote: Redactor) -> EngineError:
    detail, code = _read_error(error)
    where = f"{replica} broke off with an error"
    status = _status_of(code) or _status_of(error.get("type") if isinstance(error, Mapping) else None) or 500
    found = _from_code(status, where, quote(detail), code, model=model)
    return found or ServerFault(f"{where}: {quote(detail)}")


def read_retry_after_s(value: str | None, *, now_ms: int) -> float | None:
    """A `Retry-After` header (RFC 9110, 10.2.3) in seconds, 0 to 3600; None if it is invalid."""
    if value is None:
        return None
    value = value.strip()[:64]
    try:
        seconds = float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else _until(value, now_ms)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _until(date: str, now_ms: int) -> float:
    return parsedate_to_datetime(date).timestamp() - now_ms / 1000


def _from_code(
    status: int, where: str, detail: str, code: object, *, model: str, retry_after_s: float | None = None
) -> EngineError | None:
    message = f"{where}: {detail}" if detail else where
    if TOO_LONG.search(f"{code} {detail}") and status in (400, 413, 422, 500):
        return PromptTooLong(f"{message}; shorten the prompt or ask for fewer tokens")
    match status:
        case 401 | 403:
            return Unauthorized(f"{message}; check the API key")
        case _ if status in ABSENT:
            serves = f"the model {model[:200]!r}" if model else "a model"
            return ModelNotFound(f"{message}; check the URL and that it serves {serves}")
        case 408:
            return AttemptTimeout(message, retry_after_s=retry_after_s)
        case 429:
            return RateLimited(message, retry_after_s=retry_after_s)
        case 502 | 503 | 504 | 529:
            return Overloaded(message, retry_after_s=retry_after_s)
    if 400 <= status < 500:
        return BadRequest(message)
    if 500 <= status < 600:
        return ServerFault(message, retry_after_s=retry_after_s)
    return None


def _read_body(body: bytes) -> tuple[str, object]:
    try:
        parsed: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace"), None
    if isinstance(parsed, Mapping):
        return _read_error(parsed.get("error") or parsed)
    return body.decode("utf-8", "replace"), None


def _read_error(error: object) -> tuple[str, object]:
    if not isinstance(error, Mapping):
        return _text_of(error), None
    return _text_of(error.get("message") or error.get("detail") or error), error.get("code")


def _text_of(error: object) -> str:
    if isinstance(error, str):
        return error
    try:
        return orjson.dumps(error, default=str).decode()
    except (orjson.JSONEncodeError, RecursionError):
        # JSON that could be parsed may be nested too deeply to serialise.
        return "(an error nested too deeply to be shown)"


def _status_of(code: object) -> int | None:
    if isinstance(code, bool):
        return None
    if isinstance(code, int):
        return code
    if isinstance(code, str):
        return int(code) if re.fullmatch(r"[1-5][0-9]{2}", code) else CODES.get(code.lower())
    return None
