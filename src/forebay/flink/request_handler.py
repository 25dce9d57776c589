"""From an event to its answer: render the prompt, check the journal, call the engine, check the answer."""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from forebay.clock import Clock, SystemClock
from forebay.engine import Engine, EngineFactory
from forebay.engine.answer import Accept, AnswerCheck
from forebay.engine.call_trace import CALL_TRACE
from forebay.engine.inference_gateway import GatewayEngine
from forebay.engine.journal import Journal, JournalConfig
from forebay.engine.prices import TokenPrices, most_answer_tokens, most_prompt_tokens
from forebay.engine.prompt import FieldTemplate, PromptTemplate, request_hash
from forebay.engine.retry import RetryPolicy, check_content, complete_with_retry
from forebay.errors import BadRequest, EngineError, ProgramFailed, RecordError, SettingError, TemplateFailed
from forebay.fleet.autoscale.base import ServiceClass
from forebay.flink.metrics import InferenceCounters, ScalingGauges
from forebay.flink.request_pool import Answer, Handler
from forebay.records import (
    JSON,
    Completion,
    Event,
    KeyedEvent,
    Message,
    Request,
    Result,
    Sampling,
    Timeline,
    Timing,
    Usage,
)
from forebay.stateful.turns import ProgramRequest, letter_of_item, result_of

if TYPE_CHECKING:
    # Only tasks need a fleet, which imports numpy.
    from forebay.fleet.autoscale.settings import ScalingLink
    from forebay.flink.demand import Clients

PRIORITY = re.compile(r"-?[0-9]{1,9}")
TOKENS = re.compile(r"0*[1-9][0-9]{0,6}")


@dataclass(frozen=True)
class EventClasses:
    """`template` renders the name of an event's service class; if that fails, `default` applies."""

    template: FieldTemplate
    default: ServiceClass
    others: tuple[ServiceClass, ...]

    def of(self, item: KeyedEvent) -> ServiceClass:
        try:
            name = self.template.render(item.event.fields, time_ms=item.event.time_ms)
        except TemplateFailed:
            return self.default
        return next((each for each in self.others if each.name == name), self.default)


def due_s(item: KeyedEvent, service: ServiceClass, clock: Clock) -> float:
    """On the monotonic clock, in whole seconds: among those due in the same second, priority decides."""
    # A clock that was set back would make the event's deadline later. One that is set forward makes
    # waiting events overdue at once.
    age_s = max(0.0, (clock.wall_ms() - item.read_ms) / 1000)
    return float(math.floor(clock.monotonic_s() + service.slo_s - age_s))


@dataclass(frozen=True)
class InferenceSpec:
    """How an event becomes an answer. Picklable; holds no secret and no connection.

    `prompt` None: requests bring their messages. `accept` checks each answer that fits `schema`, and raises
    `InvalidAnswer`. `deadline_s` bounds all calls for one record, and restarts with a restore. `priority`:
    lower first. `scaling` needs a fleet. `classes`: send in the order in which events are due. `budget_pico`:
    a key's daily limit, with `prices`. `opentelemetry`: name of the service for traces; None: no traces.
    """

    engine: EngineFactory
    model: str
    prompt: PromptTemplate | None = None
    schema: Mapping[str, JSON] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    timeout_s: float = 60.0
    deadline_s: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    journal: JournalConfig | None = None
    priority: FieldTemplate | None = None
    send_priority: bool = False
    answer_tokens: FieldTemplate | None = None
    accept: Accept | None = None
    scaling: ScalingLink | None = None
    classes: EventClasses | None = None
    prices: TokenPrices | None = None
    budget_pico: int | None = None
    opentelemetry: str | None = None

    def __post_init__(self) -> None:
        if self.budget_pico is not None and self.prices is None:
            raise SettingError("budget_pico: expected prices with it, found none: add what a token costs")

    def request(self, item: KeyedEvent) -> Request:
        """Raises `RecordError` if the record cannot become a request."""
        ask = item.ask if isinstance(item, ProgramRequest) else None
        rendered = self._rendered(item) if ask is None else ask.messages
        sampling = self._sampling(item.event) if ask is None else ask.sampling or self.sampling
        priority = self._priority(item.event)
        if self.send_priority:
            sampling = replace(sampling, extra={**sampling.extra, "priority": priority})
        return Request(
            id=item.id,
            model=self.model,
            messages=() if isinstance(rendered, str) else rendered,
            prompt=rendered if isinstance(rendered, str) else None,
            sampling=sampling,
            schema=self.schema if ask is None else ask.schema,
            # Routes a key's calls to its cached prefix.
            session=item.key or None,
            priority=priority,
        )

    def cost_pico(self, request: Request, usage: Usage) -> int:
        assert self.prices is not None
        prompt = 0 if usage.prompt_tokens else most_prompt_tokens(request)
        answer = 0 if usage.completion_tokens else most_answer_tokens(request.sampling)
        return self.prices.cost_pico(usage) + self.prices.most_pico(prompt, answer)

    def most_pico(self, item: KeyedEvent) -> int:
        try:
            return self.cost_pico(self.request(item), Usage())
        except (RecordError, BadRequest):
            return 0

    def _rendered(self, item: KeyedEvent) -> tuple[Message, ...] | str:
        if self.prompt is None:
            raise RecordError("the call has no prompt template to make a request of an event")
        return self.prompt.render(item.event.fields, key=item.key or None, time_ms=item.event.time_ms)

    def _sampling(self, event: Event) -> Sampling:
        text = self._whole(self.answer_tokens, event, TOKENS, "a whole number above 0")
        return self.sampling if text is None else replace(self.sampling, max_tokens=text)

    def _priority(self, event: Event) -> int:
        return self._whole(self.priority, event, PRIORITY, "a whole number") or 0

    @staticmethod
    def _whole(
        template: FieldTemplate | None, event: Event, form: re.Pattern[str], expected: str
    ) -> int | None:
        if template is None:
            return None
        text = template.render(event.fields, time_ms=event.time_ms)
        if not form.fullmatch(text):
            raise TemplateFailed(f"{template.what}: expected {expected}, found {text[:40]!r}")
        return int(text)


