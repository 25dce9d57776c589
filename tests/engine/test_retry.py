from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay import errors
from forebay.engine import Deadline
from forebay.engine.answer import AnswerCheck
from forebay.engine.client import HttpEngine
from forebay.engine.retry import Outcome, RetryPolicy, check_content, complete_with_retry, jitter_unit
from forebay.records import Completion, Message, Request, Sampling, Timing, Usage
from forebay.testing.answers import REASONING, echo
from forebay.testing.engine import ScriptedEngine
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

POLICY = RetryPolicy()
REQUEST = Request("r1", "m", prompt="hi")
NEVER = [
    errors.BadRequest,
    errors.PromptTooLong,
    errors.Unauthorized,
    errors.ModelNotFound,
    errors.ToolCalled,
    errors.AnswerRefused,
    errors.ContentFiltered,
]
INVALID = [errors.InvalidAnswer, errors.EmptyAnswer, errors.OutOfTokens, errors.AnswerCut]
TO_THE_DEADLINE = [errors.Unreachable, errors.Overloaded, errors.RateLimited]
COUNTED = [errors.ServerFault, errors.AttemptTimeout, errors.ProtocolViolation]
ALL = [*NEVER, *TO_THE_DEADLINE, *COUNTED, *INVALID]

units = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1e4)


def delay(error: errors.EngineError, attempt: int = 1, **given: Any) -> float | None:
    about = {"alike": attempt, "left_s": inf, "jitter_unit": 0.0} | given
    return POLICY.next_delay_s(error, attempt=attempt, **about)


def test_every_class_of_error_has_a_rule() -> None:
    assert {*ALL, errors.EngineError} == {
        cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.EngineError)
    }


@pytest.mark.parametrize("cls", NEVER)
def test_hopeless_errors_are_not_retried(cls: type[errors.EngineError]) -> None:
    assert delay(cls("x", retry_after_s=1.0)) is None


@pytest.mark.parametrize("cls", TO_THE_DEADLINE)
def test_errors_that_are_not_the_requests_fault_do_not_count_as_tries(cls: type[errors.EngineError]) -> None:
    assert delay(cls("x"), attempt=100_000) == POLICY.max_backoff_s


@pytest.mark.parametrize(("cls", "tries"), [(cls, 5) for cls in COUNTED] + [(cls, 3) for cls in INVALID])
def test_other_errors_are_retried_a_limited_number_of_times(
    cls: type[errors.EngineError], tries: int
) -> None:
    assert [delay(cls("x"), attempt=n) is None for n in range(1, 8)] == [n >= tries for n in range(1, 8)]


