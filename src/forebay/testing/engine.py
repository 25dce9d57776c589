"""An in-process engine without HTTP, for tests."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field

from forebay.engine import Deadline
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from forebay.records import Completion, Request, Timing, Usage
from forebay.testing.answers import Answers, answer_to, chosen_answer, parts_of, request_text, stopped, tokens
from forebay.testing.script import Delay, Faults, Mixture

ERRORS: dict[str, type[EngineError]] = {
    "400": BadRequest,
    "401": Unauthorized,
    "403": Unauthorized,
    "404": ModelNotFound,
    "422": BadRequest,
    "429": RateLimited,
    "500": ServerFault,
    "502": Overloaded,
    "503": Overloaded,
    "504": Overloaded,
    "too_long": PromptTooLong,
    "refuse": Unreachable,
    "cut": Unreachable,
    "garbage": ProtocolViolation,
    "binary": ProtocolViolation,
    "huge": ProtocolViolation,
    "error": ServerFault,
}


class ScriptedEngine:
    """An `Engine` that answers like `FakeReplica`. `calls`: by request id; `aborted`: cancelled or
    timed-out ones."""

    def __init__(
        self, delay: Delay | None = None, faults: Faults | None = None, answers: Answers | None = None
    ) -> None:
        self._delay = delay or Mixture()
        self._faults = faults or Faults()
        self._answers = answers
        self.calls: Counter[str] = Counter()
        self.in_flight = 0
        self.max_in_flight = 0
        self.completed = 0
        self.aborted = 0
        self._closed = False
        self._sleeping: set[asyncio.Future[bool]] = set()

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        if self._closed:
            raise Unreachable("the scripted engine is closed")
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        if deadline is not None:
            deadline.begin(sent_s)
            timeout_s = min(timeout_s, deadline.left_s(sent_s))
        id = request.id
        self.calls[id] += 1
        text = request_text(request)
        fault = self._faults.pick(id, text, self.calls[id])
        delay_s = math.inf if fault == "hang" else self._delay(id)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        wakeup: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(min(delay_s, timeout_s), _wake, wakeup)
        self._sleeping.add(wakeup)
        closed = True
        try:
            closed = await wakeup
        finally:
            timer.cancel()
            self._sleeping.discard(wakeup)
            self.in_flight -= 1
            self.aborted += closed
        if closed:
            raise Unreachable("the scripted engine was closed")
        if delay_s > timeout_s:
            self.aborted += 1
            raise AttemptTimeout(f"the scripted engine did not finish request {id} within {timeout_s:g} s")
        if fault in ERRORS:
            raise ERRORS[fault](f"scripted fault {fault}", retry_after_s=1.0 if fault == "429" else None)
        self.completed += 1
        chosen = None if self._answers is None else chosen_answer(self._answers, text, request.schema)
        answer, reason = (
            (chosen, "stop")
            if chosen is not None
            else answer_to(
                text,
                request.schema,
                max_tokens=request.sampling.max_tokens,
                ignore_eos=bool(request.sampling.extra.get("ignore_eos")),
            )
        )
        parts = parts_of(answer, reason, fault, max_tokens=request.sampling.max_tokens)
        parts = stopped(parts, request.sampling.stop)
        done_s = loop.time()
        return Completion(
            text=parts.text,
            finish_reason=parts.reason,
            usage=Usage(tokens(text), parts.tokens),
            timing=Timing(sent_s, done_s, done_s, done_s, (done_s,)),
            reasoning=parts.reasoning,
            tool=parts.tool,
            refusal=parts.refusal,
        )

    async def close(self) -> None:
        self._closed = True
        for wakeup in self._sleeping:
            if not wakeup.done():
                wakeup.set_result(True)


def _wake(wakeup: asyncio.Future[bool]) -> None:
    if not wakeup.done():
        wakeup.set_result(False)


@dataclass(frozen=True, slots=True)
class ScriptedEngineFactory:
    """An in-process engine without HTTP, as the `engine` of an `Inference`.

    Without `answers`, a prompt always gets the same answer: a value that satisfies the schema, or a short
    text with a hash of the prompt.

    Attributes:
        delay: Seconds to an answer by request id: `Fixed`, `Mixture`, or a picklable function.
        faults: Which calls fail.
        answers: A picklable function of the prompt (or of the contents of all messages, joined by line
            breaks), or a mapping of words to answers: the first entry whose words are in that text is used.
            An answer is a text, or with a schema a value or a pydantic model, whether it fits the schema or
            not. None: the default answer. The function may raise an `EngineError`.
        model: The model's name, if the `Inference` has none.

    >>> import forebay as fb
    >>> schema = {"type": "object", "properties": {"team": {"type": "string"}}}
    >>> engine = ScriptedEngineFactory(Fixed(0.01), answers={"router": {"team": "network"}})
    >>> ask = fb.Inference(engine, prompt="Which team? {{ text }}", schema=schema)
    """

    delay: Delay = field(default_factory=Mixture)
    faults: Faults = field(default_factory=Faults)
    answers: Answers | None = None
    model: str = "scripted"

    def __call__(self) -> ScriptedEngine:
        return ScriptedEngine(self.delay, self.faults, self.answers)