class RequestHandler:
    def __init__(self, call: InferenceSpec, counts: InferenceCounters, clock: Clock | None = None) -> None:
        from forebay.fleet.disaggregated import DisaggregatedEngine
        from forebay.fleet.engine import FleetEngine

        self._call = call
        self._counts = counts
        self._clock = clock or SystemClock()
        self._engine: Engine = call.engine()
        if isinstance(self._engine, FleetEngine | DisaggregatedEngine):
            self._engine.client.on_usable = counts.replicas.set
        elif isinstance(self._engine, GatewayEngine):
            self._engine.on_usable = counts.replicas.set
        self._check = AnswerCheck(call.schema, accept=call.accept) if call.schema is not None else None
        self._journal = Journal(call.journal, clock=self._clock) if call.journal is not None else None

    @property
    def engine(self) -> Engine:
        return self._engine

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        pass

    async def answer(self, item: KeyedEvent) -> Answer:
        """Raises nothing that a record can cause."""
        try:
            request = self._in_its_class(self._call.request(item), item)
            check = self._check_of(request)
        except RecordError as error:
            return letter_of_item(item, error.cause, str(error), attempts=0)
        hash = request_hash(request) if self._journal is not None else ""
        if self._journal is not None:
            known = await self._journal.get(hash)
            if known is not None:
                try:
                    answer = _parse(known, request.sampling, check)
                except EngineError:
                    pass
                else:
                    self._counts.journal_hits += 1
                    timeline = self._answered(item, None)
                    cost = None if self._call.prices is None else 0
                    return result(
                        item, known, answer, attempts=0, journaled=True, timeline=timeline, cost_pico=cost
                    )
        self._counts.calls += 1
        outcome = await complete_with_retry(
            self._engine,
            request,
            policy=self._call.retry,
            timeout_s=self._call.timeout_s,
            deadline_s=self._call.deadline_s,
            check=check,
            clock=self._clock,
            sleep=asyncio.sleep,
            on_retry=self._note_retry,
        )
        cost_pico = self._paid(request, outcome.usages)
        if outcome.completion is None:
            failure = outcome.error or EngineError("the engine gave neither an answer nor an error")
            letter = letter_of_item(item, failure.cause, str(failure), attempts=outcome.attempts)
            return replace(letter, cost_pico=cost_pico)
        self._counts.answered(outcome.completion)
        if self._journal is not None:
            # Awaited, so that after a kill the journal has every answer that was emitted.
            await self._journal.put(hash, outcome.completion)
            self._counts.journal_failures = self._journal.failures
        return result(
            item,
            outcome.completion,
            outcome.answer,
            attempts=outcome.attempts,
            elapsed_s=outcome.elapsed_s,
            called_s=outcome.called_s,
            timeline=self._answered(item, outcome.completion.timing),
            cost_pico=cost_pico,
        )

    def _paid(self, request: Request, usages: Sequence[Usage]) -> int | None:
        if self._call.prices is None or not usages:
            return None
        cost_pico = sum(self._call.cost_pico(request, usage) for usage in usages)
        self._counts.cost_pico = (self._counts.cost_pico or 0) + cost_pico
        return cost_pico

    def _answered(self, item: KeyedEvent, timing: Timing | None) -> Timeline | None:
        if item.timeline is None:
            return None
        now_us, now_s = self._clock.wall_us(), self._clock.monotonic_s()

        def wall_us(at_s: float | None) -> int | None:
            return None if at_s is None else now_us - round((now_s - at_s) * 1e6)

        if timing is None:
            return replace(item.timeline, answered_us=now_us)
        return replace(
            item.timeline,
            sent_us=wall_us(timing.sent_s),
            first_token_us=wall_us(timing.first_token_s),
            answered_us=wall_us(timing.done_s),
        )

    async def close(self) -> None:
        try:
            await self._engine.close()
        finally:
            if self._journal is not None:
                await self._journal.close()

    def _check_of(self, request: Request) -> AnswerCheck | None:
        return self._check

    def _in_its_class(self, request: Request, item: KeyedEvent) -> Request:
        classes = self._call.classes
        if classes is None:
            return request
        service = classes.of(item)
        return replace(request, service=service.name, due_s=due_s(item, service, self._clock))

    def _note_retry(self, error: EngineError, _attempt: int, _delay_s: float) -> None:
        self._counts.retries += 1
        if (trace := CALL_TRACE.get()) is not None:
            trace.failed(error.cause, self._clock.monotonic_s())


