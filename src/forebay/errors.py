"""Every error that Forebay raises, as one tree under `ForebayError`.

A message names the thing, the value found and the mend. `EngineError` has one class per cause; its class
attribute `retryable` says whether the same request may succeed when it is sent again, and `cause` is the
stable word that dead letters and metrics carry.
"""

from __future__ import annotations

from typing import ClassVar


class ForebayError(Exception):
    """Base of all errors that Forebay raises on purpose.

    >>> try:
    ...     fb.Inference("gpu-box:8000", prompt="{{ text }}")
    ... except fb.ForebayError as error:
    ...     print(type(error).__name__)
    SettingError
    """


class SettingError(ForebayError):
    """A setting, option or pipeline file is wrong; nothing was started."""


class SetupError(ForebayError):
    """Something that must be installed is missing or could not be installed."""


class LaunchError(ForebayError):
    """A local replica could not be started, or died before it was healthy."""


class PipelineFailed(ForebayError):
    """A running pipeline ended without finishing; the message holds Flink's last cause."""


class ResultsLost(PipelineFailed):
    """Kafka gave up a transaction with results that a checkpoint counts as written; the message says which
    checkpoint to resume from to have them made again."""


class RecordError(ForebayError):
    """One record cannot be turned into a request. Never retried; the record becomes a dead letter."""

    cause: ClassVar[str] = "bad_record"


class MalformedRecord(RecordError):
    """The bytes are not what the source promised (JSON, CSV, UTF-8), or exceed its size limit."""

    cause = "malformed_record"


class TemplateFailed(RecordError):
    """The prompt template could not be rendered for this record: a field is missing or a limit was hit."""

    cause = "template_failed"


class ProgramFailed(RecordError):
    """A stateful program raised, or returned what cannot be done, at a step that this record led to."""

    cause = "program_failed"


class StateTooLarge(RecordError):
    """The state that a stateful program wanted to keep for a key exceeds the size limit."""

    cause = "state_too_large"


class NoTime(RecordError):
    """The event has no time, and what reads it works by time."""

    cause = "no_time"


class TooLate(RecordError):
    """The event's time is too far behind the stream's."""

    cause = "late"


class TooFarAhead(RecordError):
    """The event's time is too far ahead of the stream's."""

    cause = "ahead"


class EngineError(ForebayError):
    """A call to a replica failed. `retry_after_s` is the replica's own wish, where it stated one.

    Not `sent`: the request has waited for a replica in vain, and was sent to none.
    """

    cause: ClassVar[str] = "engine_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after_s: float | None = None, sent: bool = True) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.sent = sent


class BadRequest(EngineError):
    """400 or 422: the replica will never take this request."""

    cause = "bad_request"


class PromptTooLong(BadRequest):
    """The prompt and the asked-for answer exceed the model's context."""

    cause = "prompt_too_long"


class Unauthorized(EngineError):
    """401 or 403: the API key is missing or wrong."""

    cause = "unauthorized"


class ModelNotFound(EngineError):
    """404: the replica does not serve this model or this path."""

    cause = "model_not_found"


class RateLimited(EngineError):
    """429: too many requests for this key."""

    cause = "rate_limited"
    retryable = True


class Overloaded(EngineError):
    """503 (or 502, 504 of a proxy): the replica cannot take the request now."""

    cause = "overloaded"
    retryable = True


class ServerFault(EngineError):
    """500, or an error reported in mid-stream: the replica failed on this request."""

    cause = "server_fault"
    retryable = True


class Unreachable(EngineError):
    """No connection could be made, or it broke before the answer was complete."""

    cause = "unreachable"
    retryable = True


class AttemptTimeout(EngineError):
    """The replica did not finish within the time allowed for one attempt."""

    cause = "timeout"
    retryable = True


class ProtocolViolation(EngineError):
    """The replica's bytes are not the OpenAI protocol, or exceed its size limits."""

    cause = "protocol_violation"
    retryable = True


class InvalidAnswer(EngineError):
    """The answer is complete but breaks the output schema."""

    cause = "invalid_answer"
    retryable = True


MAX_DETAIL_CHARS = 4096


def detail_text(message: str) -> str:
    """A message as a dead letter takes it: at most `MAX_DETAIL_CHARS` characters, all of which UTF-8 has."""
    return message[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode()
