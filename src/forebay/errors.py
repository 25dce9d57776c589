"""All errors of Forebay, as one tree under `ForebayError`.

A message names what is wrong, where, and what to do. Errors about one record or request have a `cause`, a
stable word for dead letters and metrics. `retryable` errors may not occur again if the same request is sent
again; `RetryPolicy` limits the attempts.
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
    """Something that must be installed is missing or could not be installed."""


class LaunchError(ForebayError):
    """A local engine, the JVM or a cluster did not start, or died before it was ready."""


class DeployError(ForebayError):
    """A deployment platform is out of reach or refused something.

    The message names the object, what is missing, and who can fix it.
    """


class PipelineFailed(ForebayError):
    """A pipeline started and failed. The message has the last cause that Flink reported."""


class FunctionFailed(PipelineFailed):
    """Your function for a sink raised for an element, or its output is not a JSON value.

    The message names the sink, the function and the element. The same element would fail again, so
    `env.execute` ends the job when a function has failed twice in a row.
    """


class ResultsLost(PipelineFailed):
    """Kafka aborted a transaction with results that a checkpoint counts as written.

    The message names the checkpoint to resume from, which repeats them.
    """


class RecordError(ForebayError):
    """A record cannot become a request, or its result cannot be made.

    Never retried: the record becomes a dead letter.
    """

    cause: ClassVar[str] = "bad_record"


class MalformedRecord(RecordError):
    """The record is not valid (JSON, CSV, UTF-8), or exceeds the size limit."""

    cause = "malformed_record"


class MalformedDeadLetter(MalformedRecord):
    """A line of dead letters to be read again is not a dead letter, or its record was truncated.

    It becomes a dead letter again.
    """

    cause = "malformed_dead_letter"


class NoRecord(RecordError):
    """The field that `payload` names is missing or null, as in a deletion."""

    cause = "no_record"


class UnreadFile(RecordError):
    """The rest of a file could not be read: it was removed, replaced or shortened, or is damaged."""

    cause = "unread_file"


class Tombstone(RecordError):
    """The record has a key and no value, which marks a deletion in Kafka."""

    cause = "tombstone"


class TemplateFailed(RecordError):
    """A template could not be rendered for this record: a field is missing, or the text is too long."""

    cause = "template_failed"


class NoKey(RecordError):
    """The record has no key (missing, null or empty), and its operator keeps state per key."""

    cause = "no_key"


class ProgramFailed(RecordError):
    """A stateful program raised an exception for this record, or returned an invalid step."""

    cause = "program_failed"


class StateTooLarge(RecordError):
    """The state that a stateful program returned for a key exceeds the size limit."""

    cause = "state_too_large"


class OverBudget(RecordError):
    """The call could cost more than its key may still spend today, or too many calls of the key wait."""

    cause = "budget"


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
    """The result, in the form to be written, is too large for the sink.

    The message names the size, the limit and the sink.
    """

    cause = "too_large_for_sink"


class EngineError(ForebayError):
    """A call to a replica failed.

    Attributes:
        retry_after_s: Seconds that the replica asked to wait (`Retry-After`), or None.
        sent: False if no replica was free in time, so that the request was not sent.
    """

    cause: ClassVar[str] = "engine_error"
    retryable: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    """The same request fails in the same way if sampling is deterministic (temperature 0, or a seed)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, sent: bool = True) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.sent = sent


class BadRequest(EngineError):
    """400 or 422: the replica always refuses this request."""

    cause = "bad_request"


class PromptTooLong(BadRequest):
    """Prompt and answer together exceed the model's context."""

    cause = "prompt_too_long"


class Unauthorized(EngineError):
    """401 or 403: the API key is missing or wrong."""

    cause = "unauthorized"


class ModelNotFound(EngineError):
    """404, 405 or 501: the replica does not serve this model or this path."""

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
    """The response is not valid OpenAI protocol, or exceeds the size limits."""

    cause = "protocol_violation"
    retryable = True


class InvalidAnswer(EngineError):
    """The answer is complete but violates the schema."""

    cause = "invalid_answer"
    retryable = True


class EmptyAnswer(InvalidAnswer):
    """The model stopped without content: the answer is empty or white space."""

    cause = "empty_answer"


class OutOfTokens(InvalidAnswer):
    """`max_tokens` was used up before any content, for example by reasoning.

    Not retried at temperature 0 or with a seed, because the outcome would be the same.
    """

    cause = "out_of_tokens"
    deterministic = True


class AnswerCut(InvalidAnswer):
    """The answer has a schema and was truncated at `max_tokens`.

    Not retried at temperature 0 or with a seed, because the outcome would be the same.
    """

    cause = "answer_cut"
    deterministic = True


class ToolCalled(EngineError):
    """The model called a tool instead of answering."""

    cause = "tool_called"


class AnswerRefused(EngineError):
    """The model refused to answer, and the engine reported it (`refusal`)."""

    cause = "answer_refused"


class ContentFiltered(EngineError):
    """A content filter of the engine stopped the answer. The part received so far is not an answer."""

    cause = "content_filtered"


MAX_DETAIL_CHARS = 4096


def detail_text(message: str) -> str:
    """A message for a dead letter: truncated to `MAX_DETAIL_CHARS`, valid UTF-8."""
    return message[:MAX_DETAIL_CHARS].encode("utf-8", "replace").decode()