def _parse(completion: Completion, sampling: Sampling, check: AnswerCheck | None) -> JSON:
    check_content(completion, sampling)
    if check is None:
        return completion.text
    return check(completion.text, finish_reason=completion.finish_reason)


def result(item: KeyedEvent, completion: Completion, answer: JSON, *, attempts: int, **more: Any) -> Result:
    return result_of(
        item,
        answer,
        completion.usage,
        attempts,
        finish_reason=completion.finish_reason,
        replica=completion.replica,
        reasoning=completion.reasoning,
        **more,
    )


MAX_CHECKS = 64


class ProgramRequestHandler(RequestHandler):
    def __init__(self, call: InferenceSpec, counts: InferenceCounters, clock: Clock | None = None) -> None:
        super().__init__(call, counts, clock)
        self._checks: OrderedDict[bytes, AnswerCheck] = OrderedDict()

    def _check_of(self, request: Request) -> AnswerCheck | None:
        if request.schema is None:
            return None
        try:
            name = orjson.dumps(request.schema, option=orjson.OPT_SORT_KEYS)
            check = self._checks.get(name) or AnswerCheck(request.schema, where="the program's schema")
        except (SettingError, TypeError) as error:
            raise ProgramFailed(str(error)) from None
        self._checks[name] = check
        self._checks.move_to_end(name)
        if len(self._checks) > MAX_CHECKS:
            self._checks.popitem(last=False)
        return check


@dataclass(frozen=True)
class OpenRequestHandler:
    """Opens a `handler`, wrapped if replicas are scaled. Then raises `SettingError` if there is no fleet."""

    call: InferenceSpec
    handler: type[RequestHandler] = RequestHandler
    clock: Callable[[], Clock] = SystemClock

    async def __call__(self, counts: InferenceCounters) -> Handler:
        call, clock = self.call, self.clock()
        handler = self.handler(call, counts, clock)
        if call.scaling is None:
            return handler
        from forebay.fleet.disaggregated import DisaggregatedEngine
        from forebay.fleet.engine import FleetEngine
        from forebay.flink.demand import MeteredHandler

        engine = handler.engine
        client: Clients | None = None
        if isinstance(engine, FleetEngine):
            client = engine.client
        elif isinstance(engine, DisaggregatedEngine):
            client = engine.clients
        if client is None:
            raise SettingError("scaling: expected a fleet as the engine, found another one")
        counts.scaling = ScalingGauges()
        return MeteredHandler(
            handler, client, call.scaling, counts.scaling, clock, model=call.model, classes=call.classes
        )
