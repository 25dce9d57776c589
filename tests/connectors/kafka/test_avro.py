"""Avro values with a scripted registry: what is read, what is a dead letter, and what must be neither."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastavro import schemaless_writer
from tests.harness.clock import ManualClock
from tests.harness.schema_registry import ScriptedRegistry

from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format
from forebay.connectors.kafka.avro import AvroValues
from forebay.connectors.kafka.registry import (
    MAX_ANSWER_BYTES,
    Patience,
    Registry,
    RegistryAway,
    RegistryRefused,
    require_avro,
)
from forebay.connectors.kafka.source import read_record
from forebay.errors import MalformedRecord, SettingError, SetupError
from forebay.records import DeadLetter, Event
from forebay.settings import SecretRef

PLACE = {"topic": "in", "partition": 0, "offset": 1, "time_ms": 7}


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


def logical(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": what, **more}


TICKET = record(("text", "string"), ("n", "long"))
NODE = record(("next", ["null", "Node"]), name="Node")
SCHEMAS: dict[int, Any] = {
    1: TICKET,
    2: NODE,
    3: record(("a", {"type": "array", "items": "null"})),
    4: "string",
    5: {"type": "nonsense"},
    6: record(("d", logical("bytes", "decimal", precision=4, scale=2))),
}


def framed(id: int, payload: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + payload


def written(id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, schema, value)
    return framed(id, out.getvalue())


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry(SCHEMAS) as made:
        yield made


class Ticking(ManualClock):
    """A clock that goes on by itself whenever it is read."""

    def __init__(self, tick_s: float) -> None:
        super().__init__()
        self._tick_s = tick_s

    def monotonic_s(self) -> float:
        self.advance(self._tick_s)
        return super().monotonic_s()


class Waits:
    """A registry's reader whose waiting is seen and takes no time."""

    def __init__(
        self, registry: ScriptedRegistry, mend_after: int | None = None, tick_s: float = 0.0, **more: Any
    ) -> None:
        self.clock = Ticking(tick_s)
        self.waits_s: list[float] = []
        self._registry, self._mend_after = registry, mend_after
        patience = Patience(registry.url, clock=self.clock, sleep=self._sleep)
        self.avro = AvroValues(Registry(registry.url, **more), patience)

    def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.clock.advance(seconds)
        if len(self.waits_s) == self._mend_after:
            self._registry.status = 200


def test_a_record_is_an_event_and_its_schema_is_fetched_once(registry: ScriptedRegistry) -> None:
    avro = AvroValues(Registry(registry.url))
    for n in range(3):
        raw = written(1, TICKET, {"text": "hi", "n": n})
        event = read_record(Format(), b"k", raw, {"h": b"v"}, PLACE, parse=avro.fields)
        assert isinstance(event, Event)
        assert (event.raw, event.fields["text"], event.fields["n"]) == (raw, "hi", n)
        assert event.fields["kafka"]["headers"] == {"h": "v"}
    assert registry.asked == ["/schemas/ids/1"]


