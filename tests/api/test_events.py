"""What becomes of an element that is no event."""

from __future__ import annotations

from typing import Any

from forebay.api.objects import EncodeEvent, ReadEvent
from forebay.codec import decode, encode
from forebay.records import DeadLetter, Event


def refuse(_: Any) -> Event:
    raise ValueError("not this one")


def test_the_dead_letter_of_an_encoded_record_holds_the_record_as_it_was_read() -> None:
    record = encode(Event(b'{"text": "a"}', {"text": "a"}, position="in@1"))
    letter: DeadLetter = decode(EncodeEvent(ReadEvent(refuse, decode))(record))
    assert (letter.raw, letter.cause, letter.detail) == (
        b'{"text": "a"}',
        "bad_record",
        "ValueError: not this one",
    )


def test_the_dead_letter_of_another_element_shows_it() -> None:
    for element, raw in ((b"\xff", b"\xff"), (("a", 1), b"('a', 1)")):
        letter: DeadLetter = decode(EncodeEvent(ReadEvent(refuse))(element))
        assert letter.raw == raw