def test_waits_grow_up_to_the_limit() -> None:
    waits = [delay(errors.Unreachable("x"), attempt=n) for n in range(1, 9)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_jitter_is_at_most_its_share() -> None:
    assert delay(errors.Unreachable("x"), attempt=3, jitter_unit=0.5) == pytest.approx(0.6)


def test_retry_after_is_respected() -> None:
    assert delay(errors.RateLimited("x", retry_after_s=40.0)) == 40.0
    assert delay(errors.RateLimited("x", retry_after_s=0.1)) == 0.25
    assert delay(errors.RateLimited("x", retry_after_s=40.0), left_s=30.0) is None


def test_after_retry_after_it_is_tried_regardless_of_attempts() -> None:
    assert delay(errors.RateLimited("x", retry_after_s=1.0), attempt=50) == 1.0
    assert delay(errors.RateLimited("x", retry_after_s=1.0), attempt=50, jitter_unit=0.5) == 1.125
    assert delay(errors.RateLimited("x", retry_after_s=0.9), attempt=50) == POLICY.max_backoff_s


def test_the_last_chances_before_the_deadline_are_used() -> None:
    assert delay(errors.Unreachable("x"), attempt=9, left_s=10.0) == 5.0
    assert delay(errors.Unreachable("x"), attempt=9, left_s=0.1) is None


@given(
    st.sampled_from(ALL),
    st.none() | seconds,
    st.integers(1, 10_000),
    st.fixed_dictionaries({"left_s": st.just(inf) | seconds, "jitter_unit": units}),
)
def test_wait_keeps_every_bound(
    cls: type[errors.EngineError],
    asked_s: float | None,
    attempt: int,
    about: dict[str, Any],
) -> None:
    wait = delay(cls("x", retry_after_s=asked_s), attempt, **about)
    if wait is None:
        return
    assert cls.retryable
    assert wait >= (asked_s or 0.0)
    assert wait <= max(POLICY.max_backoff_s, (asked_s or 0.0) + POLICY.base_s)
    assert wait < about["left_s"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_invalid_answers": 0},
        {"base_s": 0.0},
        {"factor": 0.5},
        {"max_backoff_s": 0.1},
        {"jitter": 1.1},
        {"base_s": float("nan")},
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.SettingError, match="retry"):
        RetryPolicy(**wrong)


def test_jitter_is_deterministic_per_attempt_and_varies_by_request() -> None:
    assert jitter_unit("r1", 1) == jitter_unit("r1", 1) != jitter_unit("r1", 2)
    mean = sum(jitter_unit(f"r{i}", 1) for i in range(1000)) / 1000
    assert 0.45 < mean < 0.55


class Replay:
    """An engine with one outcome per call, each taking a second of the clock."""

    def __init__(self, clock: ManualClock, outcomes: Iterable[errors.EngineError | str]) -> None:
        self.clock = clock
        self.outcomes = list(outcomes)
        self.timeouts_s: list[float] = []

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        sent_s = self.clock.monotonic_s()
        if deadline is not None:
            deadline.begin(sent_s)
            timeout_s = min(timeout_s, deadline.left_s(sent_s))
        self.timeouts_s.append(timeout_s)
        outcome = self.outcomes.pop(0)
        self.clock.advance(min(1.0, timeout_s))
        if isinstance(outcome, errors.EngineError):
            raise outcome
        return Completion(outcome, "stop", Usage(1, 2), Timing(sent_s, self.clock.monotonic_s()))

    async def close(self) -> None: ...


async def run(
    outcomes: Iterable[errors.EngineError | str], **given: Any
) -> tuple[Outcome, Replay, list[Any]]:
    clock = ManualClock()
    engine = Replay(clock, outcomes)
    seen: list[Any] = []
    settings = {"policy": POLICY, "timeout_s": 10.0, "clock": clock, "sleep": clock.sleep} | given
    outcome = await complete_with_retry(
        engine, REQUEST, on_retry=lambda *about: seen.append(about), **settings
    )
    return outcome, engine, seen


async def test_answer_in_the_first_attempt() -> None:
    outcome, engine, seen = await run(["hi"])
    assert (outcome.answer, outcome.attempts, outcome.error) == ("hi", 1, None)
    assert outcome.completion is not None
    assert (outcome.elapsed_s, outcome.called_s) == (1.0, 1.0)
    assert (engine.timeouts_s, seen) == ([10.0], [])


async def test_answer_after_failures() -> None:
    failures = [errors.Unreachable("a"), errors.ServerFault("b")]
    outcome, engine, seen = await run([*failures, "hi"])
    assert (outcome.answer, outcome.attempts) == ("hi", 3)
    assert [(error, attempt) for error, attempt, _ in seen] == [(failures[0], 1), (failures[1], 2)]
    assert engine.clock.slept_s == [wait for _, _, wait in seen]
    assert outcome.elapsed_s == pytest.approx(3.0 + sum(engine.clock.slept_s))
    assert outcome.called_s == 1.0


async def test_error_that_no_retry_fixes() -> None:
    outcome, engine, _ = await run([errors.BadRequest("no")])
    assert isinstance(outcome.error, errors.BadRequest)
    assert (outcome.completion, outcome.answer, outcome.attempts) == (None, None, 1)
    assert engine.clock.slept_s == []


async def test_invalid_answer_is_requested_again() -> None:
    check = AnswerCheck({"type": "integer"})
    outcome, _, _ = await run(["{", '"x"', " 7 "], check=check)
    assert (outcome.answer, outcome.attempts) == (7, 3)
    outcome, _, _ = await run(["{"] * 3, check=check)
    assert isinstance(outcome.error, errors.InvalidAnswer)
    assert (outcome.answer, outcome.completion, outcome.attempts) == (None, None, 3)


async def test_each_error_class_has_its_own_limit() -> None:
    check = AnswerCheck({"type": "integer"})
    outage = [errors.Unreachable("x")] * 8
    outcome, _, _ = await run([*outage, errors.ServerFault("warm-up"), "7"], check=check)
    assert (outcome.answer, outcome.attempts) == (7, 10)
    outcome, _, _ = await run(
        [*outage, "{", errors.ServerFault("x"), "{", errors.Overloaded("x"), "7"], check=check
    )
    assert (outcome.answer, outcome.attempts) == (7, 13)
    outcome, _, _ = await run([*outage, "{", "{", errors.ServerFault("x"), "{", "7"], check=check)
    assert isinstance(outcome.error, errors.InvalidAnswer)
    assert outcome.attempts == 12


async def test_last_error_is_reported_instead_of_a_timeout() -> None:
    for tenths in range(1, 200):
        outcome, _, _ = await run(
            [errors.RateLimited("slow down")] * 50, deadline_s=tenths / 10, timeout_s=5.0
        )
        assert isinstance(outcome.error, errors.RateLimited)


HTML = errors.ProtocolViolation("it sent HTML")


@pytest.mark.parametrize(
    ("found", "cause", "words"),
    [
        # No call was made after the one that failed.
        (
            [HTML, errors.Overloaded("no room", sent=False)],
            "protocol_violation",
            "it sent HTML; then no room",
        ),
        ([HTML, errors.Unreachable("none", sent=False)], "unreachable", "none; before that: it sent HTML"),
        ([HTML, errors.AttemptTimeout("late")], "timeout", "late; before that: it sent HTML"),
        # The last one has the whole cause.
        ([errors.Unreachable("gone"), errors.Unreachable("none", sent=False)], "unreachable", "none"),
        ([errors.Overloaded("no room", sent=False), errors.AttemptTimeout("late")], "timeout", "late"),
        ([HTML, errors.BadRequest("no")], "bad_request", "no"),
    ],
)
async def test_a_record_out_of_time_names_its_earlier_failure(
    found: list[errors.EngineError], cause: str, words: str
) -> None:
    once = RetryPolicy(max_attempts=2)
    outcome, _, _ = await run(found, policy=once, deadline_s=2.2)
    assert outcome.error is not None
    assert (outcome.error.cause, str(outcome.error)) == (cause, words)


async def test_outage_is_waited_for_until_the_deadline() -> None:
    outcome, engine, _ = await run([errors.Unreachable("x")] * 100, deadline_s=60.0)
    assert isinstance(outcome.error, errors.Unreachable)
    assert 55 < outcome.elapsed_s <= 60
    assert all(timeout_s > 0 for timeout_s in engine.timeouts_s)


async def test_call_time_is_limited_by_the_deadline() -> None:
    outcome, engine, _ = await run([errors.AttemptTimeout("x")], timeout_s=10.0, deadline_s=0.5)
    assert engine.timeouts_s == [0.5]
    assert (outcome.attempts, outcome.elapsed_s) == (1, 0.5)
    assert isinstance(outcome.error, errors.AttemptTimeout)


async def test_after_the_deadline_nothing_is_called() -> None:
    outcome, engine, _ = await run(["hi"], deadline_s=0.0)
    assert isinstance(outcome.error, errors.AttemptTimeout)
    assert (outcome.attempts, engine.timeouts_s) == (0, [])


async def test_queued_request_has_its_full_time_when_sent() -> None:
    class Slow(Replay):
        async def complete(
            self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
        ) -> Completion:
            assert deadline is not None
            if deadline.begun_s is None:
                deadline.wait(self.clock.monotonic_s(), counts=False)
                self.clock.advance(3600.0)
            return await super().complete(request, timeout_s=timeout_s, deadline=deadline)

    clock = ManualClock()
    engine = Slow(clock, [errors.Unreachable("x")] * 50)
    outcome = await complete_with_retry(
        engine, REQUEST, policy=POLICY, timeout_s=10.0, deadline_s=60.0, clock=clock, sleep=clock.sleep
    )
    assert isinstance(outcome.error, errors.Unreachable)
    assert 55 < outcome.elapsed_s <= 60
    engine = Slow(ManualClock(), ["hi"])
    outcome = await complete_with_retry(
        engine, REQUEST, policy=POLICY, timeout_s=10.0, deadline_s=60.0, clock=engine.clock
    )
    assert (outcome.answer, outcome.elapsed_s) == ("hi", 1.0)


async def test_silent_engine_is_retried_until_the_deadline() -> None:
    outcome, _, _ = await run([errors.Overloaded("full", sent=False)] * 100, deadline_s=60.0)
    assert isinstance(outcome.error, errors.Overloaded)


async def test_cancellation_and_bugs_pass_through() -> None:
    class Broken(Replay):
        def __init__(self, error: BaseException) -> None:
            super().__init__(ManualClock(), [])
            self.error = error

        async def complete(
            self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
        ) -> Completion:
            raise self.error

    for error in (asyncio.CancelledError(), ZeroDivisionError()):
        with pytest.raises(type(error)):
            await complete_with_retry(Broken(error), REQUEST, policy=POLICY, timeout_s=1.0)


@given(st.lists(st.sampled_from(ALL), max_size=12), st.just(inf) | st.floats(0.1, 100))
def test_every_run_ends_with_an_answer_or_an_error_within_the_deadline(
    classes: list[type[errors.EngineError]], deadline_s: float
) -> None:
    outcome, engine, seen = asyncio.run(run([*(cls("x") for cls in classes), "hi"], deadline_s=deadline_s))
    assert (outcome.error is None) == (outcome.answer == "hi")
    assert outcome.attempts == len(seen) + 1 == len(engine.timeouts_s)
    assert outcome.elapsed_s <= deadline_s + 1e-6


FAST = RetryPolicy(base_s=0.001, max_backoff_s=0.001)
NOW = ReplicaScript(delay=Fixed(0.0))
SCHEMA = {"type": "object", "properties": {"team": {"type": "string"}}, "required": ["team"]}
EACH = [
    ("reasoning", errors.OutOfTokens, 1, "128 reasoning tokens used up max_tokens (128)"),
    ("empty", errors.EmptyAnswer, 3, "the model stopped without content after 1 token (finish_reason stop)"),
    ("tool_calls", errors.ToolCalled, 1, "the model called the tool 'look_up' instead of answering"),
    ("refusal", errors.AnswerRefused, 1, "the model refused to answer: I cannot help with that."),
    ("content_filter", errors.ContentFiltered, 1, "a content filter of the engine stopped the answer"),
    ("abort", errors.ServerFault, 5, "the engine aborted its answer (finish_reason abort)"),
]


async def ask(
    text: str, *, stream: bool = True, chat: bool = True, schema: Any = None, **sampling: Any
) -> tuple[Outcome, int]:
    prompt: Any = {"messages": (Message("user", text),)} if chat else {"prompt": text}
    request = Request("r", "fake", sampling=Sampling(**sampling), schema=schema, **prompt)
    check = None if schema is None else AnswerCheck(schema)
    async with FakeReplica(NOW) as replica:
        engine = HttpEngine(replica.url, stream=stream)
        try:
            outcome = await complete_with_retry(engine, request, policy=FAST, timeout_s=30, check=check)
        finally:
            await engine.close()
        return outcome, replica.report().calls["r"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("fault", "error", "calls", "words"), EACH)
async def test_chat_without_an_answer_has_a_cause(
    fault: str, error: type[errors.EngineError], calls: int, words: str, stream: bool
) -> None:
    outcome, asked = await ask(f"hi ((fault:{fault}))", stream=stream)
    assert (type(outcome.error), outcome.completion, outcome.answer) == (error, None, None)
    assert words in str(outcome.error)
    assert (outcome.attempts, asked) == (calls, calls)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("reasoning", errors.OutOfTokens),
        ("empty", errors.EmptyAnswer),
        ("content_filter", errors.ContentFiltered),
        ("abort", errors.ServerFault),
    ],
)
async def test_plain_completion_without_an_answer_has_a_cause(
    fault: str, error: type[errors.EngineError], stream: bool
) -> None:
    outcome, _ = await ask(f"hi ((fault:{fault}))", stream=stream, chat=False)
    assert (type(outcome.error), outcome.completion) == (error, None)


