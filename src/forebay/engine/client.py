"""One replica over HTTP with the OpenAI protocol; every failure becomes one class of `errors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import quote as percent_encode

from yarl import URL

from forebay.clients.http.readers import (
    CLOSE_GRACE_S,
    EVENT_STREAM,
    JSON,
    AnswerHead,
    AwaitedReader,
    CallOverdue,
    EnoughRead,
    SilentServer,
    check_plain,
)
from forebay.clients.http.server import CONNECT_TIMEOUT_S, HttpServer
from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.call_trace import CALL_TRACE
from forebay.engine.failures import Redactor, error_from_status, read_retry_after_s, web_page
from forebay.engine.load import LOAD_HEADER, LOAD_REQUEST_HEADER, parse_load_header
from forebay.engine.piece_size import PieceSize
from forebay.engine.prices import most_answer_tokens
from forebay.engine.protocol import (
    CHAT_PATH,
    DONE,
    KV_TRANSFER,
    NO_USAGE,
    PROMPT_PATH,
    AnswerReader,
    SseParser,
    request_body,
)
from forebay.errors import AttemptTimeout, ProtocolViolation, SettingError, Unreachable
from forebay.records import Completion, Request, Timing
from forebay.untrusted_text import counted

MAX_ANSWER_BYTES = 8 << 20
MAX_EVENT_BYTES_PER_TOKEN = 4 << 10
"""A streamed token is an event of 200 to 300 bytes, and of 2,000 with log probabilities."""
MAX_STREAM_BYTES = 1 << 30
MAX_ERROR_BYTES = 64 << 10
COMPRESSED = b"(a compressed body)"
MAX_ID_CHARS = 200
USAGE_GRACE_S = 10.0
"""How long the token counts may take after the finish reason: costs are computed from them."""

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
        pieces = self._pieces
        body = request_body(
            request, stream=self._stream, piece_tokens=pieces.wanted if self.gathers_tokens else 1
        )
        sent_s = self._clock.monotonic_s()
        left_s = math.inf
        if deadline is not None:
            deadline.begin(sent_s)
            left_s = deadline.left_s(sent_s)
        if min(timeout_s, left_s) <= 0:
            raise AttemptTimeout(f"{self.url}: no time is left for request {request.id}")
        answer = _CompletionReader(
            request,
            url=self.url,
            stream=self._stream,
            max_bytes=self._max_answer_bytes,
            clock=self._clock,
            quote=self._quote,
            piece_tokens=round(pieces.found),
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
            pieces.learn(completion.usage.completion_tokens, answer.pieces, answer.took_s)
            return completion if call is None else call.answered(completion)
        raise AttemptTimeout(failure)

    async def close(self) -> None:
        await self._server.close()


class _CompletionReader(AwaitedReader):
    __slots__ = (
        "_answer",
        "_chunks_s",
        "_clock",
        "_complete",
        "_data",
        "_done_s",
        "_early_reason",
        "_first_byte_s",
        "_first_piece_s",
        "_foreign",
        "_head",
        "_left",
        "_max_bytes",
        "_max_tokens",
        "_model",
        "_on_content",
        "_own_error",
        "_parser",
        "_piece_tokens",
        "_quote",
        "_saw_done",
        "_stream",
        "_url",
        "pieces",
        "took_s",
    )

    def __init__(
        self,
        request: Request,
        *,
        url: str,
        stream: bool,
        max_bytes: int,
        clock: Clock,
        quote: Redactor,
        piece_tokens: int,
        on_content: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._answer = AnswerReader(request, replica=url, quote=quote)
        self._model = request.model
        self._url = url
        self._stream = stream
        self._max_bytes = max_bytes
        self._max_tokens = most_answer_tokens(request.sampling)
        self._clock = clock
        self._quote = quote
        self._piece_tokens = piece_tokens
        self._on_content = on_content
        self._head: AnswerHead | None = None
        self._parser: SseParser | None = None
        self._data = bytearray()
        self._left = 0
        self._chunks_s: list[float] = []
        self._first_byte_s = self._done_s = self._first_piece_s = self.took_s = 0.0
        self.pieces = 0
        self._complete = self._saw_done = self._early_reason = self._foreign = False
        self._own_error: Exception | None = None

    def head(self, head: AnswerHead) -> None:
        self._head = head
        self._done_s = 0.0
        self._first_byte_s = self._clock.monotonic_s()
        refused = head.status != 200
        content_type = head.content_type
        self._foreign = self._stream and content_type not in (EVENT_STREAM, JSON)
        if not refused:
            check_plain(head, self._url)
        self._left = MAX_ERROR_BYTES if refused or self._foreign else self._max_bytes
        # Some servers never stream.
        if self._stream and not refused and content_type == EVENT_STREAM:
            self._parser = SseParser(replica=self._url, quote=self._quote)
            most = max(self._max_bytes, self._max_tokens * MAX_EVENT_BYTES_PER_TOKEN)
            self._left = min(MAX_STREAM_BYTES, most)

    def body(self, data: bytes) -> None:
        if self._saw_done:
            return
        try:
            self._left -= len(data)
            if self._parser is not None:
                self._read_events(self._parser, data)
            else:
                self._data += data
            if self._left < 0 or self._answer.size > self._max_bytes:
                if self._foreign or (self._head is not None and self._head.status != 200):
                    raise EnoughRead
                raise ProtocolViolation(f"{self._url} sent an answer of more than {self._max_bytes} bytes")
        except Exception as error:
            self._own_error = error
            raise

    def _read_events(self, parser: SseParser, data: bytes) -> None:
        now_s = self._clock.monotonic_s()
        answer = self._answer
        for event in parser.feed(data):
            if event == DONE:
                self._complete = self._saw_done = True
                self.grace_s = CLOSE_GRACE_S
                self.finished(None)
                return
            has_content = answer.take_chunk(event)
            if has_content:
                self._chunks_s.append(now_s)
            if has_content or answer.reasons:
                self.pieces += 1
                if self.pieces == 1:
                    self._first_piece_s = now_s
                self.took_s = now_s - self._first_piece_s
                self._on_content(self._piece_tokens)
            self._note_end(now_s, has_content or answer.reasons)

    def _note_end(self, now_s: float, grows: bool) -> None:
        """The answer is complete at the finish reason: only token counts follow, and the stream may stay
        open.
        """
        if self._complete and grows:
            # Some servers send a finish reason with each chunk; then only `[DONE]` ends the answer.
            self._complete, self._done_s, self._early_reason = False, 0.0, True
            self.grace_s = math.inf
        elif not self._early_reason and not self._complete and self._answer.finish_reason is not None:
            self._complete, self._done_s = True, now_s
        if self._complete:
            self.grace_s = USAGE_GRACE_S if self._answer.usage is NO_USAGE else CLOSE_GRACE_S

    def finished(self, error: Exception | None) -> None:
        if not self._done_s:
            self._done_s = self._clock.monotonic_s()
        complete = self._complete or (self._head and self._head.status != 200)
        if complete and error is not self._own_error:
            # At most the token counts, or part of the refusal's words, are missing.
            error = None
        super().finished(error)

    @property
    def progress(self) -> str:
        count = len(self._chunks_s)
        if not count:
            return ""
        pieces = counted(count, "piece of its answer", "pieces of its answer")
        return f", although it sent {pieces}; raise deadline_s, or lower sampling.max_tokens"

    def completion(self, sent_s: float) -> Completion:
        """Raises the `EngineError` of the cause."""
        head, answer, data = self._head, self._answer, bytes(self._data)
        assert head is not None
        if head.status != 200:
            raise error_from_status(
                head.status,
                data[:MAX_ERROR_BYTES] if head.is_plain else COMPRESSED,
                replica=self._url,
                model=self._model,
                quote=self._quote,
                retry_after_s=read_retry_after_s(head.get("Retry-After"), now_ms=self._clock.wall_ms()),
                location=head.get("Location"),
            )
        if self._parser is None and web_page(data, self._quote):
            raise error_from_status(200, data, replica=self._url, model=self._model, quote=self._quote)
        if self._foreign:
            kind, start = head.get("Content-Type") or "", data.decode("utf-8", "replace")
            raise ProtocolViolation(
                f"{self._url} sent {self._quote(kind)!r}, not an event stream: {self._quote(start)}"
            )
        if self._parser is None:
            answer.take_whole(data)
            self._on_content(1)
        else:
            if not self._saw_done:
                self._parser.end()
                if answer.finish_reason is None:
                    pieces = counted(len(self._chunks_s), "piece of content", "pieces of content")
                    raise Unreachable(
                        f"{self._url} ended its answer before it was complete: {pieces}, and neither a "
                        "finish_reason nor [DONE]"
                    )
            if not answer.has_choice:
                raise ProtocolViolation(f"{self._url} ended its stream without an answer")
        chunks_s = tuple(self._chunks_s)
        return Completion(
            answer.text,
            answer.finish_reason,
            answer.usage,
            Timing(sent_s, self._done_s, self._first_byte_s, chunks_s[0] if chunks_s else None, chunks_s),
            parse_load_header(head.get(LOAD_HEADER), observed_s=self._first_byte_s),
            self._url,
            answer.kv_transfer,
            reasoning=answer.reasoning,
            tool=answer.tool,
            refusal=answer.refusal,
        )


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
