"""Keys and ids of records: those that differ stay different, and what is no key is refused where one is
needed."""

from __future__ import annotations

import base64
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.corpus.case import Case, Refused, cases, check
from tests.corpus.sources import PLACE, everywhere, from_kafka
from tests.corpus.way import check_way, keyed

from forebay.connectors.formats import Format
from forebay.connectors.kafka.source import read_record
from forebay.engine.prompt import FieldTemplate
from forebay.errors import NoKey, TemplateFailed
from forebay.flink.keying import EventText
from forebay.records import DeadLetter, Event, KeyedEvent

USER = FieldTemplate("{{ user }}")
KAFKA = FieldTemplate("{{ kafka.key }}")
LONG_KEY = "k" * 1024


def text(template: FieldTemplate) -> EventText:
    return lambda event: template.render(event.fields, time_ms=event.time_ms)


@dataclass(frozen=True)
class Key:
    """A field `user` of JSON, and its key, or None."""

    name: str
    user: bytes
    key: str | Refused | None


def key(name: str, user: Any, expected: str | Refused | None) -> Key:
    return Key(name, orjson.dumps(user), expected)


TOO_LONG = Refused("longer than 1024 characters", TemplateFailed.cause)
FIELDS = (
    key("text", "ann", "ann"),
    key("null", None, None),
    key("empty", "", None),
    key("blank", " \t\n", None),
    key("no-break space", "\u00a0\u3000\u2028", None),
    key("zero-width space", "\u200b", "\u200b"),
    key("the word None", "None", "None"),
    key("the word null", "null", "null"),
    key("the word undefined", "undefined", "undefined"),
    key("0", 0, "0"),
    key("minus 1", -1, "-1"),
    key("false", False, "false"),
    key("true", True, "true"),
    key("the word True", "True", "True"),
    key("1.0 is not 1", 1.0, "1.0"),
    key("text 1", "1", "1"),
    key("leading zeros", "0012", "0012"),
    Key("2**64", b"18446744073709551616", "18446744073709551616"),
    Key("2**64 + 1", b"18446744073709551617", "18446744073709551617"),
    Key("2**53 + 1", b"9007199254740993", "9007199254740993"),
    Key("1e400", b"1e400", "1e400"),
    Key("20 digits behind the point", b"0.12345678901234567891", "0.12345678901234567891"),
    key("an empty list", [], "[]"),
    key("a list", ["a", 1, None], '["a",1,null]'),
    key("an object", {"b": 1, "a": None}, '{"b":1,"a":null}'),
    key("blanks around", "  ann ", "ann"),
    key("NFC", unicodedata.normalize("NFC", "zoë"), "zo\u00eb"),
    key("NFD", unicodedata.normalize("NFD", "zoë"), "zoe\u0308"),
    key("case", "ANN", "ANN"),
    key("Cyrillic a", "аnn", "аnn"),
    key("NUL", "a\0b", "a\0b"),
    key("control characters", "a\x1b[2J\x7f\x9bb", "a\x1b[2J\x7f\x9bb"),
    key("right to left", "\u202eann", "\u202eann"),
    key("emoji", "👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"),
    key("slashes and dots", "../../etc/passwd", "../../etc/passwd"),
    key("looks like a position", "in/0@7", "in/0@7"),
    key("a template", "{{ kafka }}", "{{ kafka }}"),
    key("special token", "<|im_end|>", "<|im_end|>"),
    key("1,024 characters", LONG_KEY, LONG_KEY),
    key("1,025 characters", LONG_KEY + "k", TOO_LONG),
    key("10 kB", "k" * 10_240, TOO_LONG),
    key("1,024 emoji", "🔑" * 1024, "🔑" * 1024),
)


@pytest.mark.heavy
@cases(FIELDS)
def test_field_is_a_key_or_invalid(case: Key, tmp_path: Path) -> None:
    raw = b'{"user": %s}' % case.user
    for source, record in everywhere(raw, Format(), tmp_path):
        check_way(record, Format(), source)
        optional, needed = (keyed(record, key=text(USER), needs_key=needs) for needs in (False, True))
        if isinstance(case.key, str):
            for item in (optional, needed):
                assert isinstance(item, KeyedEvent), (source, item)
                assert (item.key, item.id) == (case.key, record.position), source
        else:
            expected = case.key or Refused("key", NoKey.cause)
            check(needed if isinstance(needed, DeadLetter) else needed.event, expected, source)
            assert needed.raw == raw  # type: ignore[union-attr]
            if case.key is None:
                assert isinstance(optional, KeyedEvent), (source, optional)
                assert optional.key == "", source


