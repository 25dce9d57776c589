from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.harness.metric_group import MetricsContext

from forebay.api.models import AnswerModel, ReadResult
from forebay.api.objects import EncodeEvent, ReadEvent
from forebay.codec import decode, encode
from forebay.flink.keying import Keying
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage

RECORD = Event(
    b'{"text": "a"}',
    {"text": "a"},
    time_ms=7,
    position="tickets/0@17",
    record_key=b"ann",
    headers={"channel": b"chat"},
)


class Team(BaseModel):
    team: str


def refuse(_: Any) -> Event:
    raise ValueError("not this one")


def keyed(element: Any, read: ReadEvent) -> Any:
    keying = Keying(shards=8, to_event=read)
    keying.open(MetricsContext())
    *_, (_, data) = keying.flat_map(element)
    return decode(data)


def encoded(element: Any, read: ReadEvent) -> Any:
    return decode(EncodeEvent(read)(element))


@pytest.mark.parametrize("made", [keyed, encoded])
@pytest.mark.parametrize("to_event", [refuse, lambda event: None, lambda event: {"text": {1, 2}}])
def test_record_rejected_by_to_event_is_its_dead_letters_input(made: Any, to_event: Any) -> None:
    letter = made(encode(RECORD), ReadEvent(to_event, decode))
    assert isinstance(letter, DeadLetter)
    assert (letter.raw, letter.time_ms, letter.position) == (RECORD.raw, 7, "tickets/0@17")
    assert (letter.record_key, letter.headers) == (b"ann", {"channel": b"chat"})
    if to_event is refuse:
        assert (letter.cause, letter.detail) == ("bad_record", "ValueError: not this one")


@pytest.mark.parametrize("made", [keyed, encoded])
def test_result_rejected_by_to_event_is_shown_as_json(made: Any) -> None:
    result = Result("1", "k", {"text": "a"}, {"team": "b"}, Usage(), 1, 0, 0.0, 0.0, record_key=b"ann")
    letter = made(encode(result), ReadEvent(refuse, ReadResult(AnswerModel(Team))))
    assert orjson.loads(letter.raw)["answer"] == {"team": "b"}
    assert (letter.id, letter.key, letter.record_key) == ("1", "k", b"ann")


def test_dict_from_to_event_changes_only_the_fields() -> None:
    item: KeyedEvent = keyed(encode(RECORD), ReadEvent(lambda event: {"n": 1}, decode))
    assert item.id == "tickets/0@17"
    assert item.event == Event(RECORD.raw, {"n": 1}, 7, "tickets/0@17", b"ann", {"channel": b"chat"})
    item = keyed(encode(RECORD), ReadEvent(lambda event: Event(b"x", {}), decode))
    assert item.event == Event(b"x", {})


@pytest.mark.parametrize("made", [keyed, encoded])
def test_pydantic_model_is_an_event(made: Any) -> None:
    class Ticket(BaseModel):
        text: str
        at: date

    ticket = Ticket(text="a", at=date(2026, 1, 31))
    fields = {"text": "a", "at": "2026-01-31"}
    for element, read in ((ticket, ReadEvent()), ("a", ReadEvent(lambda text: ticket))):
        item = made(element, read)
        event = item.event if isinstance(item, KeyedEvent) else item
        assert (event.fields, orjson.loads(event.raw)) == (fields, fields)
    # Of a record, the place, the key and the headers stay.
    item = made(encode(RECORD), ReadEvent(lambda event: ticket, decode))
    event = item.event if isinstance(item, KeyedEvent) else item
    assert event == replace(RECORD, fields=fields)


def test_dead_letter_shows_its_element() -> None:
    for element, raw in ((b"\xff", b"\xff"), (("a", 1), b"('a', 1)")):
        assert encoded(element, ReadEvent(refuse)).raw == raw
