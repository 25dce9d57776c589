"""Values with a scripted registry: events, dead letters, and errors that must be neither."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_writer
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from tests.harness.clock import ManualClock
from tests.harness.schema_registry import ScriptedRegistry

from forebay.codec import decode
from forebay.connectors.files.reader import FileCursor, FilesReader, parts_of
from forebay.connectors.files.settings import DeadLetterSource
from forebay.connectors.files.source import line_reader
from forebay.connectors.formats import Format, dead_letter_json
from forebay.connectors.kafka.registry import (
    MAX_ANSWER_BYTES,
    MAX_SCHEMA_CHARS,
    RegistryAway,
    RegistryRefused,
    RegistryRetry,
    SchemaRegistry,
    require_registry,
)
from forebay.connectors.kafka.registry_values import RegistryValues
from forebay.connectors.kafka.source import read_record
from forebay.errors import SettingError, SetupError
from forebay.pipeline.load import parse_spec
from forebay.records import DeadLetter, Event
from forebay.settings import SecretRef

pytestmark = pytest.mark.heavy

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


def read(
    registry: ScriptedRegistry,
    raw: bytes,
    headers: Mapping[str, bytes] | None = None,
    form: Format | None = None,
) -> Event | DeadLetter:
    values = RegistryValues(SchemaRegistry(registry.url))
    return read_record(form or Format(), b"k", raw, headers or {}, PLACE, parse=values.fields)


class Ticking(ManualClock):
    """A clock that advances whenever it is read."""

    def __init__(self, tick_s: float) -> None:
        super().__init__()
        self._tick_s = tick_s

    def monotonic_s(self) -> float:
        self.advance(self._tick_s)
        return super().monotonic_s()


class Waits:
    """A registry reader whose waits are recorded and take no time."""

    def __init__(
        self, registry: ScriptedRegistry, mend_after: int | None = None, tick_s: float = 0.0, **more: Any
    ) -> None:
        self.clock = Ticking(tick_s)
        self.waits_s: list[float] = []
        self._registry, self._mend_after = registry, mend_after
        patience = RegistryRetry(registry.url, clock=self.clock, sleep=self._sleep)
        self.values = RegistryValues(SchemaRegistry(registry.url, **more), patience)

    def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.clock.advance(seconds)
        if len(self.waits_s) == self._mend_after:
            self._registry.status = 200


def test_a_record_is_an_event_and_its_schema_is_fetched_once(registry: ScriptedRegistry) -> None:
    avro = RegistryValues(SchemaRegistry(registry.url))
    for n in range(3):
        raw = written(1, TICKET, {"text": "hi", "n": n})
        event = read_record(Format(), b"k", raw, {"h": b"v"}, PLACE, parse=avro.fields)
        assert isinstance(event, Event)
        assert (event.raw, event.fields["text"], event.fields["n"]) == (raw, "hi", n)
        assert event.fields["kafka"]["headers"] == {"h": "v"}
    assert registry.asked == ["/schemas/ids/1"]


def test_a_field_that_cannot_be_read_is_named(registry: ScriptedRegistry) -> None:
    inner = record(("at", logical("int", "time-millis")), name="Inner")
    registry.schemas[9] = record(("text", "string"), ("inner", {"type": "array", "items": inner}))
    schema = record(
        ("text", "string"), ("inner", {"type": "array", "items": record(("at", "int"), name="I")})
    )
    letter = read(registry, written(9, schema, {"text": "hi", "inner": [{"at": 5}, {"at": -1}]}))
    assert isinstance(letter, DeadLetter)
    assert letter.detail == (
        "not Avro of its schema 9: field 'inner.at': a time of day is between 0 and 86400000, found -1"
    )


def test_a_schema_that_refers_to_another(registry: ScriptedRegistry) -> None:
    registry.subjects["people"] = record(("name", "string"), name="Person")
    registry.schemas[9] = record(("who", "Person"))
    registry.references[9] = [{"name": "Person", "subject": "people", "version": 1}]
    avro = RegistryValues(SchemaRegistry(registry.url))
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
    letter = read_record(
        Format(), None, framed(9, b"\x06ann"), {}, PLACE, parse=Waits(registry).values.fields
    )
    assert isinstance(letter, DeadLetter)
    assert "its references are circular" in letter.detail


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "found nothing"),
        (framed(77, b"\x02a\x02"), "schema 77 cannot be used: the schema registry lacks this schema"),
        (framed(1, b"\x04a\x02"), "not Avro of its schema"),
        (framed(2, b"\x02" * 1_000_000 + b"\0"), "nested deeper than 200"),
        (framed(3, b"\x80\x80\x80\x80\x10\0"), "more items than bytes"),
        (framed(4, b"\x02a"), "schema 4: a record is needed, found str"),
        (framed(5, b"\x02a"), "schema 5 cannot be used: UnknownType"),
        (framed(6, b"\x80\x80\x20" + b"\x7f" * 262144), "the limit is 1024"),
        (framed(1, b"\0" * 2_000_000), "the limit is 1048576"),
    ],
)
def test_invalid_value_is_a_dead_letter_with_its_bytes(
    registry: ScriptedRegistry, raw: bytes, words: str
) -> None:
    letter = read_record(
        Format(), b"k", raw, {}, PLACE, parse=RegistryValues(SchemaRegistry(registry.url)).fields
    )
    assert isinstance(letter, DeadLetter)
    assert words in letter.detail
    assert (letter.raw, letter.cause, letter.record_key) == (raw, "malformed_record", b"k")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_absent_registry_is_waited_for_without_losses(registry: ScriptedRegistry, status: int) -> None:
    registry.status = status
    waits = Waits(registry, mend_after=4)
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    assert isinstance(read_record(Format(), None, raw, {}, PLACE, parse=waits.values.fields), Event)
    assert len(waits.waits_s) == 4
    assert waits.waits_s == sorted(waits.waits_s) or max(waits.waits_s) <= 5.0


def test_registry_that_stays_absent_fails_the_task(registry: ScriptedRegistry) -> None:
    registry.status = 503
    waits = Waits(registry)
    with pytest.raises(RegistryAway, match=r"127.0.0.1.* is not available: it answered 503"):
        waits.values.fields(framed(1, b"\x02a\x02"), {})
    assert 30.0 <= sum(waits.waits_s) <= 35.0


def test_too_long_answer_is_cut_off(registry: ScriptedRegistry) -> None:
    registry.padding = MAX_ANSWER_BYTES
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    letter = read_record(Format(), None, raw, {}, PLACE, parse=Waits(registry).values.fields)
    assert isinstance(letter, DeadLetter)
    assert "the schema registry's answer is longer than 4194304 bytes" in letter.detail
    # A proxy in front of the registry may send a long error: that is not the value's fault.
    registry.status = 502
    with pytest.raises(RegistryAway, match=r"is not available: .* is longer than 4194304 bytes"):
        Waits(registry).values.fields(raw, {})
    registry.status, registry.padding = 200, MAX_ANSWER_BYTES // 2
    assert Waits(registry).values.fields(raw, {})["text"] == "hi"


def test_a_compressed_answer_is_not_unpacked(registry: ScriptedRegistry) -> None:
    registry.gzip, registry.padding = True, MAX_ANSWER_BYTES
    with pytest.raises(RegistryRefused, match=r"127.0.0.1.* compressed its answer"):
        Waits(registry).values.fields(written(1, TICKET, {"text": "hi", "n": 1}), {})


def test_trickling_answer_is_cut_off(registry: ScriptedRegistry) -> None:
    registry.padding = MAX_ANSWER_BYTES // 2
    waits = Waits(registry, tick_s=10.0)
    with pytest.raises(RegistryAway, match="its answer took longer than 30 s"):
        waits.values.fields(written(1, TICKET, {"text": "hi", "n": 1}), {})


def test_registry_without_connections_is_absent_too() -> None:
    with ScriptedRegistry(SCHEMAS) as gone:
        waits = Waits(gone)
    with pytest.raises(RegistryAway, match="is not available: ConnectError"):
        waits.values.fields(framed(1, b"\x02a\x02"), {})


def test_the_secret_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    right, wrong, bare = (tmp_path / name for name in ("right", "wrong", "bare"))
    right.write_text("ann:hush-hush\n")
    wrong.write_text("ann:hush-wrong\n")
    bare.write_text("hush-bare")
    raw = written(1, TICKET, {"text": "hi", "n": 1})
    with ScriptedRegistry(SCHEMAS, auth="ann:hush-hush") as registry:
        assert Waits(registry, auth=SecretRef(file=str(right))).values.fields(raw, {})["text"] == "hi"
        for ref in (SecretRef(file=str(wrong)), None):
            waits = Waits(registry, auth=ref)
            with pytest.raises(
                RegistryRefused, match="answered 401; check the registry's url and auth"
            ) as text:
                waits.values.fields(raw, {})
            assert waits.waits_s == []
            assert "hush" not in str(text.value)
        with pytest.raises(SettingError, match="USER:PASSWORD") as said_bare:
            RegistryValues(SchemaRegistry(registry.url, SecretRef(file=str(bare))))
        assert "hush" not in str(said_bare.value)


def test_wrong_registry_address_loses_no_record(registry: ScriptedRegistry) -> None:
    waits = Waits(registry)
    waits.values._client.close()
    wrong = RegistryValues(SchemaRegistry(f"{registry.url}/elsewhere"))
    with pytest.raises(RegistryRefused, match="answered 404"):
        wrong.fields(framed(1, b"\x02a\x02"), {})


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(SetupError, match=r"pip install 'forebay\[registry\]'"):
        require_registry()


def test_too_long_schema_is_rejected(registry: ScriptedRegistry) -> None:
    registry.schemas[9] = "x" * MAX_SCHEMA_CHARS
    letter = read(registry, framed(9, b"\x02a"))
    assert isinstance(letter, DeadLetter)
    assert letter.detail == "schema 9 cannot be used: it has 1048578 characters, the limit is 1048576"


def test_a_schema_of_an_unsupported_type_is_named(registry: ScriptedRegistry) -> None:
    registry.schemas[9], registry.types[9] = "<schema/>", "XSD"
    letter = read(registry, framed(9, b"<a/>"))
    assert isinstance(letter, DeadLetter)
    assert letter.detail == ("schema 9 cannot be used: its type is 'XSD', supported are AVRO, JSON, PROTOBUF")


def test_missing_reference_is_named(registry: ScriptedRegistry) -> None:
    registry.schemas[9] = record(("who", "Person"))
    registry.references[9] = [{"name": "Person", "subject": "people", "version": 1}]
    letter = read(registry, framed(9, b"\x06ann"))
    assert isinstance(letter, DeadLetter)
    assert "schema 9 cannot be used" in letter.detail
    assert "one of its references: Subject not found" in letter.detail


@pytest.fixture
def json_schema(registry: ScriptedRegistry) -> ScriptedRegistry:
    registry.schemas[9], registry.types[9] = '{"type": "object"}', "JSON"
    return registry


FIELD = FieldDescriptorProto
IMPORTED = FileDescriptorProto(
    package="people",
    syntax="proto3",
    dependency=["google/protobuf/timestamp.proto"],
    message_type=[
        {
            "name": "Person",
            "field": [
                {"name": "name", "number": 1, "type": FIELD.TYPE_STRING, "label": FIELD.LABEL_OPTIONAL},
                {
                    "name": "born",
                    "number": 2,
                    "type": FIELD.TYPE_MESSAGE,
                    "type_name": ".google.protobuf.Timestamp",
                    "label": FIELD.LABEL_OPTIONAL,
                },
            ],
        }
    ],
)
FILE = FileDescriptorProto(
    name="default",
    syntax="proto3",
    dependency=["common/person.proto"],
    message_type=[
        {"name": "Other"},
        {
            "name": "Ticket",
            "nested_type": [
                {"name": "First"},
                {
                    "name": "Second",
                    "field": [
                        {"name": "n", "number": 1, "type": FIELD.TYPE_INT64, "label": FIELD.LABEL_OPTIONAL},
                        {
                            "name": "who",
                            "number": 2,
                            "type": FIELD.TYPE_MESSAGE,
                            "type_name": ".people.Person",
                            "label": FIELD.LABEL_REPEATED,
                        },
                    ],
                },
            ],
        },
    ],
)
# Ticket.Second of n = 2**63 - 1 and a Person "ann", who was born at second 5.
SECOND = b"\x08" + b"\xff" * 8 + b"\x7f" + b"\x12\x09\x0a\x03ann\x12\x02\x08\x05"
READ = {"n": 2**63 - 1, "who": [{"name": "ann", "born": "1970-01-01T00:00:05+00:00"}]}
INDEXES = b"\x04\x02\x02"  # Two of them: 1 and 1.


@pytest.fixture
def protobuf(registry: ScriptedRegistry) -> ScriptedRegistry:
    registry.schemas[9], registry.types[9] = 'syntax = "proto3"; …', "PROTOBUF"
    registry.references[9] = [{"name": "common/person.proto", "subject": "people", "version": 2}]
    registry.descriptors[9] = FILE.SerializeToString()
    registry.subjects["people"] = 'syntax = "proto3"; …'
    registry.types["people"] = "PROTOBUF"
    registry.descriptors["people"] = IMPORTED.SerializeToString()
    return registry


def test_a_protobuf_value_with_a_reference(protobuf: ScriptedRegistry) -> None:
    values = RegistryValues(SchemaRegistry(protobuf.url))
    assert values.fields(framed(9, INDEXES + SECOND), {}) == READ
    asked = len(protobuf.asked)
    assert values.fields(framed(9, INDEXES + SECOND), {}) == READ
    assert len(protobuf.asked) == asked == 3


def test_a_single_index_of_zero_is_one_byte(protobuf: ScriptedRegistry) -> None:
    assert RegistryValues(SchemaRegistry(protobuf.url)).fields(framed(9, b"\0"), {}) == {}


def test_a_protobuf_schema_that_is_named_in_a_header(protobuf: ScriptedRegistry) -> None:
    headers = {"__value_schema_id": framed(9, INDEXES)}
    assert RegistryValues(SchemaRegistry(protobuf.url)).fields(SECOND, headers) == READ


def test_a_protobuf_schema_without_its_reference(protobuf: ScriptedRegistry) -> None:
    protobuf.references[9] = []
    letter = read(protobuf, framed(9, INDEXES + SECOND))
    assert isinstance(letter, DeadLetter)
    assert letter.detail == (
        "schema 9 cannot be used: it imports 'common/person.proto', "
        "which it does not list among its references"
    )


@pytest.mark.parametrize("descriptor", [b"\xff", b"\x22\x03\x12\x01x", FILE.SerializeToString() * 2])
def test_invalid_protobuf_schema(protobuf: ScriptedRegistry, descriptor: bytes) -> None:
    protobuf.descriptors[9] = descriptor
    letter = read(protobuf, framed(9, b"\0"))
    assert isinstance(letter, DeadLetter)
    assert "schema 9 cannot be used" in letter.detail


def test_registry_without_descriptors_is_rejected(protobuf: ScriptedRegistry) -> None:
    protobuf.serializes = False
    with pytest.raises(RegistryRefused, match=r"does not serve Protobuf schemas as descriptors"):
        read(protobuf, framed(9, INDEXES + SECOND))


@pytest.mark.parametrize("raw", [written(1, TICKET, {"text": "hi", "n": 1}), framed(1, b"\x02a")])
def test_dead_letters_in_files_are_read_with_the_registry(
    registry: ScriptedRegistry, tmp_path: Path, raw: bytes
) -> None:
    parse = RegistryValues(SchemaRegistry(registry.url)).fields
    first = read_record(Format(), b"k", raw, {}, PLACE, parse=parse)
    letter = first
    if isinstance(first, Event):
        letter = DeadLetter(raw, "timeout", "d", 0, None, None, 7, first.position, b"k", {}, 7)
    assert isinstance(letter, DeadLetter)
    (tmp_path / "letters.jsonl").write_text(dead_letter_json(letter) + "\n")
    source = {
        "type": "dead_letters",
        "path": "letters.jsonl",
        "format": "registry",
        "registry": {"url": registry.url},
    }
    document = {"name": "p", "source": source, "prompt": "x", "sink": {"type": "jsonl", "path": "out"}}
    spec = parse_spec(document, base=tmp_path)
    assert isinstance(spec.source, DeadLetterSource)
    spec.source.check("source")
    spec.source.check_secrets("source")
    assert list(spec.source.first_records()) == []
    files = spec.source.files()
    reader = line_reader(files)
    ((_, encoded),) = FilesReader(parts_of(files.path, reader), reader).records(FileCursor())
    assert encoded is not None
    assert decode(encoded) == first


@pytest.mark.parametrize("given", [{"format": "registry"}, {"registry": {"url": "http://r"}}])
def test_registry_and_format_must_match(tmp_path: Path, given: dict[str, Any]) -> None:
    source = {"type": "dead_letters", "path": "letters.jsonl", **given}
    document = {"name": "p", "source": source, "prompt": "x", "sink": {"type": "jsonl", "path": "out"}}
    with pytest.raises(SettingError, match="expected 'format: registry' and 'registry' together"):
        parse_spec(document, base=tmp_path)
