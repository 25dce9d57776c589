"""One replica over HTTP with the OpenAI protocol; every failure becomes one class of `errors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import quote as percent_encode

from yarl import URL

from forebay.clients.http.readers import EVENT_STREAM, JSON, CallOverdue, SilentServer
from forebay.clients.http.server import CONNECT_TIMEOUT_S, HttpServer
from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.call_trace import CALL_TRACE
from forebay.engine.completion_reader import MAX_ANSWER_BYTES, CompletionReader
from forebay.engine.failures import Redactor
from forebay.engine.load import LOAD_REQUEST_HEADER
from forebay.engine.piece_size import PieceSize
from forebay.engine.protocol import CHAT_PATH, KV_TRANSFER, PROMPT_PATH, request_body
from forebay.errors import AttemptTimeout, BadRequest, PromptTooLong, SettingError
from forebay.records import Completion, Request

MAX_ID_CHARS = 200

HeadersOf = Callable[[Request, float], Mapping[str, str]]


class HttpEngine:
    """An `Engine` that calls one replica.

    Opens any number of connections. Bound to the event loop of its first call. `stream=False`: the answer in
    one piece, cheaper, without token times (vLLM sends its load header only then). `headers_of` returns extra
    headers for a request and its remaining seconds. `max_answer_bytes`: of an answer in one piece, or of a
    stream's text.
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
        self._max_answer_bytes = max_answer_bytes
        self._clock = clock or SystemClock()
        self._headers_of = headers_of or _no_more
        self._pieces = PieceSize()
        self._refuses_pieces = False
        self.gathers_tokens = False
        """Whether the server is a vLLM, which may put several tokens into a piece of a streamed answer."""
        self._quote = Redactor(api_key)
        headers = request_headers(api_key) | {
            "Content-Type": "application/json",
            "Accept": EVENT_STREAM if stream else JSON,
            LOAD_REQUEST_HEADER: "TEXT",
        }
        self._server = HttpServer(self.url, headers=headers, quote=self._quote, connect_s=connect_timeout_s)

    def __repr__(self) -> str:
        return f"HttpEngine({self.url!r})"

    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[int], None] | None = None,
    ) -> Completion:
        """Like `Engine.complete`. `on_content` gets the estimated number of tokens of each piece."""
        asked = self._pieces.wanted if self.gathers_tokens and not self._refuses_pieces else 1
        try:
            return await self._complete(request, asked, timeout_s, deadline, on_content)
        except BadRequest as error:
            if asked == 1 or isinstance(error, PromptTooLong):
                raise
        # vLLM refused unknown fields until late in 2024.
        completion = await self._complete(request, 1, timeout_s, deadline, on_content)
        self._refuses_pieces = True
        return completion

    async def _complete(
        self,
        request: Request,
        asked: int,
        timeout_s: float,
        deadline: Deadline | None,
        on_content: Callable[[int], None] | None,
    ) -> Completion:
        pieces = self._pieces
        body = request_body(request, stream=self._stream, piece_tokens=asked)
        sent_s = self._clock.monotonic_s()
        left_s = math.inf
        if deadline is not None:
            deadline.begin(sent_s)
            left_s = deadline.left_s(sent_s)
        if min(timeout_s, left_s) <= 0:
            raise AttemptTimeout(f"{self.url}: no time is left for request {request.id}")
        answer = CompletionReader(
            request,
            url=self.url,
            stream=self._stream,
            max_bytes=self._max_answer_bytes,
            clock=self._clock,
            quote=self._quote,
            piece_tokens=pieces.expected(asked),
            on_content=on_content or _nothing,
        )
        trace = CALL_TRACE.get()
        call = None if trace is None else trace.call(self.url, request, sent_s, streamed=self._stream)
        try:
            await self._server.post(
                CHAT_PATH if request.prompt is None else PROMPT_PATH,
                body,
                answer,
                headers=(
                    ("X-Request-Id", header_id(request.id)),
                    *(() if call is None else call.headers),
                    *self._headers_of(request, left_s).items(),
                ),
                silence_s=timeout_s,
                total_s=left_s,
                # A KV cache is made once and read once.
                again=KV_TRANSFER not in request.sampling.extra,
            )
        except SilentServer:
            failure = f"{self.url} sent nothing for request {request.id} for {timeout_s:g} s"
        except CallOverdue:
            failure = (
                f"{self.url} did not finish request {request.id} within {left_s:.1f} s, the rest of its "
                f"deadline{answer.progress}"
            )
        else:
            completion = answer.completion(sent_s)
            pieces.learn(asked, completion.usage.completion_tokens, answer.pieces, answer.took_s)
            return completion if call is None else call.answered(completion)
        raise AttemptTimeout(failure)

    async def close(self) -> None:
        await self._server.close()


def _nothing(tokens: int) -> None: ...


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


def header_id(id: str) -> str:
    """`id` as a header value: unchanged if it is short and plain, else percent-encoded and cut."""
    if len(id) <= MAX_ID_CHARS and id.isascii() and id.isprintable():
        return id
    return percent_encode(id, errors="replace")[:MAX_ID_CHARS]
