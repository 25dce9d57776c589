"""The values that flow through a pipeline: event, request, completion, result, dead letter.

All are frozen. `forebay.codec` serialises `Event`, `Result` and `DeadLetter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JSON = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the stream.

    Attributes:
        raw: The record exactly as the source provided it. A dead letter returns it unchanged.
        fields: The values for templates. All are JSON values.
        time_ms: The event's time in milliseconds since the Unix epoch, or None.
        position: The record's place in its source, such as `topic/3@1042`, the same each time it is read.
            None if the source has no places.
        record_key, headers: Key and headers of a message system, which are passed on to a sink of that kind.
            A header's value may be None.
        record_ms: The record's own time in Kafka, in milliseconds since the Unix epoch; None for other
            sources.

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
    """A failed record, with what is needed to understand it and to read it again.

    Attributes:
        raw: The record exactly as the source provided it; empty for a tombstone, which has the cause
            `tombstone`.
        cause: A stable word: that of the error's class in `forebay.errors`, or a program's own.
        detail: The error's message, at most 4,096 characters.
        attempts: Number of calls made for it; 0 if it never reached an engine.
        id, key: The record's id and key, if they were determined.
        time_ms, position, record_key, headers, record_ms: Those of the event.
        cut_bytes: Number of bytes missing at the end of `raw`, because the record was larger than the
            source's limit.
        cost_pico: What answers that could not be used cost, in 10^-12 of the currency of a pipeline's
            `prices`. None without prices, or without such answers.

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
    cost_pico: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """When an event passed each stage, by the wall clock, in microseconds since the Unix epoch.

    Attributes:
        read_us: The pipeline received it from its source. For outputs of a timer or a detector: it fired, or
            found it.
        accepted_us: The operator accepted it into its state.
        sent_us: The successful call was sent to the engine.
        first_token_us: Its first token arrived; None if the engine did not stream.
        answered_us: Its answer was complete.
        left_us: The operator emitted the answer.

    A time that does not apply is None. After a recovery, `read_us` and `accepted_us` are the original ones if
    the event was in the checkpoint.

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
    """An event that waits for its answer.

    `id` names its request; `key` determines ordering; `read_ms` is the wall-clock time at which the pipeline
    received it.
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
        role: The speaker.
        content: The text. In an `Inference` it is a template; in an `Ask` it is sent as it is.

    >>> fb.Message("user", "By {{ channel }}: {{ text }}").role
    'user'
    """

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine samples tokens.

    Attributes:
        max_tokens: Maximum length of an answer, in tokens.
        temperature: 0 always takes the likeliest token.
        top_p: Sample from the likeliest tokens that make up this share; None: the engine's default.
        seed: Seed of the engine's random choices; None: the engine's default.
        stop: Texts that end an answer.
        extra: More keys of the request body, sent as they are (`ignore_eos`, `min_p`).

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
    """One call to an engine: chat if `messages` is set, a plain completion if `prompt` is.

    `id` is derived from the record alone, so it stays the same after a recovery. `schema` is the JSON schema
    of the answer, None for free text. The rest is for a fleet: `session`, `priority` (lower goes first), the
    class of `service`, and `due_s`, when the answer is due on the monotonic clock.
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
    """Token counts reported by the engine; 0 if it reported none.

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

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one call on the monotonic clock, in seconds; None if it never happened.

    `first_byte_s`: response headers arrived. `first_token_s`: first chunk with content. `chunks_s`: all
    chunks with content. `done_s`: the answer was complete.
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
    """Load reported by a replica. `observed_s` is the monotonic time of the report."""

    observed_s: float
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None


KvHandover = Literal["transferred", "no_server", "prefill_failed", "no_kv_cache", "decode_failed"]
"""Whether an answer was decoded with a transferred KV cache, or why one replica did prefill and decoding.
`decode_failed`: the KV cache may have expired or been refused.
"""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer, possibly without content: `forebay.engine.retry` decides whether it is valid.

    `kv_transfer`: the engine's own description of where another replica finds the prompt's KV cache.
    `handover`: None without servers for prefill. `reasoning`: text before the answer, if the engine separates
    it. `tool`: name of the first tool that the model called. `refusal`: text with which it refused.
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
    """The outcome of one event.

    Attributes:
        id, key: The event's id and key.
        fields: The event's fields.
        answer: The answer's text. With a JSON schema: the parsed value. With a pydantic model: its instance.
        usage: Token counts, see `Usage`.
        attempts: Number of calls, including retries; for a `restored` event, since the restart.
        read_ms: When the pipeline read the event, in wall-clock milliseconds since the Unix epoch.
        elapsed_s: Seconds from the first call to the answer, including retries.
        called_s: Seconds of the last call alone.
        time_ms, position, record_key, headers, record_ms: Those of the event.
        finish_reason: Why the engine stopped, in its own word: `stop`; `length`: truncated at `max_tokens`.
        restored: The event came from a checkpoint after a restart. Its request may have been sent before the
            restart; checkpoints do not record that.
        journaled: The journal had the answer; no call was made.
        replica: Address of the replica that answered, without secrets. None if none did.
        timeline: When the event passed each stage (`read_us`, `accepted_us`, `sent_us`, `first_token_us`,
            `answered_us`, `left_us`); None unless the pipeline keeps them.
        reasoning: What the model wrote before its answer; None if nothing, or if the engine does not separate
            it.
        raw: The record exactly as the source provided it; empty if the result is not about one record. A sink
            that cannot write the result makes a dead letter of it.
        cost_pico: What its calls cost, retries included, in 10^-12 of the currency of a pipeline's `prices`;
            0 for an answer of the journal. None without prices, or without a call.

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
    cost_pico: int | None = None
