"""The OpenAI protocol in vLLM's dialect: a request as a body, the bytes of an answer as a text. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from forebay.engine.failures import Redactor, error_from_object
from forebay.errors import BadRequest, ProtocolViolation
from forebay.records import Request, Usage
from forebay.untrusted_text import counted

CHAT_PATH = "/v1/chat/completions"
PROMPT_PATH = "/v1/completions"
EMBED_PATH = "/v1/embeddings"
DONE = b"[DONE]"
KV_TRANSFER = "kv_transfer_params"
"""vLLM's field for the KV cache of a prompt, for another replica; only in answers in one piece."""
NO_USAGE = Usage()
MAX_TOKENS = 1 << 31
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
PART_BYTES = 16
"""What a piece of an answer counts in addition to its characters: many tiny pieces need memory, too."""


def request_body(request: Request, *, stream: bool, piece_tokens: int = 1) -> bytes:
    """`sampling.extra` may override any field except `stream`. `piece_tokens`: in each piece of a stream, for
    vLLM. Raises `BadRequest` if the request has both or neither of messages and prompt, or cannot be written
    as JSON.
    """
    if (request.prompt is None) == (not request.messages):
        raise BadRequest(f"request {request.id} needs either messages or a prompt, and not both")
    sampling = request.sampling
    body: dict[str, Any] = {"model": request.model}
    if request.prompt is None:
        body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    else:
        body["prompt"] = request.prompt
    body["max_tokens"] = sampling.max_tokens
    body["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = sampling.stop
    if request.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": request.schema, "strict": True},
        }
    if stream and piece_tokens > 1:
        body["stream_interval"] = piece_tokens
    body.update(sampling.extra)
    body["stream"] = stream
    if stream:
        body["stream_options"] = {"include_usage": True}
    try:
        return orjson.dumps(body, default=_plain)
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"request {request.id} cannot be written as JSON: {error}") from None


class AnswerReader:
    """Assembles one answer from the replica's documents.

    Raises `ProtocolViolation` if a document has the wrong shape, and the `EngineError` of an error object.
    """

    __slots__ = (
        "_chat",
        "_model",
        "_parts",
        "_quote",
        "_reasoning",
        "_refusal",
        "_replica",
        "finish_reason",
        "has_choice",
        "kv_transfer",
        "reasons",
        "size",
        "tool",
        "usage",
    )

    def __init__(self, request: Request, *, replica: str, quote: Redactor) -> None:
        self._chat = request.prompt is None
        self._model = request.model
        self._replica = replica
        self._quote = quote
        self._parts: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self.reasons = False
        self.size = 0
        self.tool: str | None = None
        self.finish_reason: str | None = None
        self.has_choice = False
        self.usage = NO_USAGE
        self.kv_transfer: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return _joined(self._parts)

    @property
    def reasoning(self) -> str | None:
        return _joined(self._reasoning) or None

    @property
    def refusal(self) -> str | None:
        return _joined(self._refusal) or None

    def take_chunk(self, data: bytes) -> bool:
        return self._take(data, "delta")

    def take_whole(self, data: bytes) -> None:
        self._take(data.removeprefix(BOM), "message")
        if not self.has_choice:
            raise self._wrong("it has no choice", data)

    def _take(self, data: bytes, part: str) -> bool:
        self.reasons = False
        try:
            document: Any = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            document = _with_halves(data)
            if document is None:
                raise self._wrong(_why_not_json(data, error), data) from None
        if not isinstance(document, dict):
            raise self._wrong("not an object", data)
        if "error" in document and document["error"] is not None:
            raise self._error(document["error"])
        choices = document.get("choices")
        if choices is None and document.get("object") == "error":
            raise self._error(document)
        if not isinstance(choices, list):
            raise self._wrong("it has no list of choices", data)
        usage = document.get("usage")
        if isinstance(usage, dict):
            self.usage = _read_usage(usage)
        transfer = document.get(KV_TRANSFER)
        if isinstance(transfer, dict):
            self.kv_transfer = transfer
        first = None
        for choice in choices:
            if not isinstance(choice, dict):
                raise self._wrong("a choice is not an object", data)
            # There are several if the request had `n` above 1.
            if first is None and choice.get("index", 0) == 0:
                first = choice
        return first is not None and self._take_choice(first, part, data)

    def _take_choice(self, choice: dict[str, Any], part: str, data: bytes) -> bool:
        reason = choice.get("finish_reason")
        if reason is not None:
            if not isinstance(reason, str):
                raise self._wrong("finish_reason is not a string", data)
            # Some servers send an empty one until the answer ends.
            self.finish_reason = _joined([reason]) or self.finish_reason
        if self._chat:
            holder = choice.get(part)
            if (
                part == "delta"
                and holder is None
                and choice.get("message") is None
                and choice.get("text") is None
            ):
                # Azure's asynchronous content filter sends its verdicts without one.
                return False
            if not isinstance(holder, dict):
                raise self._wrong(f"a choice has no {part}", data)
            self._take_other(holder)
            text = holder.get("content")
        else:
            text = choice.get("text")
        self.has_choice = True
        if text is None or text == "":
            return False
        if not isinstance(text, str):
            raise self._wrong("the content is not a string", data)
        self._parts.append(text)
        self.size += len(text) + PART_BYTES
        return True

    def _take_other(self, holder: dict[str, Any]) -> None:
        # vLLM and OpenRouter write `reasoning`; SGLang, llama.cpp, DeepSeek and older vLLMs the other name.
        for name in ("reasoning", "reasoning_content"):
            part = holder.get(name)
            if isinstance(part, str) and part:
                self._reasoning.append(part)
                self.size += len(part) + PART_BYTES
                self.reasons = True
                break
        refusal = holder.get("refusal")
        if isinstance(refusal, str):
            self._refusal.append(refusal)
            self.size += len(refusal) + PART_BYTES
        calls = holder.get("tool_calls") or [{"function": holder.get("function_call")}]
        call = calls[0] if isinstance(calls, list) else None
        function = call.get("function") if isinstance(call, dict) else None
        if self.tool is None and isinstance(function, dict):
            self.tool = _joined([str(function.get("name") or "")])

    def _error(self, error: object) -> Exception:
        return error_from_object(error, replica=self._replica, model=self._model, quote=self._quote)

    def _wrong(self, what: str, data: bytes) -> ProtocolViolation:
        detail = self._quote(data.decode("utf-8", "replace"))
        return ProtocolViolation(f"{self._replica} did not send a completion: {what}: {detail}")