async def test_transient_failures_are_requested_again() -> None:
    for fault in ("empty", "abort"):
        outcome, asked = await ask(f"hi ((fault:{fault}x1))")
        assert (outcome.error, asked) == (None, 2)


@pytest.mark.parametrize(
    ("sampling", "calls"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.7}, 2),
        ({"temperature": 0.7, "seed": 3}, 1),
        ({"extra": {"temperature": 0.7}}, 2),
        ({"temperature": 0.7, "extra": {"temperature": 0}}, 1),
    ],
)
@pytest.mark.parametrize("fault", ["reasoning", "length"])
async def test_answer_that_would_be_cut_again_is_not_requested(
    fault: str, sampling: dict[str, Any], calls: int
) -> None:
    outcome, asked = await ask(f"hi ((fault:{fault}x1))", schema=SCHEMA, **sampling)
    assert asked == calls
    if calls == 2:
        assert isinstance(outcome.answer, dict)
    else:
        assert isinstance(outcome.error, errors.AnswerCut if fault == "length" else errors.OutOfTokens)


@pytest.mark.parametrize("stream", [True, False])
async def test_cut_text_is_a_marked_answer(stream: bool) -> None:
    outcome, _ = await ask("hi ((fault:length))", stream=stream)
    assert outcome.completion is not None
    assert outcome.answer == echo("hi ((fault:length))")[:8]
    assert outcome.completion.finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_before_an_answer_is_kept(stream: bool) -> None:
    outcome, _ = await ask("hi ((fault:reasons))", stream=stream)
    assert outcome.completion is not None
    assert (outcome.answer, outcome.completion.reasoning) == (echo("hi ((fault:reasons))"), REASONING)