def test_values_that_json_lacks(registry: ScriptedRegistry) -> None:
    fields = {
        "bytes": ("bytes", b"\xff\0", "/wA="),
        "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
        "decimal": (logical("bytes", "decimal", precision=6, scale=2), Decimal("-12.50"), "-12.50"),
        "date": (logical("int", "date"), date(2026, 1, 31), "2026-01-31"),
        "clock": (logical("long", "time-micros"), time(12, 30, 0, 5), "12:30:00.000005"),
        "stamp": (
            logical("long", "timestamp-millis"),
            datetime(2026, 1, 31, 12, tzinfo=timezone.utc),
            "2026-01-31T12:00:00+00:00",
        ),
        "local": (
            logical("long", "local-timestamp-millis"),
            datetime(2026, 1, 31, 12),
            "2026-01-31T12:00:00",
        ),
        "uuid": (logical("string", "uuid"), UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        "nan": ("double", float("nan"), None),
        "infinite": ("float", float("-inf"), None),
        "none": (["null", "string"], None, None),
        "enum": ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", "b"),
        "list": ({"type": "array", "items": logical("int", "date")}, [date(2026, 1, 1)], ["2026-01-01"]),
        "map": ({"type": "map", "values": "bytes"}, {"x": b"ab"}, {"x": "YWI="}),
        "long": ("long", -(2**63), -(2**63)),
    }
    schema = record(*((name, kind) for name, (kind, _, _) in fields.items()))
    registry.schemas[9] = schema
    raw = written(9, schema, {name: value for name, (_, value, _) in fields.items()})
    form = Format(time=EventTime("stamp"))
    event = read_record(form, None, raw, {}, PLACE, parse=AvroValues(Registry(registry.url)).fields)
    assert isinstance(event, Event), event
    assert {name: event.fields[name] for name in fields} == {n: want for n, (_, _, want) in fields.items()}
    assert event.time_ms == 1769860800000


def test_a_schema_that_refers_to_another(registry: ScriptedRegistry) -> None:
    registry.subjects["people"] = record(("name", "string"), name="Person")
    registry.schemas[9] = record(("who", "Person"))
    registry.references[9] = [{"name": "Person", "subject": "people", "version": 1}]
    avro = AvroValues(Registry(registry.url))
    assert avro.fields(framed(9, b"\x06ann"), {}) == {"who": {"name": "ann"}}
    asked = len(registry.asked)
    registry.status = 503
    assert avro.fields(framed(9, b"\x06bob"), {}) == {"who": {"name": "bob"}}
    assert len(registry.asked) == asked


def test_schemas_that_refer_to_one_another_in_a_circle(registry: ScriptedRegistry) -> None:
    registry.schemas[9] = registry.subjects["people"] = record(("who", "Person"))
    registry.references[9] = registry.references["people"] = [
        {"name": "Person", "subject": "people", "version": 1}
    ]
    letter = read_record(Format(), None, framed(9, b"\x06ann"), {}, PLACE, parse=Waits(registry).avro.fields)
    assert isinstance(letter, DeadLetter)
    assert "references lead 21 schemas deep" in letter.detail


def test_a_recursive_schema(registry: ScriptedRegistry) -> None:
    value = {"next": {"next": {"next": None}}}
    assert AvroValues(Registry(registry.url)).fields(written(2, NODE, value), {}) == value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"text": "JSON"}', "magic byte"),
        (b"\0\0", "not Avro with a schema's id"),
        (framed(77, b"\x02a\x02"), "no schema of the value's id"),
        (framed(1, b"\x02a"), "a number has no end"),
        (framed(1, b"\x04a\x02"), "not Avro of its schema"),
        (framed(1, b"\x04\xff\xfe\x02"), "UnicodeDecodeError"),
        (framed(1, b"\x02a\x02\x02"), "1 bytes are left over"),
        (framed(2, b"\x02" * 1_000_000 + b"\0"), "nested deeper than 200"),
        (framed(3, b"\x80\x80\x80\x80\x10\0"), "more items than bytes"),
        (framed(4, b"\x02a"), "an Avro record is needed"),
        (framed(5, b"\x02a"), "schema cannot be used"),
        (framed(6, b"\x80\x80\x20" + b"\x7f" * 262144), "the limit is 1024"),
        (framed(1, b"\0" * 2_000_000), "the limit is 1048576"),
    ],
)
def test_what_is_no_such_value_is_a_dead_letter_with_its_bytes(
    registry: ScriptedRegistry, raw: bytes, words: str
) -> None:
    letter = read_record(Format(), b"k", raw, {}, PLACE, parse=AvroValues(Registry(registry.url)).fields)
    assert isinstance(letter, DeadLetter)
    assert words in letter.detail
    assert (letter.raw, letter.cause, letter.record_key) == (raw, "malformed_record", b"k")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_registry_that_is_away_is_waited_for_and_nothing_is_given_up(
    registry: ScriptedRegistry, status: int
) -> None:
    registry.status = status
    waits = Waits(registry, mend_after=4)
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    assert isinstance(read_record(Format(), None, raw, {}, PLACE, parse=waits.avro.fields), Event)
    assert len(waits.waits_s) == 4
    assert waits.waits_s == sorted(waits.waits_s) or max(waits.waits_s) <= 5.0


