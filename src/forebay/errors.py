"""Every error that Forebay raises, as one tree under `ForebayError`.

A message says what is wrong, where, and what to do. Errors about one record or one request have a `cause`, a
stable word that dead letters and metrics carry. `retryable` says whether the same request may succeed if it
is sent again; `RetryPolicy` says how often it is.
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
    """An argument, a setting or a pipeline file is wrong. Nothing was started."""


class SetupError(ForebayError):
    """Something that must be installed is missing, or could not be installed."""


class LaunchError(ForebayError):
    """A local engine, the JVM or a cluster did not start, or died before it was ready."""


class DeployError(ForebayError):
    """A platform that a pipeline was to be put on is out of reach, or refused something. The message names
    the object, what is missing, and who can mend it."""


class PipelineFailed(ForebayError):
    """A pipeline started and failed. The message has the last cause that Flink gave."""


class FunctionFailed(PipelineFailed):
    """A function that you gave to a sink raised for an element of its stream, or what is to be written is not
    a JSON value. The message names the sink, the function and the element. The same element would fail
    again: `env.execute` ends the job when the same function has failed twice in a row."""


class ResultsLost(PipelineFailed):
    """Kafka aborted a transaction with results that a checkpoint counts as written. The message names the
    checkpoint to resume from: the results are then made again."""


class RecordError(ForebayError):
    """One record cannot become a request, or its result cannot be made. Never retried: the record becomes a
    dead letter."""

    cause: ClassVar[str] = "bad_record"


class MalformedRecord(RecordError):
    """The record is not what its source should hold (JSON, CSV, UTF-8), or exceeds the size limit."""

    cause = "malformed_record"


class MalformedDeadLetter(MalformedRecord):
    """The line, which was to be fed in again, is not a dead letter, or a part of its record was cut. It is
    read as a dead letter once more if it is fed in again."""

    cause = "malformed_dead_letter"


class NoRecord(RecordError):
    """The value has no record in the field that `payload` names: it is missing or null, as in a deletion."""

    cause = "no_record"


class UnreadFile(RecordError):
    """The rest of a followed file could not be read: it was removed, replaced, or is damaged."""

    cause = "unread_file"


class Tombstone(RecordError):
    """The record has a key and no value: in Kafka, the mark of something deleted."""

    cause = "tombstone"


class TemplateFailed(RecordError):
    """A template could not be rendered for this record: a field is missing, or the text is too long."""

    cause = "template_failed"


class NoKey(RecordError):
    """The record has no key (its field is missing, null or empty), and its operator keeps state for each
    key."""

    cause = "no_key"


class ProgramFailed(RecordError):
    """A stateful program raised an exception at a step for this record, or returned a step that is not
    valid."""

    cause = "program_failed"


class StateTooLarge(RecordError):
    """The state that a stateful program returned for a key exceeds the size limit."""

    cause = "state_too_large"


class NoTime(RecordError):
    """The event has no time, and its operator needs one."""

    cause = "no_time"


class TooLate(RecordError):
    """The event's time is too far behind the stream's."""

    cause = "late"


class TooFarAhead(RecordError):
    """The event's time is too far ahead of the stream's."""

    cause = "ahead"


class TooLargeForSink(RecordError):
    """The result, or what is written of it, is larger than the sink takes. The message names the size, the
    limit and the sink."""

    cause = "too_large_for_sink"


class EngineError(ForebayError):
    """A call to a replica failed.

    Attributes:
        retry_after_s: Seconds that the replica asked to wait (`Retry-After`); None: it did not say.
        sent: False if the request was sent to no replica, because none was free in time.
    """

    cause: ClassVar[str] = "engine_error"
    retryable: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    """The same request fails in the same way if nothing is left to chance (temperature 0, or a seed)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, sent: bool = True) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.sent = sent


class BadRequest(EngineError):
    """400 or 422: the replica refuses this request, and always will."""

    cause = "bad_request"


class PromptTooLong(BadRequest):
    """Prompt and answer together exceed the model's context."""

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
    """503, or 502 and 504 of a proxy: the replica cannot take the request now."""

    cause = "overloaded"
    retryable = True


class ServerFault(EngineError):
    """500, or an error in the middle of the answer: the replica failed on this request."""

    cause = "server_fault"
    retryable = True


class Unreachable(EngineError):
    """No connection, or it broke before the answer was complete."""

    cause = "unreachable"
    retryable = True


class AttemptTimeout(EngineError):
    """The replica made no progress for `timeout_s`, or the deadline passed."""

    cause = "timeout"
    retryable = True


class ProtocolViolation(EngineError):
    """The replica's bytes are not the OpenAI protocol, or exceed its size limits."""

    cause = "protocol_violation"
    retryable = True


class InvalidAnswer(EngineError):
    """The answer is complete, but it breaks the schema."""

    cause = "invalid_answer"
    retryable = True


class EmptyAnswer(InvalidAnswer):
    """The model stopped without content: the answer is empty, or white space only."""

    cause = "empty_answer"


class OutOfTokens(InvalidAnswer):
    """All of `max_tokens` was used up before any content came, as by reasoning. Not retried at temperature 0
    or with a seed: the same request would end in the same way."""

    cause = "out_of_tokens"
    deterministic = True


class AnswerCut(InvalidAnswer):
    """The answer has a schema and was cut at `max_tokens`. Not retried at temperature 0 or with a seed: the
    same request would be cut at the same place."""

    cause = "answer_cut"
    deterministic = True


class ToolCalled(EngineError):
    """The model called a tool instead of answering."""

    cause = "tool_called"


class AnswerRefused(EngineError):
    """The model refused to answer, and the engine reported it (`refusal`)."""

    cause = "answer_refused"


class ContentFiltered(EngineError):
    """A content filter of the engine stopped the answer. What had come by then is not an answer."""

    cause = "content_filtered"


MAX_DETAIL_CHARS = 4096


def detail_text(message: str) -> str:
    """A message as a dead letter takes it: at most `MAX_DETAIL_CHARS` characters, all of which UTF-8 has."""
    return message[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode()
