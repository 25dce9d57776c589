"""The way of a record behind its source: codec, key and id, prompt, and the lines of the sinks."""

from __future__ import annotations

from dataclasses import replace

from tests.harness.metric_group import MetricsContext

from forebay.codec import decode, encode
from forebay.connectors.formats import Format, dead_letter_json, parse_dead_letter, result_json
from forebay.connectors.kafka.source import Parse
from forebay.connectors.letters import read_letter
from forebay.engine.prompt import PromptTemplate
from forebay.flink.keying import EventText, Keying, refused
from forebay.json_numbers import read_json
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage

WHOLE = PromptTemplate("{{ event | tojson }}", escape=False)
SAFE = PromptTemplate("{{ event | tojson }}")


def keyed(
    record: Event | DeadLetter,
    *,
    key: EventText | None = None,
    id: EventText | None = None,
    needs_key: bool = False,
) -> KeyedEvent | DeadLetter:
    """Output of the operator that gives a record its key and id."""
    keying = Keying(shards=4, key=key, id=id, needs_key=needs_key)
    keying.open(MetricsContext())
    *_, (_, data) = keying.flat_map(encode(record))
    found: KeyedEvent | DeadLetter = decode(data)
    return found


def result_of(item: KeyedEvent) -> Result:
    event = item.event
    return Result(
        item.id,
        item.key,
        event.fields,
        "an answer",
        Usage(),
        1,
        0,
        0.5,
        0.5,
        time_ms=event.time_ms,
        position=event.position,
        record_key=event.record_key,
        headers=event.headers,
        raw=event.raw,
    )


def check_way(
    record: Event | DeadLetter, form: Format, where: str = "", *, parse: Parse | None = None
) -> None:
    """Follow a record to the line of JSON that leaves the pipeline; no value may change. `form`, or `parse`,
    has read it."""
    assert repr(decode(encode(record))) == repr(record), where
    item = keyed(record)
    if isinstance(record, DeadLetter):
        assert item == record, where
        check_letter(record, record, form, where, parse)
        return
    assert isinstance(item, KeyedEvent), (where, item)
    assert (repr(item.event), item.key, item.id) == (repr(record), "", record.position), where
    assert repr(read_json(str(WHOLE.render(record.fields)[0].content).encode())) == repr(record.fields), where
    assert SAFE.render(record.fields), where
    line = result_json(result_of(item))
    assert "\n" not in line, where
    written = read_json(line.encode())
    assert repr(written["fields"]) == repr(record.fields), where
    assert (written["id"], written["position"], written["time_ms"]) == (
        *(item.id, record.position, record.time_ms),
    ), where
    check_letter(refused(record, ValueError("no"), id=item.id), record, form, where, parse)


def check_letter(
    letter: DeadLetter, record: Event | DeadLetter, form: Format, where: str, parse: Parse | None
) -> None:
    """A dead letter is one line, survives a round trip, and is `record` again if it is read as input."""
    line = dead_letter_json(letter)
    assert "\n" not in line, where
    assert parse_dead_letter(line) == letter, where
    again = read_letter(form, line.encode(), "letters@1", parse=parse)
    if not record.raw and record.record_ms is None:
        assert again == letter, f"{where}: a dead letter without a record is fed in as it is"
        return
    if isinstance(record, DeadLetter) and isinstance(again, DeadLetter):
        # Files add a likely encoding.
        assert record.detail.startswith(again.detail), where
        again = replace(again, detail=record.detail)
    assert repr(again) == repr(record), where
