"""Which errors of a request are retried, how often and after which delays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline, Engine
from forebay.engine.answer import CUT, AnswerCheck
from forebay.engine.failures import Redactor
from forebay.errors import (
    AnswerRefused,
    AttemptTimeout,
    ContentFiltered,
    EmptyAnswer,
    EngineError,
    InvalidAnswer,
    OutOfTokens,
    Overloaded,
    RateLimited,
    ServerFault,
    SettingError,
    ToolCalled,
    Unreachable,
)
from forebay.records import JSON, Completion, Request, Sampling, Usage
from forebay.untrusted_text import counted

QUOTE = Redactor()

FILTERED = "content_filter"
TOOLS = frozenset(("tool_calls", "function_call"))
BROKEN_OFF = frozenset(("abort", "error"))


def check_content(completion: Completion, sampling: Sampling) -> None:
    """Raise the `EngineError` of the cause if `completion` contains no answer. A cut text is an answer."""
    reason = completion.finish_reason
    if completion.refusal:
        raise AnswerRefused(f"the model refused to answer: {QUOTE(completion.refusal)}")
    if reason == FILTERED:
        raise ContentFiltered(
            f"a content filter of the engine stopped the answer (finish_reason {FILTERED}) after "
            f"{len(completion.text)} characters"
        )
    if completion.tool is not None or reason in TOOLS:
        raise ToolCalled(
            f"the model called the tool {QUOTE(completion.tool or '')!r} instead of answering; remove "
            f"`tools` from sampling.extra, or set `tool_choice: none` there"
        )
    if reason in BROKEN_OFF:
        raise ServerFault(f"the engine aborted its answer (finish_reason {reason})")
    if not completion.text.strip():
        raise _no_content(completion, sampling)


def repeats(sampling: Sampling) -> bool:
    extra = sampling.extra
    temperature = extra.get("temperature", sampling.temperature)
    return temperature == 0 or extra.get("seed", sampling.seed) is not None


def _no_content(completion: Completion, sampling: Sampling) -> OutOfTokens | EmptyAnswer:
    used = completion.usage.completion_tokens
    thought = completion.reasoning
    found = f": {QUOTE(thought)}" if thought else ""
    if completion.finish_reason == CUT:
        spent = "reasoning tokens" if thought else "tokens of white space" if completion.text else "tokens"
        if used and used < sampling.max_tokens:
            return OutOfTokens(
                f"no content: after {used} {spent} the model's context was full; shorten the prompt, or "
                f"start the engine with a longer context{found}"
            )
        less = " or let the model reason less" if thought else ""
        return OutOfTokens(
            f"no content: {used or sampling.max_tokens} {spent} used up max_tokens ({sampling.max_tokens}); "
            f"raise sampling.max_tokens{less}{found}"
        )
    what = "reasoned and then stopped without content" if thought else "stopped without content"
    return EmptyAnswer(
        f"no content: the model {what} after {counted(used, 'token')} "
        f"(finish_reason {completion.finish_reason}){found}"
    )


OnRetry = Callable[[EngineError, int, float], None]
"""Called with the error, the number of the failed attempt (from 1) and the seconds until the next."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a request is retried.

    Errors that are not the request's fault (`Unreachable`, `Overloaded`, `RateLimited`) are retried until the
    deadline, other retryable ones within the limits below, the rest never. The n-th retry waits
    `base_s * factor^(n-1)` seconds, at most `max_backoff_s`, less a random part. If the engine sent a
    `Retry-After` of a second or more, the wait is that long for any n, and up to `base_s` longer; after a
    shorter one it is at least that long.

    Attributes:
        max_attempts: Maximum number of calls for one request; 1: no retry.
        max_invalid_answers: Maximum number of answers that break the schema or are empty. An answer cut at
            `max_tokens` is not retried at temperature 0 or with a seed.
        base_s: Seconds before the first retry.
        factor: Factor between one wait and the next.
        max_backoff_s: Maximum wait in seconds.
        jitter: Random part of a wait, as a share: 0: none, 1: all of it ("full jitter").

    Raises `SettingError` for values out of range.

    >>> fb.RetryPolicy(max_invalid_answers=2).max_attempts
    5
    """

    max_attempts: int = 5
    max_invalid_answers: int = 3
    base_s: float = 0.25
    factor: float = 2.0
    max_backoff_s: float = 15.0
    jitter: float = 0.8

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.max_invalid_answers < 1:
            raise SettingError("retry: max_attempts and max_invalid_answers must be at least 1 (1: no retry)")
        if not (self.base_s > 0 and self.factor >= 1 and self.max_backoff_s >= self.base_s):
            raise SettingError("retry: expected base_s > 0, factor >= 1 and max_backoff_s >= base_s")
        if not 0 <= self.jitter <= 1:
            raise SettingError(f"retry: jitter is {self.jitter}; expected a share of 0 to 1")

    def next_delay_s(
        self,
        error: EngineError,
        *,
        attempt: int,
        alike: int,
        left_s: float,
        jitter_unit: float,
    ) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1) failed with `error`; None to give up.

        `alike`: how many attempts, this one included, failed with the same limit. The wait always ends before
        the deadline, in `left_s`: a longer backoff becomes half of the time left, and a longer `Retry-After`
        means no retry. `jitter_unit` is in [0, 1).
        """
        if not error.retryable or alike >= self.limit(error):
            return None
        # The exponent is bounded so that a long outage cannot overflow a float.
        backoff_s = min(self.max_backoff_s, self.base_s * self.factor ** min(attempt - 1, 64))
        delay_s = backoff_s * (1 - self.jitter * jitter_unit)
        asked_s = error.retry_after_s
        if asked_s is not None:
            # Spread calls that the replica sent away to the same moment.
            spread_s = asked_s + self.base_s * jitter_unit
            delay_s = spread_s if names_time(error) else max(delay_s, spread_s)
        # A last attempt with less time than that would end by the deadline, and hide the true cause.
        if delay_s + self.base_s < left_s:
            return delay_s
        if left_s < self.base_s or (asked_s is not None and asked_s >= left_s / 2):
            return None
        return left_s / 2

    def limit(self, error: EngineError) -> float:
        if isinstance(error, Unreachable | Overloaded | RateLimited):
            return inf
        return self.max_invalid_answers if isinstance(error, InvalidAnswer) else self.max_attempts


