"""What a turn of a program emits: its call, results and dead letter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from forebay.codec import encode
from forebay.errors import detail_text
from forebay.json_numbers import check_numbers, dump_json
from forebay.records import DeadLetter, KeyedEvent, Result, Usage
from forebay.stateful.entries import Turn, numbered
from forebay.stateful.machine import Effect, Emit, HoldWatermark, StartCall
from forebay.stateful.program import Ask, Failure, Output, Step


@dataclass(frozen=True, slots=True)
class ProgramRequest(KeyedEvent):
    """A program's call for this event, under the id of the call."""

    ask: Ask = field(kw_only=True)


def call_of(turn: Turn, *, restored: bool = False) -> StartCall:
    """The latest call of a turn."""
    item = turn.item
    assert turn.ask is not None
    id = numbered(item.id, turn.calls - 1)
    return StartCall(
        ProgramRequest(id, item.key, item.event, item.read_ms, item.timeline, ask=turn.ask), restored
    )


def hold_of(turn: Turn) -> HoldWatermark:
    return HoldWatermark(str(turn.seq), turn.item.event.time_ms, turn.read_ms)


def leaving(
    turn: Turn, step: Step[Any], carrier: Result | None, *, restored: bool = False
) -> tuple[Turn, list[Effect]]:
    """The turn after `step`, and the records that `step` emits. Raises if one cannot be written. `restored`:
    a checkpoint held the turn."""
    given: list[Effect] = []
    for output in step.outputs:
        result = replace(_result(turn, output, carrier), restored=restored)
        given.append(Emit(result, encode(result)))
        turn = replace(turn, outputs=turn.outputs + 1, usage=Usage(), attempts=0)
    if step.letter is not None:
        letter = letter_of(turn, step.letter)
        given.append(Emit(letter, encode(letter)))
    return turn, given


def _result(turn: Turn, output: Output, carrier: Result | None) -> Result:
    item = turn.item
    # JSON sinks accept less than the codec, and write null for numbers that are not finite.
    check_numbers({"answer": output.answer, "fields": output.fields})
    dump_json((output.answer, output.fields))
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
        timeline=item.timeline,
        raw=item.event.raw,
        record_ms=item.event.record_ms,
    )
    if carrier is None:
        return result
    return replace(
        result,
        elapsed_s=carrier.elapsed_s,
        called_s=carrier.called_s,
        finish_reason=carrier.finish_reason,
        journaled=carrier.journaled,
        replica=carrier.replica,
        reasoning=carrier.reasoning,
        timeline=carrier.timeline,
    )


def letter_of(turn: Turn, failure: Failure) -> DeadLetter:
    """The dead letter of a turn's event; its record is empty for a timer."""
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
        record_ms=item.event.record_ms,
    )
