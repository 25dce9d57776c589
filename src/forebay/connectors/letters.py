"""Dead letters that are fed in again: each is the record that it was, under the same position, so that its
result has the same id."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.connectors.formats import Format, parse_dead_letter
from forebay.errors import MalformedRecord, Tombstone
from forebay.records import DeadLetter, Event

if TYPE_CHECKING:
    from forebay.connectors.kafka.source import Parse

KAFKA_POSITION = re.compile(r"([A-Za-z0-9._-]{1,249})(?:~[0-9]{1,9})?/([0-9]{1,10})@([0-9]{1,19})")


def read_letter(
    form: Format, line: bytes, position: str, *, parse: Parse | None = None
) -> Event | DeadLetter:
    """The record of the dead letter in `line`, read as `form` says or with `parse`; a dead letter if it
    cannot be read. `position` is for a `line` that is not a dead letter, and for one without a position.

    A record without a time of its own has the dead letter's. A record of Kafka has its key, its headers and
    its place again, a server-sent event its type and id.
    """
    try:
        letter = parse_dead_letter(line)
        if letter.record_ms is not None:
            return _of_kafka(form, letter, parse)
    except MalformedRecord as error:
        return DeadLetter(raw=line, cause=error.cause, detail=str(error), position=position)
    record = form.read(letter.raw, letter.position or position)
    if isinstance(record, Event) and letter.headers.keys() & {"sse-event", "sse-id"}:
        # It needs aiohttp, which most jobs do not load.
        from forebay.connectors.feeds.sse import added_fields

        record = replace(record, fields={**added_fields(letter.headers), **record.fields})
    time_ms = letter.time_ms if record.time_ms is None else record.time_ms
    return replace(record, time_ms=time_ms, record_key=letter.record_key, headers=letter.headers)


def _of_kafka(form: Format, letter: DeadLetter, parse: Parse | None) -> Event | DeadLetter:
    # It needs PyFlink, which takes a second to import.
    from forebay.connectors.kafka.source import read_record

    place = KAFKA_POSITION.fullmatch(letter.position or "")
    if place is None:
        raise MalformedRecord(
            f"not a dead letter: expected a position such as tickets/0@17 of a record of Kafka, found "
            f"{(letter.position or '')[:200]!r}"
        )
    record = read_record(
        form,
        letter.record_key,
        None if letter.cause == Tombstone.cause else letter.raw,
        letter.headers,
        {
            "topic": place[1],
            "partition": int(place[2]),
            "offset": int(place[3]),
            "time_ms": letter.record_ms,
        },
        position=letter.position,
        parse=parse,
    )
    return replace(record, time_ms=letter.time_ms) if form.time is None else record