def completion(text: str = "", reason: str | None = "stop", used: int = 0, **more: Any) -> Completion:
    return Completion(text, reason, Usage(5, used), Timing(0.0, 1.0), **more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (completion(" \n\t"), "stopped without content after 0 tokens"),
        (completion(reason=None), "finish_reason None"),
        (
            completion(reasoning="Hm.\nWell.", used=4),
            "reasoned and then stopped without content .*: Hm. Well.",
        ),
        (completion(reason="length"), "9 tokens used up max_tokens"),
        (completion("\n\n", "length", 9), "9 tokens of white space used up max_tokens"),
        (completion(reason="length", used=5), "after 5 tokens the model's context was full"),
        (completion("a", tool=""), "called the tool ''"),
        (completion("a", "function_call"), "called the tool"),
    ],
)
def test_missing_answer_is_explained(found: Completion, words: str) -> None:
    with pytest.raises(errors.EngineError, match=words):
        check_content(found, Sampling(max_tokens=9))


def test_any_other_text_is_an_answer() -> None:
    for reason in ("stop", "length", "eos_token", None):
        check_content(completion(" a ", reason), Sampling())


@pytest.mark.parametrize("fault", [fault for fault, *_ in EACH])
async def test_in_process_engine_gives_the_same_results(fault: str) -> None:
    engine = ScriptedEngine(Fixed(0.0))
    request = Request("r", "m", messages=(Message("user", f"hi ((fault:{fault}))"),))
    outcome = await complete_with_retry(engine, request, policy=FAST, timeout_s=30)
    over_http, _ = await ask(f"hi ((fault:{fault}))")
    assert (type(outcome.error), str(outcome.error)) == (type(over_http.error), str(over_http.error))
