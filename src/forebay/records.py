"""The values that travel through a pipeline: event, request, completion, result, dead letter.

All are frozen. `Event`, `Result` and `DeadLetter` cross process and checkpoint borders as the bytes of
`forebay.codec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JSON = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the stream, as an operator reads it.

    Attributes:
        raw: The record exactly as the source gave it. A dead letter hands it back unchanged.
        fields: What templates see. All values are JSON values.
        time_ms: The event's time in milliseconds since the Unix epoch; None where it has none.
        position: The record's place in its source, such as `topic/3@1042`: the same each time the record is
            read. None where the source has no places.
        record_key, headers: What a message system keeps with a record. They go with it to a sink of that
            kind. The value of a header may be None.
        record_ms: The record's own time in Kafka, in milliseconds since the Unix epoch; None if it is not a
            record of Kafka.

    >>> event = fb.Event(b'{"text": "No signal"}', {"text": "No signal"}, time_ms=1_772_438_488_000)
    >>> event.fields["text"]
    'No signal'
    """

    raw: bytes
    fields: Mapping[str, JSON]
    time_ms: int | None = None
    position: str | None = None
    record_key: bytes | None = None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)
    record_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was given up, with what is needed to understand it and to feed it in again.

    Attributes:
        raw: The record exactly as the source gave it; empty for a tombstone, which has the cause `tombstone`.
        cause: A stable word: that of the error's class in `forebay.errors`, or one of a program's own.
        detail: The error's message, at most 4,096 characters.
        attempts: How many calls were made for it; 0 if it never reached an engine.
        id, key: The record's id and key, where the record got as far as having them.
        time_ms, position, record_key, headers, record_ms: Those of the event.
        cut_bytes: How many bytes of the record are missing at the end of `raw`: it was larger than its source
            keeps.

    >>> letter = fb.DeadLetter(b"not JSON", cause="malformed_record", detail="not JSON: line 1 column 1")
    >>> (letter.cause, letter.attempts)
    ('malformed_record', 0)
    """

    raw: bytes
    cause: str
    detail: str
    attempts: int = 0
    id: str | None = None
    key: str | None = None
    time_ms: int | None = None
    position: str | None = None
    record_key: bytes | None = None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)
    record_ms: int | None = None
    cut_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When an event passed each station, by the wall clock, in microseconds since the Unix epoch.

    Attributes:
        read_us: The pipeline got it from its source. Of what a timer gives: the timer fired. Of what a
            detector finds: it was found.
        accepted_us: The operator took it up, and kept it in its state from then on.
        sent_us: The call that was answered was sent to the engine.
        first_token_us: Its first token came; None where the engine did not stream.
        answered_us: Its answer was complete.
        left_us: The answer left the operator.

    A moment that did not come is None. After a recovery `read_us` and `accepted_us` are still those from
    before, where the event was in the checkpoint.

    >>> Timeline(read_us=1_000_000, accepted_us=1_000_400).accepted_us
    1000400
    """

    read_us: int
    accepted_us: int | None = None
    sent_us: int | None = None
    first_token_us: int | None = None
    answered_us: int | None = None
    left_us: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedEvent:
    """An event on its way to an answer.

    `id` names its request; `key` is what ordering is kept by; `read_ms` is the wall-clock moment at which the
    pipeline got it from its source. `timeline`: None where none is kept.
    """

    id: str
    key: str
    event: Event
    read_ms: int
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Attributes:
        role: Who speaks.
        content: The text. In an `Inference` it is a template, in an `Ask` it is sent as it is.

    >>> fb.Message("user", "By {{ channel }}: {{ text }}").role
    'user'
    """

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine picks tokens.

    Attributes:
        max_tokens: Maximum length of an answer, in tokens.
        temperature: 0 takes the likeliest token each time.
        top_p: Sample from the likeliest tokens that make up this share; None: the engine's default.
        seed: Seed of the engine's random choices; None: the engine's default.
        stop: Texts that end an answer.
        extra: Further keys of the request body, sent as they are (`ignore_eos`, `min_p`).

    >>> fb.Sampling(max_tokens=32, stop=("\\n",)).temperature
    0.0
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call to an engine: chat when `messages` is set, a plain completion when `prompt` is.

    `id` is derived from the record, never from a random number or the clock: the same record has the same
    id after a recovery. `schema` is the JSON schema that the answer must satisfy, None for free text.
    `session`, `priority` (lower goes first), `service` and `due_s` are a fleet's: what belongs together, what
    is urgent, the class of service, and when the answer is due, on the monotonic clock (None: nobody says).
    """

    id: str
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    schema: Mapping[str, JSON] | None = None
    session: str | None = None
    priority: int = 0
    service: str = ""
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the engine reported them; 0 where it reported none.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens of the answer.
        cached_tokens: Tokens of the prompt that were in the engine's prefix cache.

    >>> def cost(usage: fb.Usage) -> float:
    ...     return 0.1 * (usage.prompt_tokens - usage.cached_tokens) + 0.4 * usage.completion_tokens
    >>> cost(fb.Usage(prompt_tokens=30, completion_tokens=5))
    5.0
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments of one call on the monotonic clock, in seconds.

    `first_byte_s`: response headers arrived. `first_token_s`: first chunk with content. `chunks_s`: every
    chunk with content, in order. `done_s`: the answer was complete. A moment that never came is None.
    """

    sent_s: float
    done_s: float
    first_byte_s: float | None = None
    first_token_s: float | None = None
    chunks_s: tuple[float, ...] = ()

    @property
    def latency_s(self) -> float:
        return self.done_s - self.sent_s


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica said of itself. `observed_s` is the monotonic moment at which it was heard."""

    observed_s: float
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None


