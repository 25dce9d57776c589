"""The clock in front of a job: what goes on, what is refused and why, and the same after a restore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forebay.codec import decode, encode
from forebay.detect.stream_time import HELD_EVENTS, Tolerance
from forebay.errors import MalformedRecord
from forebay.operators.inference import END_OF_INPUT_MS
from forebay.operators.shards import flink_keys
from forebay.operators.stages import message_key, payload
from forebay.operators.stream_clock import REFUSED, StreamClock
from forebay.records import DeadLetter, Event


class Context:
    """What Flink gives the function."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.timers: set[int] = set()

    def get_state(self, _descriptor: Any) -> Any:
        return SimpleNamespace(value=lambda: self.value, update=lambda data: setattr(self, "value", data))

    def timer_service(self) -> Any:
        return SimpleNamespace(register_event_time_timer=self.timers.add)


def text(event: Event) -> bytes:
    if event.fields.get("text") is None:
        raise MalformedRecord("the field 'text' is missing")
    return str(event.fields["text"]).encode()


def opened(context: Context) -> StreamClock:
    clock = StreamClock(text, tolerance=Tolerance(5_000, 60_000), shards=4)
    clock.open(context)
    return clock


def event(number: int, time_ms: int | None, **fields: Any) -> bytes:
    return encode(Event(b"{}", {"text": f"t{number}", **fields}, time_ms, f"in@{number}"))


def run(records: list[bytes], *, restored: bool = False) -> tuple[list[tuple[bytes, int]], list[DeadLetter]]:
    context = Context()
    clock = opened(context)
    outputs = []
    for record in records:
        if restored:
            clock = opened(context)
        outputs += clock.process_element(record, context)
    outputs += clock.on_timer(END_OF_INPUT_MS, context)
    assert context.timers == {END_OF_INPUT_MS}
    letters = [decode(data) for tag, data in outputs if tag is REFUSED]
    return [output for output in outputs if output[0] is not REFUSED], letters


RECORDS = [
    *(event(number, 1_000 * number) for number in range(40)),
    event(40, 10**14),
    event(41, -(10**14)),
    event(42, None),
    event(43, 40_000, text=None),
    encode(DeadLetter(b"?", "malformed_record", "not JSON")),
    event(44, 41_000),
]


def test_what_is_in_time_goes_on_and_the_rest_is_a_dead_letter_that_says_why() -> None:
    messages, letters = run(RECORDS)
    assert [payload(data) for data, _ in messages] == [f"t{n}".encode() for n in (*range(40), 44)]
    assert [letter.cause for letter in letters] == [
        "ahead",
        "late",
        "no_time",
        "malformed_record",
        "malformed_record",
    ]
    assert "s ahead of the stream" in letters[0].detail
    assert letters[0].raw == b"{}"
    assert letters[0].position == "in@40"


def test_the_clock_goes_with_each_message_and_never_back() -> None:
    messages, _ = run(RECORDS)
    clocks = [clock for _, clock in messages]
    assert clocks == sorted(clocks)
    assert clocks[-1] > 20_000


def test_messages_are_spread_over_the_shards_by_position() -> None:
    messages, _ = run(RECORDS)
    assert {message_key(data) for data, _ in messages} == set(flink_keys(4))
    assert run(RECORDS)[0] == messages


def test_a_restore_before_every_record_changes_nothing() -> None:
    assert run(RECORDS, restored=True) == run(RECORDS)


@pytest.mark.parametrize("count", [1, HELD_EVENTS - 1])
def test_a_stream_that_ends_at_once_loses_nothing(count: int) -> None:
    assert len(run(RECORDS[:count])[0]) == count
