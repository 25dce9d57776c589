"""One replica over HTTP with the OpenAI protocol; every failure becomes one class of `errors`."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote as percent_encode

import aiohttp
from yarl import URL

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.connection import open_connector
from forebay.engine.failures import Redactor, error_from_status, read_retry_after_s
from forebay.engine.load import LOAD_HEADER, LOAD_REQUEST_HEADER, parse_load_header
from forebay.engine.protocol import CHAT_PATH, DONE, PROMPT_PATH, AnswerReader, SseParser, request_body
from forebay.errors import AttemptTimeout, EngineError, ProtocolViolation, SettingError, Unreachable
from forebay.records import Completion, ReplicaLoad, Request, Timing

MAX_ANSWER_BYTES = 8 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_ID_CHARS = 200
CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0
"""How long an idle connection is kept: less than vLLM's 5 s."""
CLOSE_GRACE_S = 1.0
"""How long the body may take to end after the answer, before the connection is closed instead of reused."""

HeadersOf = Callable[[Request, float], Mapping[str, str]]


class HttpEngine:
    """An `Engine` that calls one replica.

    Opens any number of connections: the caller limits them. Bound to the event loop of its first call.
    `stream=False`: the answer in one piece, cheaper, without token times (vLLM sends its load header only
    then). `headers_of` returns extra headers for a request and its remaining seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        stream: bool = True,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        clock: Clock | None = None,
        headers_of: HeadersOf | None = None,
    ) -> None:
        self.url = replica_url(url)
        self._stream = stream
        self._connect_timeout_s = connect_timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock or SystemClock()
        self._headers_of = headers_of or _no_more
        self._quote = Redactor(api_key)
        self._chat_url = URL(self.url + CHAT_PATH)
        self._prompt_url = URL(self.url + PROMPT_PATH)
        self._headers = request_headers(api_key) | {
            "Content-Type": "application/json",
            "Accept": "text/event-stream" if stream else "application/json",
            LOAD_REQUEST_HEADER: "TEXT",
        }
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"HttpEngine({self.url!r})"

    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[], None] | None = None,
    ) -> Completion:
        """Like `Engine.complete`. `on_content` is called per chunk, or once for an answer in one piece."""
        if self._closed:
            raise Unreachable(f"{self.url}: the client is closed")
        body = request_body(request, stream=self._stream)
        sent_s = self._clock.monotonic_s()
        left_s = math.inf
        if deadline is not None:
            deadline.begin(sent_s)
            left_s = deadline.left_s(sent_s)
        if min(timeout_s, left_s) <= 0:
            raise AttemptTimeout(f"{self.url}: no time is left for request {request.id}")
        try:
            response = await self._open().post(
                self._chat_url if request.prompt is None else self._prompt_url,
                data=body,
                headers={"X-Request-Id": header_id(request.id), **self._headers_of(request, left_s)},
                timeout=request_timeout(left_s, self._connect_timeout_s, silence_s=timeout_s),
                allow_redirects=False,
            )
            try:
                return await self._read(request, response, sent_s, on_content or _nothing)
            except BaseException:
                # Cancelled or broken: the replica drops the request only if the connection is closed.
                response.close()
                raise
        except aiohttp.ConnectionTimeoutError:
            failure: EngineError = Unreachable(
                f"{self.url} did not accept a connection within {self._connect_timeout_s:g} s"
            )
        except aiohttp.SocketTimeoutError:
            failure = AttemptTimeout(f"{self.url} sent nothing for request {request.id} for {timeout_s:g} s")
        except asyncio.TimeoutError:
            failure = AttemptTimeout(
                f"{self.url} did not finish request {request.id} by its deadline, {left_s:.1f} s after it"
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = transport_error(error, replica=self.url, quote=self._quote)
        # Raised outside the `except` block, so that the exception does not keep one that holds the request's
        # headers.
        raise failure

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _read(
        self,
        request: Request,
        response: aiohttp.ClientResponse,
        sent_s: float,
        on_content: Callable[[], None],
    ) -> Completion:
        first_byte_s = self._clock.monotonic_s()
        load = parse_load_header(response.headers.get(LOAD_HEADER), observed_s=first_byte_s)
        if response.status != 200:
            raise await self._refusal(request, response)
        reader = AnswerReader(request, replica=self.url, quote=self._quote)
        # Some servers never stream.
        if self._stream and response.content_type != "application/json":
            seen = _Seen(sent_s, first_byte_s, load, on_content)
            return await self._read_stream(response, reader, seen)
        reader.take_whole(await read_bounded(response, self._max_answer_bytes, replica=self.url))
        on_content()
        timing = Timing(sent_s, self._clock.monotonic_s(), first_byte_s)
        return self._completion(reader, timing, load)

    async def _read_stream(
        self, response: aiohttp.ClientResponse, reader: AnswerReader, seen: _Seen
    ) -> Completion:
        kind = response.headers.get("Content-Type", "")
        if not kind.startswith("text/event-stream"):
            start = (await read_start(response, MAX_ERROR_BYTES)).decode("utf-8", "replace")
            raise ProtocolViolation(
                f"{self.url} sent {self._quote(kind)!r}, not an event stream: {self._quote(start)}"
            )
        content = response.content
        parser = SseParser(replica=self.url, quote=self._quote)
        chunks_s: list[float] = []
        left = self._max_answer_bytes
        done = False
        try:
            while not done and (chunk := await content.readany()):
                left -= len(chunk)
                if left < 0:
                    raise ProtocolViolation(
                        f"{self.url} sent an answer of more than {self._max_answer_bytes} bytes"
                    )
                now_s = self._clock.monotonic_s()
                for data in parser.feed(chunk):
                    if data == DONE:
                        done = True
                        break
                    if reader.take_chunk(data):
                        chunks_s.append(now_s)
                        seen.on_content()
                    elif reader.reasons:
                        seen.on_content()
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, ConnectionError):
            # The answer is complete; at most its token counts are missing.
            if reader.finish_reason is None:
                raise
            response.close()
        if not done:
            parser.end()
            if reader.finish_reason is None:
                raise Unreachable(f"{self.url} ended its answer before it was complete")
        elif not reader.has_choice:
            raise ProtocolViolation(f"{self.url} ended its stream without an answer")
        done_s = self._clock.monotonic_s()
        if not content.at_eof():
            # The connection returns to the pool when the body ends, unless that takes too long.
            asyncio.get_running_loop().call_later(CLOSE_GRACE_S, response.close)
        timing = Timing(
            seen.sent_s, done_s, seen.first_byte_s, chunks_s[0] if chunks_s else None, tuple(chunks_s)
        )
        return self._completion(reader, timing, seen.load)

    def _completion(self, reader: AnswerReader, timing: Timing, load: ReplicaLoad | None) -> Completion:
        return Completion(
            reader.text,
            reader.finish_reason,
            reader.usage,
            timing,
            load,
            self.url,
            reader.kv_transfer,
            reasoning=reader.reasoning,
            tool=reader.tool,
            refusal=reader.refusal,
        )

    async def _refusal(self, request: Request, response: aiohttp.ClientResponse) -> EngineError:
        try:
            body = await read_start(response, MAX_ERROR_BYTES)
        except aiohttp.ClientError:
            body = b""  # The status is enough.
        return error_from_status(
            response.status,
            body,
            replica=self.url,
            model=request.model,
            quote=self._quote,
            retry_after_s=read_retry_after_s(
                response.headers.get("Retry-After"), now_ms=self._clock.wall_ms()
            ),
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._headers)
        return self._session


@dataclass(frozen=True, slots=True)
class _Seen:
    sent_s: float
    first_byte_s: float
    load: ReplicaLoad | None
    on_content: Callable[[], None]


def _nothing() -> None: ...


def _no_more(request: Request, left_s: float) -> Mapping[str, str]:
    return {}


def replica_url(url: str) -> str:
    """`url` without a trailing slash or `/v1`. Raises `SettingError` if it is not a replica's URL."""
    try:
        parsed = URL(url.strip())
        fit = parsed.scheme in ("http", "https") and bool(parsed.host) and parsed.port is not None
    except (ValueError, TypeError):
        raise SettingError("the engine's URL cannot be read; expected http://HOST:PORT") from None
    if parsed.user is not None or parsed.password is not None or parsed.query_string or parsed.fragment:
        # Not quoted: people put secrets here.
        raise SettingError(
            "the engine's URL holds a user, a password, a query or a fragment; expected http://HOST:PORT"
            " and the key named by `api_key`"
        )
    if not fit:
        raise SettingError(f"the engine's URL is {url[:200]!r}; expected http://HOST:PORT or https://HOST")
    return str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")


