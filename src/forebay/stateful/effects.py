"""What a shard's machine wants done outside: calls, records that leave, wakings, and times to hold back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from forebay.codec import encode
from forebay.errors import detail_text
from forebay.records import DeadLetter, KeyedEvent, Result, Usage
from forebay.stateful.due import STEP_MS
from forebay.stateful.entries import Turn, numbered
from forebay.stateful.program import Ask, Clock, Failure, Output, Step


@dataclass(frozen=True, slots=True)
class StartCall:
    """A call to be made: `item` carries its id, the key and the record; `again` after a restore."""

    item: KeyedEvent
    ask: Ask
    again: bool = False


@dataclass(frozen=True, slots=True)
class Emit:
    """A record that leaves, and its bytes."""

    record: Result | DeadLetter
    data: bytes


@dataclass(frozen=True, slots=True)
class WakeAt:
    """`ShardExecutor.come` is to be called once `clock` has reached `time_ms`."""

    clock: Clock
    time_ms: int


@dataclass(frozen=True, slots=True)
class HoldWatermark:
    """Something begins that event time must not pass: `name` stays until it is let go. `read_ms` None:
    nothing was read for it."""

    name: str
    time_ms: int | None
    read_ms: int | None


@dataclass(frozen=True, slots=True)
class ReleaseWatermark:
    """What was held is over."""

    name: str


Effect = StartCall | Emit | WakeAt | HoldWatermark | ReleaseWatermark


def leaving(turn: Turn, step: Step[Any], carrier: Result | None) -> tuple[Turn, list[Effect]]:
    """What leaves with `step`, and the turn after it. Raises where it cannot be written."""
    given: list[Effect] = []
    for output in step.outputs:
        result = _result(turn, output, carrier)
        given.append(Emit(result, encode(result)))
        turn = replace(turn, outputs=turn.outputs + 1, usage=Usage(), attempts=0)
    if step.letter is not None:
        letter = letter_of(turn, step.letter)
        given.append(Emit(letter, encode(letter)))
    return turn, given


def hold_of(turn: Turn) -> HoldWatermark:
    """What a turn holds back until it is over."""
    return HoldWatermark(str(turn.seq), turn.item.event.time_ms, turn.read_ms)


def call_item(turn: Turn) -> KeyedEvent:
    """The event of a turn, under the id of its newest call."""
    item = turn.item
    return replace(item, id=numbered(item.id, turn.calls - 1))


def _result(turn: Turn, output: Output, carrier: Result | None) -> Result:
    item = turn.item
    # The JSON of a sink takes less than the bytes of the codec.
    orjson.dumps((output.answer, output.fields))
    result = Result(
        id=numbered(item.id, turn.outputs),
        key=item.key,
        fields=item.event.fields if output.fields is None else output.fields,
        answer=output.answer,
        usage=turn.usage,
        attempts=turn.attempts,
        read_ms=item.read_ms,
        elapsed_s=0.0,
        called_s=0.0,
        time_ms=item.event.time_ms if output.time_ms is None else int(output.time_ms),
        position=item.event.position,
        record_key=item.event.record_key,
        headers=item.event.headers,
    )
    if carrier is None:
        return result
    return replace(
        result,
        elapsed_s=carrier.elapsed_s,
        called_s=carrier.called_s,
        finish_reason=carrier.finish_reason,
        reissued=carrier.reissued,
        journaled=carrier.journaled,
        replica=carrier.replica,
    )


def letter_of(turn: Turn, failure: Failure) -> DeadLetter:
    """The dead letter of the event that a turn is about; empty for a timer's."""
    item = turn.item
    return DeadLetter(
        raw=item.event.raw,
        cause=failure.cause,
        detail=detail_text(failure.detail),
        attempts=failure.attempts,
        id=item.id,
        key=item.key,
        time_ms=item.event.time_ms,
        position=item.event.position,
        record_key=item.event.record_key,
        headers=item.event.headers,
    )


def head_name(time_ms: int) -> str:
    """What is held for the event-time timers that are looked at at `time_ms`."""
    return f"until:{time_ms}"


def head(clock: Clock, time_ms: int) -> list[Effect]:
    """The first timer for `time_ms` is set: see to it that it is looked at then, and not passed before."""
    if clock == "wall":
        return [WakeAt(clock, time_ms)]
    # What a timer leads to may carry its time, which is at most a step before.
    return [HoldWatermark(head_name(time_ms), time_ms - STEP_MS + 1, None), WakeAt(clock, time_ms)]
