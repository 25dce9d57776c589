"""One trace per event: an operator's notes on it, and the choice of traces to keep.

A trace is kept if it was sampled, or if its event became a dead letter or was slow; then
`forebay.flink.event_spans` makes its spans. Traces are not state: after a restart, restored events begin new
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

from forebay.clock import Clock
from forebay.engine.call_trace import CALL_TRACE, CallTrace
from forebay.flink.latency import RELATIVE_ERROR, RecentLatency
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_pool import Answer, Handler
from forebay.records import DeadLetter, KeyedEvent
from forebay.settings import otel_installed, otel_queue_spans, otel_signals
from forebay.stateful.machine import Effect, Emit, HoldWatermark, ReleaseWatermark, StartCall

Kept = Literal["sampled", "dead_letter", "slow"]
SLOW_QUANTILE = 0.99
SLOW_RESULTS = 100
SLOW_LOOK_S = 1.0
MAX_SLOW = 5


@dataclass(slots=True)
class Root:
    trace_id: int
    sampled: bool
    state: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class EventTrace:
    accepted_s: float
    read_ms: int | None
    item: KeyedEvent | DeadLetter | None = None
    root: Root | None = None
    restored: bool = False
    cause: str = ""
    asked: list[CallTrace] = field(default_factory=list)


class TraceSpans(Protocol):
    def begin(self, headers: Mapping[str, bytes | None]) -> Root: ...

    def send(self, trace: EventTrace, kept: Kept, now_s: float) -> None: ...

    def close(self) -> None: ...


class EventTraces:
    """The traces of one subtask. For the operator's thread, except the handlers of `traced`."""

    def __init__(self, spans: TraceSpans, counts: InferenceCounters, clock: Clock) -> None:
        self._spans = spans
        self._recent = RecentLatency(counts.event_s)
        self._clock = clock
        self._open: dict[tuple[int, str], EventTrace] = {}
        self._asked: dict[int, CallTrace] = {}
        self._slow_s, self._looked_s, self._slow_left = inf, -inf, 0

    def take(self, shard: int, effects: Iterable[Effect]) -> None:
        now_s = self._clock.monotonic_s()
        ended: list[str] = []
        for effect in effects:
            if isinstance(effect, StartCall):
                self._ask(self._open[shard, effect.turn], effect, now_s)
            elif isinstance(effect, HoldWatermark):
                if effect.read_ms is not None:
                    self._open[shard, effect.name] = EventTrace(now_s, effect.read_ms)
            elif isinstance(effect, ReleaseWatermark):
                ended.append(effect.name)
            elif isinstance(effect, Emit) and isinstance(effect.record, DeadLetter):
                trace = self._open[shard, effect.turn]
                trace.cause, trace.item = effect.record.cause, trace.item or effect.record
        for name in ended:
            trace_of = self._open.pop((shard, name), None)
            if trace_of is not None:
                self._end(trace_of, now_s)

    def refused(self, letter: DeadLetter) -> None:
        now_s = self._clock.monotonic_s()
        self._end(EventTrace(now_s, None, letter, cause=letter.cause), now_s)

    def traced(self, handler: Handler) -> Handler:
        return TracedHandler(handler, self._asked, self._clock)

    def close(self) -> None:
        self._spans.close()

    def _ask(self, trace: EventTrace, call: StartCall, now_s: float) -> None:
        if trace.root is None:
            trace.item, trace.root = call.item, self._spans.begin(call.item.event.headers)
            trace.restored = call.restored
        root = trace.root
        asked = CallTrace(root.trace_id, sampled=root.sampled, state=root.state, submitted_s=now_s)
        trace.asked.append(asked)
        self._asked[id(call.item)] = asked

    def _end(self, trace: EventTrace, now_s: float) -> None:
        kept: Kept = "sampled"
        if trace.cause:
            kept = "dead_letter"
        elif trace.root is None:
            # It made no call.
            return
        elif not trace.root.sampled:
            if not self._is_slow(trace, now_s):
                return
            kept = "slow"
        if trace.root is None:
            assert trace.item is not None
            trace.root = self._spans.begin(headers_of(trace.item))
        self._spans.send(trace, kept, now_s)

    def _is_slow(self, trace: EventTrace, now_s: float) -> bool:
        if now_s - self._looked_s >= SLOW_LOOK_S:
            self._looked_s, self._slow_left = now_s, MAX_SLOW
            recent = self._recent.at(now_s)
            if recent.count >= SLOW_RESULTS:
                # The histogram's rounding must not make a result count as slow.
                self._slow_s = recent.quantile_s(SLOW_QUANTILE) * (1 + 2 * RELATIVE_ERROR)
        assert trace.read_ms is not None
        slow = self._slow_left > 0 and (self._clock.wall_ms() - trace.read_ms) / 1000 > self._slow_s
        self._slow_left -= slow
        return slow


def headers_of(item: KeyedEvent | DeadLetter) -> Mapping[str, bytes | None]:
    return item.headers if isinstance(item, DeadLetter) else item.event.headers


class TracedHandler:
    def __init__(self, handler: Handler, asked: dict[int, CallTrace], clock: Clock) -> None:
        self._handler = handler
        self._asked = asked
        self._clock = clock

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        self._handler.accept(item, restored=restored)

    async def answer(self, item: KeyedEvent) -> Answer:
        trace = self._asked.pop(id(item))
        trace.began_s = self._clock.monotonic_s()
        # The task is that of this item alone.
        CALL_TRACE.set(trace)
        answer = await self._handler.answer(item)
        trace.done_s = self._clock.monotonic_s()
        if isinstance(answer, DeadLetter):
            trace.failed(answer.cause, trace.done_s)
        else:
            trace.journaled = answer.journaled
        return answer

    async def close(self) -> None:
        await self._handler.close()


def open_event_traces(service: str | None, counts: InferenceCounters, clock: Clock) -> EventTraces | None:
    """None without `service`, or if the standard variables turn traces off.

    Raises `SettingError` and `SetupError`.
    """
    if service is None or "traces" not in otel_signals():
        return None
    with otel_installed():
        from forebay.flink.event_spans import EventSpans

    def dropped(spans: int) -> None:
        counts.dropped_spans = spans

    return EventTraces(EventSpans(service, otel_queue_spans()[0], dropped, clock), counts, clock)