KvHandover = Literal["transferred", "no_server", "prefill_failed", "no_kv_cache", "decode_failed"]
"""How an answer came about where there are servers for prefill: decoded with the KV cache that one of them
handed over, or prefilled where it was decoded, because none of them worked, the prefill failed, it gave no KV
cache, or the request's first decoding failed: then the KV cache may have expired or been refused."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer, which may hold no content: `forebay.engine.content` decides whether it is one.

    `replica` is the address of the replica that answered, None if it is not known. `kv_transfer` is the
    engine's own description of where another replica finds the prompt's KV cache; None: nowhere. `handover`
    is None without servers for prefill. `reasoning` is what the model wrote before its answer (None: nothing,
    or the engine does not separate it), `tool` the name of the first tool that the model called, and
    `refusal` the text with which it refused.
    """

    text: str
    finish_reason: str | None
    usage: Usage
    timing: Timing
    load: ReplicaLoad | None = None
    replica: str | None = None
    kv_transfer: Mapping[str, JSON] | None = None
    handover: KvHandover | None = None
    reasoning: str | None = None
    tool: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What an operator gives for one event.

    Attributes:
        id, key: The event's id and key.
        fields: The event's fields.
        answer: The answer's text. With a JSON schema: the parsed value. With a pydantic model: its instance.
        usage: Token counts, see `Usage`.
        attempts: How many calls were made, retries included; of a `restored` event, those after the restart.
        read_ms: When the pipeline read the event, in wall-clock milliseconds since the Unix epoch.
        elapsed_s: Seconds from the first call to the answer, retries included.
        called_s: Seconds of the last call alone.
        time_ms, position, record_key, headers, record_ms: Those of the event.
        finish_reason: Why the engine stopped, in its own word: `stop`; `length`: the answer was cut at
            `max_tokens`.
        restored: The event was found in the checkpoint after a restart. Its request may have been sent before
            the restart; a checkpoint does not hold whether it was.
        journaled: The journal had the answer; no call was made.
        replica: Address of the replica that answered, without secrets; None if none did.
        timeline: When the event passed each station (`read_us`, `accepted_us`, `sent_us`, `first_token_us`,
            `answered_us`, `left_us`); None unless the pipeline keeps them.
        reasoning: What the model wrote before its answer; None: nothing, or the engine does not separate it.
        raw: The record exactly as the source gave it; empty if the result is not about one record. A sink
            that cannot take the result makes a dead letter of it.

    >>> def team(result: fb.Result) -> str:
    ...     return f"{result.key}: {result.answer['team']} ({result.usage.completion_tokens} tokens)"
    """

    id: str
    key: str
    fields: Mapping[str, JSON]
    answer: JSON
    usage: Usage
    attempts: int
    read_ms: int
    elapsed_s: float
    called_s: float
    time_ms: int | None = None
    position: str | None = None
    finish_reason: str | None = None
    restored: bool = False
    journaled: bool = False
    record_key: bytes | None = None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)
    replica: str | None = None
    timeline: Timeline | None = None
    reasoning: str | None = None
    raw: bytes = b""
    record_ms: int | None = None