def test_a_registry_that_stays_away_fails_the_task(registry: ScriptedRegistry) -> None:
    registry.status = 503
    waits = Waits(registry)
    with pytest.raises(RegistryAway, match=r"127.0.0.1.* is away: it answered 503"):
        waits.avro.fields(framed(1, b"\x02a\x02"), {})
    assert 30.0 <= sum(waits.waits_s) <= 35.0


def test_an_answer_that_is_too_long_is_broken_off(registry: ScriptedRegistry) -> None:
    registry.padding = MAX_ANSWER_BYTES
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    letter = read_record(Format(), None, raw, {}, PLACE, parse=Waits(registry).avro.fields)
    assert isinstance(letter, DeadLetter)
    assert "the schema registry's answer is longer than 4194304 bytes" in letter.detail
    # What stands before the registry may fail at length: that is no fault of the value.
    registry.status = 502
    with pytest.raises(RegistryAway, match=r"is away: .* is longer than 4194304 bytes"):
        Waits(registry).avro.fields(raw, {})
    registry.status, registry.padding = 200, MAX_ANSWER_BYTES // 2
    assert Waits(registry).avro.fields(raw, {})["text"] == "hi"


def test_a_compressed_answer_is_not_unpacked(registry: ScriptedRegistry) -> None:
    registry.gzip, registry.padding = True, MAX_ANSWER_BYTES
    with pytest.raises(RegistryRefused, match=r"127.0.0.1.* compresses answers"):
        Waits(registry).avro.fields(written(1, TICKET, {"text": "hi", "n": 1}), {})


def test_an_answer_that_drips_is_broken_off(registry: ScriptedRegistry) -> None:
    registry.padding = MAX_ANSWER_BYTES // 2
    waits = Waits(registry, tick_s=10.0)
    with pytest.raises(RegistryAway, match="its answer took longer than 30 s"):
        waits.avro.fields(written(1, TICKET, {"text": "hi", "n": 1}), {})


def test_one_that_takes_no_connections_is_away_too() -> None:
    with ScriptedRegistry(SCHEMAS) as gone:
        waits = Waits(gone)
    with pytest.raises(RegistryAway, match="is away: ConnectError"):
        waits.avro.fields(framed(1, b"\x02a\x02"), {})


def test_the_secret_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    right, wrong, bare = (tmp_path / name for name in ("right", "wrong", "bare"))
    right.write_text("ann:hush-hush\n")
    wrong.write_text("ann:hush-wrong\n")
    bare.write_text("hush-bare")
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    with ScriptedRegistry(SCHEMAS, auth="ann:hush-hush") as registry:
        assert Waits(registry, auth=SecretRef(file=str(right))).avro.fields(raw, {})["text"] == "hi"
        for ref in (SecretRef(file=str(wrong)), None):
            waits = Waits(registry, auth=ref)
            with pytest.raises(
                RegistryRefused, match="answered 401; check the registry's url and auth"
            ) as said:
                waits.avro.fields(raw, {})
            assert waits.waits_s == []
            assert "hush" not in str(said.value)
        with pytest.raises(SettingError, match="USER:PASSWORD") as said_bare:
            AvroValues(Registry(registry.url, SecretRef(file=str(bare))))
        assert "hush" not in str(said_bare.value)


def test_an_address_that_is_no_registry_gives_no_record_up(registry: ScriptedRegistry) -> None:
    waits = Waits(registry)
    waits.avro._client.close()
    wrong = AvroValues(Registry(f"{registry.url}/elsewhere"))
    with pytest.raises(RegistryRefused, match="answered 404"):
        wrong.fields(framed(1, b"\x02a\x02"), {})


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry.avro", None)
    with pytest.raises(SetupError, match=r"pip install 'forebay\[avro\]'"):
        require_avro()


def test_a_schema_of_another_kind_is_refused() -> None:
    from forebay.connectors.kafka.registry import MAX_SCHEMA_CHARS, check_schema

    class Schema:
        schema_type, schema_str = "PROTOBUF", ""

    with pytest.raises(MalformedRecord, match="PROTOBUF, not Avro"):
        check_schema(Schema)
    Schema.schema_type, Schema.schema_str = "AVRO", "x" * (MAX_SCHEMA_CHARS + 1)
    with pytest.raises(MalformedRecord, match="the limit is"):
        check_schema(Schema)
