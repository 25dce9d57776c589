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
    """One record of the stream.

    `raw` is the record exactly as the source gave it; a dead letter hands it back unchanged. `fields` is
    what templates see. `position` names the record within its source (such as `topic/3@1042`) where the
    source knows it, and is the same each time the record is read; None where it does not. `record_key` and
    `headers` are what a message system keeps beside a record, and go with it to a sink of that kind.

    >>> event = fb.Event(b'{"text": "No signal"}', {"text": "No signal"}, time_ms=1_772_438_488_000)
    >>> event.fields["text"]
    'No signal'
    """

    raw: bytes
    fields: Mapping[str, JSON]
    time_ms: int | None = None
    position: str | None = None
    record_key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was given up, with all that is needed to understand it and to feed it in again.

    `cause` is the stable word of the error's class, `detail` its message, `attempts` the calls that were
    made for it (0 when it never reached an engine).

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
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyedEvent:
    """An event on its way to an answer.

    `id` names its request; `key` is what ordering is kept by; `read_ms` is the wall-clock moment at which the
    pipeline got it from its source.
    """

    id: str
    key: str
    event: Event
    read_ms: int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat.

    >>> fb.Message("user", "By {{ channel }}: {{ text }}").role
    'user'
    """

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine picks tokens. `extra` goes into the request body as it is (`ignore_eos`, `priority`).

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
    `session` and `priority` (lower goes first) are a fleet's: what belongs together, and what is urgent.
    """

    id: str
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    schema: Mapping[str, JSON] | None = None
    session: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the engine reported them."""

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


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. `replica` is the address of who gave it, None where that is not known."""

    text: str
    finish_reason: str | None
    usage: Usage
    timing: Timing
    load: ReplicaLoad | None = None
    replica: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What leaves the operator for one event.

    `answer` is the parsed JSON value where the request had a schema, else the text. `read_ms` is the
    wall-clock moment at which the pipeline got the event from its source. `elapsed_s` and `called_s` are
    durations in seconds: from the first call to the answer, retries included, and of the last call alone.
    `reissued` says that the request was sent again after a recovery; `journaled`, that the result journal
    answered it. `replica` is the address of the replica that gave the answer, without secrets; None where
    none did or an older version wrote the result.

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
    reissued: bool = False
    journaled: bool = False
    record_key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    replica: str | None = None