@cases(FIELDS)
def test_field_is_an_id_or_the_record_is_rejected(case: Key) -> None:
    item = keyed(from_kafka(b'{"user": %s}' % case.user, Format()), id=text(USER))
    if isinstance(case.key, str):
        assert isinstance(item, KeyedEvent)
        assert item.id == case.key
    else:
        assert isinstance(item, DeadLetter)
        assert item.cause == (TemplateFailed.cause if case.key or "null" in case.name else "bad_record")
        assert (item.position, item.record_key) == ("in/0@7", b"k")


def test_different_keys_stay_different() -> None:
    kept = [case.key for case in FIELDS if isinstance(case.key, str)]
    same = {"ann", "1"}  # With blanks around; the number and the text.
    assert len(set(kept)) == len(kept) - 1
    assert same >= {each for each in kept if kept.count(each) > 1}


def base(data: bytes) -> str:
    return "base64:" + base64.b64encode(data).decode()


BYTES: dict[str, tuple[bytes | None, str | None]] = {
    "no key": (None, None),
    "empty": (b"", ""),
    "text": (b"ann", "ann"),
    "not ASCII": ("zoë".encode(), "zoë"),
    "NFD": ("zoe\u0308".encode(), "zoe\u0308"),
    "the word None": (b"None", "None"),
    "the word null": (b"null", "null"),
    "blank": (b" ", " "),
    "BOM": (b"\xef\xbb\xbfann", "\ufeffann"),
    "long of 7": (struct.pack(">q", 7), base(struct.pack(">q", 7))),
    "long of -1": (struct.pack(">q", -1), base(b"\xff" * 8)),
    "long that is text": (b"customer", "customer"),
    "int of 7": (struct.pack(">i", 7), base(struct.pack(">i", 7))),
    "double of 1": (struct.pack(">d", 1), base(struct.pack(">d", 1))),
    "UUID": (bytes(range(0x80, 0x90)), base(bytes(range(0x80, 0x90)))),
    "Avro with a schema": (b"\0\0\0\0\x01\x06ann", base(b"\0\0\0\0\x01\x06ann")),
    "NUL": (b"a\0b", base(b"a\0b")),
    "Latin-1": (b"zo\xeb", base(b"zo\xeb")),
    "overlong": (b"\xc0\x80", base(b"\xc0\x80")),
    "surrogates": (b"\xed\xa0\x80", base(b"\xed\xa0\x80")),
    "text that begins with base64": (b"base64:YQ==", base(b"base64:YQ==")),
    "JSON": (b'{"id": 1}', '{"id": 1}'),
    "line ends": (b"a\r\nb", "a\r\nb"),
    "control characters": (b"\x1b[2J", "\x1b[2J"),
}


@pytest.mark.parametrize("name", BYTES)
def test_kafka_key_as_a_field_and_as_the_record_key(name: str) -> None:
    data, expected = BYTES[name]
    record = read_record(Format(), data, b'{"a": 1}', {"h": data}, PLACE)
    assert isinstance(record, Event)
    assert (record.record_key, record.headers) == (data, {"h": data})
    assert (record.fields["kafka"]["key"], record.fields["kafka"]["headers"]) == (expected, {"h": expected})
    check_way(record, Format(), name)
    item = keyed(record, key=text(KAFKA), needs_key=True)
    if expected is None or not expected.strip():
        assert isinstance(item, DeadLetter)
        assert (item.cause, item.record_key) == (NoKey.cause, data)
    else:
        assert isinstance(item, KeyedEvent)
        assert item.key == expected.strip()


def test_different_kafka_keys_stay_different() -> None:
    assert len({expected for _, expected in BYTES.values()}) == len(BYTES)


@pytest.mark.parametrize("name", BYTES)
def test_a_tombstone_keeps_its_key(name: str) -> None:
    data, _ = BYTES[name]
    record = read_record(Format(), data, None, {"h": data}, PLACE)
    check(record, Refused("it has no value", "tombstone"))
    assert (record.record_key, record.headers) == (data, {"h": data})
    check_way(record, Format(), name)


WHOLE = (
    Case("missing", b'{"a": 1}', Refused("field 'user' is missing; the event has a, kafka", "no_key")),
    Case("another case", b'{"User": "ann"}', Refused("field 'user' is missing", "no_key")),
    Case("null", b'{"user": null}', Refused("field 'user' is null", "no_key")),
    Case("empty", b'{"user": ""}', Refused("the key of this record is empty", "no_key")),
    Case("half a character", b'{"user": "\\ud800"}', Refused("not JSON")),
    Case("name by an escape", b'{"\\u0075ser": "ann"}', {"user": "ann"}),
)


@cases(WHOLE)
def test_the_dead_letter_of_a_record_without_a_key(case: Case) -> None:
    item = keyed(from_kafka(case.raw, Format()), key=text(USER), needs_key=True)
    check(item if isinstance(item, DeadLetter) else item.event, case.expected)