def request_headers(api_key: str | None) -> dict[str, str]:
    """Headers of every request. Raises `SettingError` for a key that a header cannot carry."""
    # No compression: answers are short, and a compressed one could expand to any size.
    headers = {"Accept-Encoding": "identity", "User-Agent": "forebay"}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
            raise SettingError("the API key holds white space or characters that an HTTP header cannot carry")
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def open_session(headers: dict[str, str]) -> aiohttp.ClientSession:
    """A session of the running event loop: no connection limit, no cookies, no proxy from the environment."""
    return aiohttp.ClientSession(
        connector=open_connector(keepalive_s=KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,
    )


def request_timeout(
    total_s: float, connect_s: float = CONNECT_TIMEOUT_S, *, silence_s: float = math.inf
) -> aiohttp.ClientTimeout:
    """Limits of one exchange. Exact: aiohttp by default rounds times above 5 s up to whole seconds.

    `silence_s`: before the first read and between two reads. Both may be infinite.
    """
    return aiohttp.ClientTimeout(
        total=None if math.isinf(total_s) else total_s,
        sock_connect=connect_s,
        sock_read=None if math.isinf(silence_s) else silence_s,
        ceil_threshold=math.inf,
    )


def header_id(id: str) -> str:
    """`id` as a header value: unchanged if it is short and plain, else percent-encoded and cut."""
    if len(id) <= MAX_ID_CHARS and id.isascii() and id.isprintable():
        return id
    return percent_encode(id, errors="replace")[:MAX_ID_CHARS]


async def read_start(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """At most `limit` bytes of the body. Closes the connection if there are more."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (chunk := await response.content.read(left)):
        parts.append(chunk)
        left -= len(chunk)
    if not response.content.at_eof():
        response.close()
    return b"".join(parts)


async def read_bounded(response: aiohttp.ClientResponse, limit: int, *, replica: str) -> bytes:
    """The whole body. Raises `ProtocolViolation` if it exceeds `limit` bytes."""
    body = await read_start(response, limit + 1)
    if len(body) > limit:
        raise ProtocolViolation(f"{replica} sent an answer of more than {limit} bytes")
    return body


def _reason(error: OSError) -> str:
    """Only the system's message: the error's text contains much else."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def transport_error(error: Exception, *, replica: str, quote: Redactor) -> EngineError:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return Unreachable(f"{replica}: no connection ({quote(_reason(error.os_error))}); is it there?")
    said = f"{type(error).__name__}: {quote(str(error))}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return Unreachable(f"{replica}: {said}")
    return ProtocolViolation(f"{replica} did not speak HTTP: {said}")
