"""Replay dead letters as their original records, at the same position, so that results keep their ids."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.connectors.feeds.sse import fields_of
from forebay.connectors.formats import Format, parse_dead_letter, with_added
from forebay.errors import MalformedDeadLetter, Tombstone
from forebay.records import DeadLetter, Event

if TYPE_CHECKING:
    from forebay.connectors.kafka.source import Parse

KAFKA_POSITION = re.compile(r"([A-Za-z0-9._-]{1,249})(?:~[0-9]{1,9})?/([0-9]{1,10})@([0-9]{1,19})")


def read_letter(
    form: Format, line: bytes, position: str, *, parse: Parse | None = None
) -> Event | DeadLetter:
    """A dead letter if the record cannot be parsed by `form` or `parse`. `position`: for a line without one.

    A Kafka record gets its key and headers back, a feed's event its field `sse`. A line once rejected as not
    a dead letter is parsed again.
    """
    try:
        letter = parse_dead_letter(line)
        if letter.cause == MalformedDeadLetter.cause:
            again = read_letter(form, letter.raw, letter.position or position, parse=parse)
            return letter if _is_refused(again, letter.raw) else again
        if letter.record_ms is not None:
            return _of_kafka(form, letter, parse)
    except MalformedDeadLetter as error:
        return DeadLetter(raw=line, cause=error.cause, detail=str(error), position=position)
    if not letter.raw:
        return replace(letter, position=letter.position or position)
    given = {name: content for name, content in letter.headers.items() if content is not None}
    fields_in = None if parse is None else lambda data: parse(data, given)
    record = form.read(letter.raw, letter.position or position, fields_in)
    time_ms = letter.time_ms if record.time_ms is None else record.time_ms
    record = replace(record, time_ms=time_ms, record_key=letter.record_key, headers=letter.headers)
    if isinstance(record, Event):
        record = replace(record, fields=with_added(record.fields, fields_of(letter.headers)))
    return record


def _is_refused(record: Event | DeadLetter, line: bytes) -> bool:
    return isinstance(record, DeadLetter) and record.cause == MalformedDeadLetter.cause and record.raw == line


def _of_kafka(form: Format, letter: DeadLetter, parse: Parse | None) -> Event | DeadLetter:
    # This imports PyFlink, which takes a second.
    from forebay.connectors.kafka.source import read_record

    place = KAFKA_POSITION.fullmatch(letter.position or "")
    if place is None:
        raise MalformedDeadLetter(
            f"not a dead letter: expected a position such as tickets/0@17 of a record of Kafka, found "
            f"{(letter.position or '')[:200]!r}"
        )
    record = read_record(
        form,
        letter.record_key,
        None if letter.cause == Tombstone.cause else letter.raw,
        letter.headers,
        {"topic": place[1], "partition": int(place[2]), "offset": int(place[3]), "time_ms": letter.record_ms},
        position=letter.position,
        parse=parse,
    )
    return replace(record, time_ms=letter.time_ms) if form.time is None else record
