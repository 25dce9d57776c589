"""A turn's bytes, its key's memory in a shard's stores, and its effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from forebay.codec import DAMAGED, damaged, decode, encode, pack_state, unpack_state
from forebay.errors import detail_text
from forebay.json_numbers import check_numbers, dump_json
from forebay.records import JSON, DeadLetter, Event, KeyedEvent, Message, Result, Sampling, Timeline, Usage
from forebay.stateful.machine import Effect, Emit, HoldWatermark, StartCall
from forebay.stateful.program import Ask, Failure, Output, Step, TimeDomain

WHAT = "state of keys"


@dataclass(frozen=True, slots=True)
class Firing:
    """Its `id` is unique among the turns of its key."""

    name: str
    clock: TimeDomain
    time_ms: int
    by: bytes

    def id(self, key: str) -> str:
        # A program may set a timer for the same time repeatedly, for example a past one.
        named = "\0".join((str(self.time_ms), self.clock, self.name, self.by.hex(), key))
        return f"timer-{digest(named).hex()}"


@dataclass(slots=True)
class SetTimer:
    clock: TimeDomain
    time_ms: int
    by: bytes
    fired: bool = False

    def firing(self, name: str) -> Firing:
        return Firing(name, self.clock, self.time_ms, self.by)


@dataclass(slots=True)
class KeyMemory:
    version: int
    saved: JSON
    timers: dict[str, SetTimer] = field(default_factory=dict)
    noted: dict[str, list[int]] = field(default_factory=dict)
    touched_ms: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """An event or a firing.

    `seq` orders the turns of a shard. `data`: the encoded event; for a firing, empty, or an event with its
    timeline. `calls` and `outputs` are counts; `usage`, `attempts` and `cost_pico` count since the last
    output.
    """

    seq: int
    key: str
    read_ms: int
    data: bytes = b""
    firing: Firing | None = None
    watermark_ms: int | None = None
    ask: Ask | None = None
    calls: int = 0
    outputs: int = 0
    usage: Usage = field(default_factory=Usage)
    attempts: int = 0
    cost_pico: int | None = None

    @property
    def hold(self) -> str:
        return str(self.seq)

    @property
    def item(self) -> KeyedEvent:
        if self.firing is None or self.data:
            item: KeyedEvent = decode(self.data)
            return item
        firing = self.firing
        time_ms = firing.time_ms if firing.clock == "event" else None
        return KeyedEvent(firing.id(self.key), self.key, Event(b"", {}, time_ms), self.read_ms)

    def timed(self) -> Turn:
        fired_us = self.read_ms * 1000
        return replace(self, data=encode(replace(self.item, timeline=Timeline(fired_us, fired_us))))

    def spend(self, usage: Usage, attempts: int, cost_pico: int | None = None) -> Turn:
        cost = self.cost_pico if cost_pico is None else (self.cost_pico or 0) + cost_pico
        return replace(self, usage=self.usage + usage, attempts=self.attempts + attempts, cost_pico=cost)


def digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def numbered(id: str, number: int) -> str:
    return id if number == 0 else f"{id}/{number + 1}"


def pack_memory(memory: KeyMemory) -> bytes:
    timers = {name: (each.clock, each.time_ms, each.by, each.fired) for name, each in memory.timers.items()}
    return pack_state(memory.version, memory.saved, timers, memory.noted, memory.touched_ms)


def unpack_memory(data: bytes) -> KeyMemory:
    values = unpack_state(data, WHAT)
    try:
        version, saved, timers, noted, touched_ms = values
        set_timers = {name: SetTimer(*timer) for name, timer in timers.items()}
    except DAMAGED as error:
        raise damaged(WHAT, error) from None
    return KeyMemory(version, saved, set_timers, noted, touched_ms)


def pack_turn(turn: Turn) -> bytes:
    firing, ask, usage = turn.firing, turn.ask, turn.usage
    return pack_state(
        turn.seq,
        turn.key,
        turn.read_ms,
        turn.data,
        None if firing is None else (firing.name, firing.clock, firing.time_ms, firing.by),
        turn.watermark_ms,
        None if ask is None else _ask_fields(ask),
        turn.calls,
        turn.outputs,
        (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        turn.attempts,
        *(() if turn.cost_pico is None else (turn.cost_pico,)),
    )


def unpack_turn(data: bytes) -> Turn:
    values = unpack_state(data, WHAT)
    try:
        seq, key, read_ms, event, firing, watermark_ms, ask, calls, outputs, usage, attempts, *cost = values
        return Turn(
            seq,
            key,
            read_ms,
            event,
            None if firing is None else Firing(*firing),
            watermark_ms,
            None if ask is None else _ask(ask),
            calls,
            outputs,
            Usage(*usage),
            attempts,
            *cost,
        )
    except DAMAGED as error:
        raise damaged(WHAT, error) from None


def _ask_fields(ask: Ask) -> tuple[Any, ...]:
    sampling = ask.sampling
    return (
        [(message.role, message.content) for message in ask.messages],
        ask.tag,
        None if ask.schema is None else dict(ask.schema),
        None if sampling is None else _sampling_fields(sampling),
    )


def _ask(fields: Any) -> Ask:
    messages, tag, schema, sampling = fields
    return Ask(
        tuple(Message(role, content) for role, content in messages),
        tag,
        schema,
        None if sampling is None else _sampling(sampling),
    )


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    names = ("max_tokens", "temperature", "top_p", "seed")
    values = {name: getattr(sampling, name) for name in names}
    return {**values, "stop": list(sampling.stop), "extra": dict(sampling.extra)}


def _sampling(values: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**values, "stop": tuple(values["stop"])})


@dataclass(frozen=True, slots=True)
class ProgramRequest(KeyedEvent):
    ask: Ask = field(kw_only=True)


def call_of(turn: Turn, *, restored: bool = False) -> StartCall:
    item = turn.item
    assert turn.ask is not None
    id = numbered(item.id, turn.calls - 1)
    return StartCall(
        ProgramRequest(id, item.key, item.event, item.read_ms, item.timeline, ask=turn.ask),
        restored,
        turn=turn.hold,
    )


def hold_of(turn: Turn) -> HoldWatermark:
    return HoldWatermark(turn.hold, turn.item.event.time_ms, turn.read_ms)


def leaving(
    turn: Turn, step: Step[Any], carrier: Result | None, *, restored: bool = False
) -> tuple[Turn, list[Effect]]:
    given: list[Effect] = []
    for output in step.outputs:
        result = replace(_result(turn, output, carrier), restored=restored)
        given.append(Emit(result, encode(result), turn=turn.hold))
        cost = None if turn.cost_pico is None else 0
        turn = replace(turn, outputs=turn.outputs + 1, usage=Usage(), attempts=0, cost_pico=cost)
    if step.letter is not None:
        letter = letter_of(turn, step.letter)
        given.append(Emit(letter, encode(letter), turn=turn.hold))
    return turn, given


def _result(turn: Turn, output: Output, carrier: Result | None) -> Result:
    item = turn.item
    # JSON sinks accept less than the codec, and write null for numbers that are not finite.
    check_numbers({"answer": output.answer, "fields": output.fields})
    dump_json((output.answer, output.fields))
    own: dict[str, Any] = {"id": numbered(item.id, turn.outputs), "cost_pico": turn.cost_pico}
    if output.fields is not None:
        own["fields"] = output.fields
    if output.time_ms is not None:
        own["time_ms"] = int(output.time_ms)
    carried = {} if carrier is None else {name: getattr(carrier, name) for name in CARRIED}
    return result_of(item, output.answer, turn.usage, turn.attempts, **own, **carried)


CARRIED = ("elapsed_s", "called_s", "finish_reason", "journaled", "replica", "reasoning", "timeline")


def result_of(item: KeyedEvent, answer: JSON, usage: Usage, attempts: int, **more: Any) -> Result:
    """The result of `item`; `more` are other fields."""
    event = item.event
    values: dict[str, Any] = {
        "id": item.id,
        "key": item.key,
        "fields": event.fields,
        "elapsed_s": 0.0,
        "called_s": 0.0,
        "read_ms": item.read_ms,
        "time_ms": event.time_ms,
        "position": event.position,
        "record_key": event.record_key,
        "headers": event.headers,
        "timeline": item.timeline,
        "raw": event.raw,
        "record_ms": event.record_ms,
        "answer": answer,
        "usage": usage,
        "attempts": attempts,
    }
    values.update(more)
    return Result(**values)


def letter_of(turn: Turn, failure: Failure) -> DeadLetter:
    letter = letter_of_item(turn.item, failure.cause, failure.detail, attempts=failure.attempts)
    return replace(letter, cost_pico=turn.cost_pico)


def letter_of_item(item: KeyedEvent, cause: str, detail: str, *, attempts: int) -> DeadLetter:
    return replace(letter_of_event(item.event, cause, detail), attempts=attempts, id=item.id, key=item.key)


def letter_of_event(event: Event, cause: str, detail: str) -> DeadLetter:
    return DeadLetter(
        raw=event.raw,
        cause=cause,
        detail=detail_text(detail),
        time_ms=event.time_ms,
        position=event.position,
        record_key=event.record_key,
        headers=event.headers,
        record_ms=event.record_ms,
    )