def _joined(parts: list[str]) -> str:
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Halves of a character, each in its piece.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _with_halves(data: bytes) -> Any:
    """The document, if it is JSON except for half surrogates (`\\ud83d`), which orjson refuses; else None."""
    if b"\\ud" not in data.lower():
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _why_not_json(data: bytes, error: orjson.JSONDecodeError) -> str:
    if not data:
        return "an empty body"
    if data.startswith(GZIP):
        return "compressed, without a Content-Encoding"
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return f"not UTF-8 at byte {wrong.start}"
    return f"not JSON ({error}) in {counted(len(data), 'byte')}"


def _read_usage(usage: Mapping[str, Any]) -> Usage:
    """An answer is not lost for its counts: those that cannot be read are 0, as if they were missing."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
    return Usage(*map(_count, counts))


def _count(value: Any) -> int:
    # Some proxies write all numbers as floats.
    fit = type(value) in (int, float) and 0 <= value <= MAX_TOKENS and value == int(value)
    return int(value) if fit else 0


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


MAX_EVENT_BYTES = 1 << 20
OTHER_FIELDS = (b"event", b"id", b"retry")


class SseParser:
    """Parses server-sent events incrementally (HTML standard, 9.2.6).

    Stricter in one point: an unknown field name is an error, so that other data is not taken for a short
    stream. Holds at most `max_event_bytes` of an unfinished event.
    """

    __slots__ = (
        "_at_start",
        "_data",
        "_data_bytes",
        "_max_event_bytes",
        "_quote",
        "_replica",
        "_rest",
        "_skip_lf",
    )

    def __init__(self, *, replica: str, quote: Redactor, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._replica = replica
        self._quote = quote
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._skip_lf = False
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes. Raises `ProtocolViolation` if a line is not a field,
        or an event is too large.
        """
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        if b"\n" not in chunk and b"\r" not in chunk:
            self._rest += chunk
            self._bound()
            return []
        text = bytes(self._rest) + chunk if self._rest else chunk
        lines = text.splitlines(keepends=True)
        self._rest = bytearray(b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop())
        # The CR may be the first half of a CRLF; its event must not wait for the other half.
        self._skip_lf = text.endswith(b"\r")
        events: list[bytes] = []
        for ended in lines:
            line = ended.rstrip(b"\r\n")
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
                    self._data_bytes = 0
            else:
                self._take(line)
        self._bound()
        return events

    def end(self) -> None:
        """End the stream; drops an unfinished event. Raises `ProtocolViolation` if its unfinished line is
        garbage.
        """
        line = bytes(self._rest)
        if line and not any(field.startswith(line[:6]) for field in (b"data", *OTHER_FIELDS)):
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._bound()
        elif name and name not in OTHER_FIELDS:
            detail = self._quote(line.decode("utf-8", "replace"))
            raise ProtocolViolation(f"{self._replica} sent data that is not an event stream: {detail}")

    def _bound(self) -> None:
        if self._data_bytes + len(self._rest) > self._max_event_bytes:
            raise ProtocolViolation(
                f"{self._replica} sent an event of more than {self._max_event_bytes} bytes"
            )
