"""JSON objects: names, texts, shapes and sizes."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.corpus.case import Case, Refused, cases, check
from tests.corpus.sources import everywhere
from tests.corpus.way import check_way

from forebay.connectors.formats import MAX_DEPTH, Format

SMALL = Format(max_record_bytes=100)
LINE_ENDS = {"U+2028": "\u2028", "U+2029": "\u2029", "U+0085": "\u0085", "CR LF": "\r\n", "FF": "\x0c"}
TEXTS = {
    **{f"text with {name}": f"a{end}b" for name, end in LINE_ENDS.items()},
    "VT": "a\x0bb",
    "NUL": "a\0b",
    "every control character": "".join(map(chr, (*range(32), *range(0x7F, 0xA0)))),
    "escape sequence of a terminal": "\x1b]0;title\x07\x1b[2J",
    "NFC": unicodedata.normalize("NFC", "é"),
    "NFD": unicodedata.normalize("NFD", "é"),
    "right to left override": "\u202egnp.exe",
    "Arabic and Hebrew": "مرحبا שלום",
    "zero width": "a\u200b\u200c\u200d\u2060\ufeffb",
    "joined emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "beyond the BMP": "𝕏🜁\U0010ffff",
    "noncharacters": "\ufffe\uffff\ufdd0",
    "private use": "\ue000\U000f0000",
    "replacement character": "\ufffd",
    "combining marks": "Z" + "\u0350" * 200,
    "Turkish i": "İıiI",
    "ligature": "ﬁ ſ ß ẞ",
    "blank": " \t ",
    "no-break space": "\u00a0\u3000",
    "empty": "",
    "quotes": "\"'`\\\\n",
    "special token": "<|im_end|><|im_start|>system [INST]",
    "template": "{{ key }}{% for x in y %}{# no #}",
    "HTML": "<script>alert(1)</script>&amp;",
    "CSV formula": '=cmd|"/c calc"!A0',
    "JSON in JSON": '{"a": "{\\"b\\": 1}"}',
    "looks like a number": "0012",
    "10 kB": "ä" * 5000,
}
NAMES = {
    "empty name": "",
    "blank name": " ",
    "dots": "a.b",
    "NUL in a name": "a\0",
    "line end in a name": "a\nb",
    "name of Forebay": "time_ms",
    "event": "event",
    "key": "key",
    "headers": "headers",
    "dunder": "__class__",
    "self": "self",
    "a keyword": "for",
    "number": "0",
    "emoji": "🔑",
    "10 kB name": "n" * 10_000,
    "U+2028 in a name": "a\u2028b",
}


def deep(levels: int, around: str = "1") -> bytes:
    """An object that holds `levels` - 1 nested lists."""
    return f'{{"a": {"[" * (levels - 1)}{around}{"]" * (levels - 1)}}}'.encode()


def nested(levels: int, value: Any = 1) -> dict[str, Any]:
    for _ in range(levels - 1):
        value = [value]
    return {"a": value}


MANY = {f"f{n}": n for n in range(1000)}
NESTED = Refused("the record is nested deeper than 200 levels")
SHAPES = (
    Case("empty object", b"{}", {}),
    Case("blanks around", b' \t{"a": 1}\t ', {"a": 1}),
    Case("BOM", b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    Case("NFC and NFD are two", '{"\u00e9": 1, "e\u0301": 2}'.encode(), {"\u00e9": 1, "e\u0301": 2}),
    Case("the last of two counts", b'{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
    Case("of two large ones as well", b'{"a": 1e400, "a": 18446744073709551616}', {"a": 2**64}),
    Case("an escaped double", b'{"a": 1, "\\u0061": 2}', {"a": 2}),
    Case("surrogate pair", b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
    Case("own kafka", b'{"kafka": {"topic": 5}}', {}),
    Case("own sse", b'{"sse": "mine"}', {}),
    Case("own envelope", b'{"envelope": 1}', {"envelope": 1}),
    Case("all kinds", b'{"a": [null, true, {}, [], ""]}', {"a": [None, True, {}, [], ""]}),
    Case("200 levels", deep(200), nested(200)),
    Case("201 levels", deep(201), NESTED),
    Case("990 levels and a long number", deep(990, "18446744073709551616"), NESTED),
    Case("1,000 levels and 1e400", deep(1000, "1e400"), NESTED),
    Case("100,000 levels", deep(100_000), NESTED),
    Case("100,000 levels, open", b'{"a": ' + b"[" * 100_000, NESTED),
    Case("many braces in a text", orjson.dumps({"a": "[" * 1000}), {"a": "[" * 1000}),
    Case("1,000 fields", orjson.dumps(MANY), MANY),
    Case("a list of 5,000", orjson.dumps({"a": [0] * 5000}), {"a": [0] * 5000}),
    Case("a byte below the limit", b'{"a": "%s"}' % (b"x" * 90), {"a": "x" * 90}, SMALL),
    Case("at the limit", b'{"a": "%s"}' % (b"x" * 91), {"a": "x" * 91}, SMALL),
    Case("above the limit", b'{"a": "%s"}' % (b"x" * 92), Refused(" bytes"), SMALL),
    Case("far above the limit", b'{"a": "%s"}' % (b"x" * 99_999), Refused(" bytes"), SMALL),
    Case("bytes count", '{"a": "{}"}'.replace("{}", "é" * 46).encode(), Refused(" bytes"), SMALL),
)
WRONG: dict[str, tuple[bytes, str]] = {
    "a list": (b"[1]", "a JSON object is needed, found an array"),
    "a string": (b'"a"', "found a string"),
    "a number": (b"5", "found a number"),
    "a long number": (b"18446744073709551616", "found a number"),
    "1e400 alone": (b"1e400", "found a number"),
    "null": (b"null", "found null"),
    "true": (b"true", "found a boolean"),
    "open": (b'{"a": 1', "not JSON"),
    "open text": (b'{"a": "b', "not JSON"),
    "two objects": (b'{"a": 1}{"b": 2}', "not JSON"),
    "two objects and a blank": (b'{"a": 1} {"b": 2}', "not JSON"),
    "comma at the end": (b'{"a": 1,}', "not JSON"),
    "single quotes": (b"{'a': 1}", "not JSON"),
    "no quotes": (b"{a: 1}", "not JSON"),
    "comment": (b'{"a": 1} // b', "not JSON"),
    "typographic quotes": ("{“a”: 1}".encode(), "not JSON"),
    "number as name": (b"{1: 2}", "not JSON"),
    "two BOMs": (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', "not JSON"),
    "no-break space before": ('\u00a0{"a": 1}'.encode(), "not JSON"),
    "tab in a text": (b'{"a": "b\tc"}', "not JSON"),
    "NUL in a text": (b'{"a": "b\0c"}', "not JSON"),
    "NUL behind": (b'{"a": 1}\0', "not JSON"),
    "VT around": (b'\x0b{"a": 1}', "not JSON"),
    "wrong escape": (b'{"a": "\\x41"}', "not JSON"),
    "half a surrogate": (b'{"a": "\\ud800"}', "not JSON"),
    "low half first": (b'{"a": "\\ude00\\ud83d"}', "not JSON"),
    "half in a name": (b'{"\\udc00": 1}', "not JSON"),
    "half behind 1e400": (b'{"n": 1e400, "a": "\\ud800"}', "surrogates not allowed"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "not UTF-8: byte 8 is 0xe9"),
    "cp1252": ('{"a": "“é”"}'.encode("cp1252"), "not UTF-8: byte 8 is 0x93"),
    "Latin-1 in a name": ('{"é": 1}'.encode("latin-1"), "not UTF-8: byte 3 is 0xe9"),
    "overlong": (b'{"a": "\xc0\xaf"}', "not UTF-8: byte 8 is 0xc0"),
    "overlong NUL": (b'{"a": "\xc0\x80"}', "not UTF-8"),
    "surrogates in UTF-8": (b'{"a": "\xed\xa0\xbd\xed\xb8\x80"}', "not UTF-8: byte 8 is 0xed"),
    "beyond Unicode": (b'{"a": "\xf4\x90\x80\x80"}', "not UTF-8: byte 8 is 0xf4"),
    "five bytes": (b'{"a": "\xf8\x88\x80\x80\x80"}', "not UTF-8"),
    "half a character": ('{"a": "é'.encode()[:-1] + b'"}', "not UTF-8"),
    "a stray byte": (b'{"a": "\x80"}', "not UTF-8: byte 8 is 0x80"),
    "wrong behind 1e400": (b'{"n": 1e400, "a": "\xff"}', "not UTF-8: byte 20 is 0xff"),
    "any bytes": (bytes(range(128, 256)), "not UTF-8: byte 1 is 0x80"),
    "MessagePack": (b"\x81\xa1a\x01", "not UTF-8"),
    "XML": (b"<a>1</a>", "not JSON"),
    "a word": (b"hello", "not JSON"),
    "log4j": (b"${jndi:ldap://a}", "not JSON"),
}
CASES = (
    *(Case(name, orjson.dumps({"a": text}), {"a": text}) for name, text in TEXTS.items()),
    *(Case(f"name: {name}", orjson.dumps({text: 1}), {text: 1}) for name, text in NAMES.items()),
    *SHAPES,
    *(Case(f"wrong: {name}", raw, Refused(words)) for name, (raw, words) in WRONG.items()),
)


OWN_FIELDS: dict[str, dict[str, Any]] = {"own kafka": {"kafka": {"topic": 5}}, "own sse": {"sse": "mine"}}
"""Fields of a record with the name of a field that a source adds."""


@pytest.mark.heavy
@cases(CASES)
def test_object_is_read_whole_or_rejected(case: Case, tmp_path: Path) -> None:
    for source, record in everywhere(case.raw, case.form, tmp_path):
        expected: Any = case.expected
        if case.name in OWN_FIELDS:
            (name,) = OWN_FIELDS[case.name]
            field = record.fields[name]  # type: ignore[union-attr]
            assert (field["own"] if name in source else field) == OWN_FIELDS[case.name][name]
            expected = {name: field}
        check(record, expected, source)
        if len(case.raw) <= case.form.max_record_bytes:
            assert record.raw == case.raw, source
            check_way(record, case.form, source)


def test_unescaped_line_ends_of_unicode_do_not_end_a_record(tmp_path: Path) -> None:
    for end in ("\u2028", "\u2029", "\u0085"):
        raw = f'{{"a": "b{end}c"}}'.encode()
        sources = dict(everywhere(raw, Format(), tmp_path))
        assert sources.keys() >= {"plain", "gzip", "zip", "zstd", "kafka", "sse", "websocket", "stdin"}
        for source, record in sources.items():
            check(record, {"a": f"b{end}c"}, source)


def test_depth_limit_is_the_same_for_any_nesting() -> None:
    objects = b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH
    check(Format().read(objects), orjson.loads(objects))
    check(Format().read(b'{"a":' + objects + b"}"), NESTED)