MIN_NAMED_S = 1.0


def names_time(error: EngineError) -> bool:
    """Whether the engine sent a `Retry-After` of a second or more. A shorter one means "at once"."""
    return error.retry_after_s is not None and error.retry_after_s >= MIN_NAMED_S


class Outcome(NamedTuple):
    """How a request ended: `completion` and `answer`, or the last `error`; never both.

    `answer`: the parsed JSON value if it was checked, else the text. `elapsed_s`: from the first call;
    `called_s`: the last one. `usages`: of all completions.
    """

    attempts: int
    elapsed_s: float
    called_s: float
    completion: Completion | None = None
    answer: JSON = None
    error: EngineError | None = None
    usages: tuple[Usage, ...] = ()


async def complete_with_retry(
    engine: Engine,
    request: Request,
    *,
    policy: RetryPolicy,
    timeout_s: float,
    deadline_s: float = inf,
    check: AnswerCheck | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_retry: OnRetry | None = None,
) -> Outcome:
    """Call `engine` until `request` is answered, or the policy or the deadline ends it.

    `timeout_s`: how long a call may make no progress. `deadline_s`: for all calls and pauses, without the
    time for which a working engine holds the first one back. An answer that `check` rejects is a failure.
    Never raises engine errors; cancellation aborts the call.
    """
    time = clock or SystemClock()
    if deadline_s <= 0:
        return Outcome(0, 0.0, 0.0, error=AttemptTimeout(f"the deadline of request {request.id} had passed"))
    deadline = Deadline(deadline_s)
    attempt = calls = 0
    failed = {InvalidAnswer: 0, EngineError: 0}
    earlier: EngineError | None = None
    usages: tuple[Usage, ...] = ()
    while True:
        attempt += 1
        sent_s = time.monotonic_s()
        # Unless the engine overrides it.
        deadline.wait(sent_s, counts=True)
        try:
            completion = await engine.complete(request, timeout_s=timeout_s, deadline=deadline)
            usages = (*usages, completion.usage)
            check_content(completion, request.sampling)
            answer: JSON = completion.text
            if check is not None:
                answer = check(completion.text, finish_reason=completion.finish_reason)
            elapsed_s = _elapsed_s(deadline, completion.timing.sent_s, time.monotonic_s())
            called_s = completion.timing.latency_s
            return Outcome(calls + 1, elapsed_s, called_s, completion, answer, usages=usages)
        except EngineError as error:
            failed_s = time.monotonic_s()
            calls += error.sent
            if error.sent:
                deadline.begin(sent_s)
            deadline.wait(failed_s, counts=True)
            kind = InvalidAnswer if isinstance(error, InvalidAnswer) else EngineError
            failed[kind] += policy.limit(error) < inf
            delay_s = None
            if not (error.deterministic and repeats(request.sampling)):
                delay_s = policy.next_delay_s(
                    error,
                    attempt=attempt,
                    alike=failed[kind],
                    left_s=deadline.left_s(failed_s),
                    jitter_unit=jitter_unit(request.id, attempt),
                )
            if delay_s is None:
                elapsed_s = _elapsed_s(deadline, failed_s, failed_s)
                final = _with_earlier(error, earlier)
                return Outcome(calls, elapsed_s, failed_s - sent_s, error=final, usages=usages)
            if error.sent:
                earlier = error
            if on_retry is not None:
                on_retry(error, attempt, delay_s)
        await sleep(delay_s)


def _with_earlier(last: EngineError, earlier: EngineError | None) -> EngineError:
    ran_out = isinstance(last, AttemptTimeout) or not last.sent
    if earlier is None or not ran_out or type(earlier) is type(last):
        return last
    if isinstance(last, Overloaded):
        # The record waited for a retry, which is not what is wrong with it.
        return type(earlier)(f"{earlier}; then {last}")
    return type(last)(f"{last}; before that: {earlier}")


def _elapsed_s(deadline: Deadline, sent_s: float, now_s: float) -> float:
    return now_s - (sent_s if deadline.begun_s is None else deadline.begun_s)


def jitter_unit(request_id: str, attempt: int) -> float:
    name = f"{attempt}\0{request_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=6).digest(), "big") / 2**48
