"""Reads one answer of a replica, in one piece or streamed, with the times of its pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

from forebay.clients.http.readers import (
    CLOSE_GRACE_S,
    EVENT_STREAM,
    JSON,
    AnswerHead,
    AwaitedReader,
    EnoughRead,
    check_plain,
)
from forebay.clock import Clock
from forebay.engine.failures import Redactor, error_from_status, read_retry_after_s, web_page
from forebay.engine.load import LOAD_HEADER, parse_load_header
from forebay.engine.prices import most_answer_tokens
from forebay.engine.protocol import DONE, NO_USAGE, AnswerReader, SseParser
from forebay.errors import ProtocolViolation, Unreachable
from forebay.records import Completion, Request, Timing
from forebay.untrusted_text import counted

MAX_ANSWER_BYTES = 8 << 20
MAX_EVENT_BYTES_PER_TOKEN = 4 << 10
"""A streamed token is an event of 200 to 300 bytes, and of 2,000 with log probabilities."""
MAX_STREAM_BYTES = 1 << 30
MAX_ERROR_BYTES = 64 << 10
COMPRESSED = b"(a compressed body)"
USAGE_GRACE_S = 10.0
"""How long the token counts may take after the finish reason: costs are computed from them."""


class CompletionReader(AwaitedReader):
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
