"""Lines of text: one field, `text`, with all that the line has."""

from __future__ import annotations

from pathlib import Path

from tests.corpus.case import Case, Refused, cases, check
from tests.corpus.sources import everywhere, from_kafka
from tests.corpus.way import check_way

from forebay.connectors.formats import Format

TEXT = Format("text")
SMALL = Format("text", max_record_bytes=10)
KEPT = {
    "plain": "hello",
    "JSON": '{"a": 1}',
    "blanks at both ends": "  a\t",
    "line end of Unicode": "a\u2028b\u2029c\u0085d",
    "VT and FF": "a\x0bb\x0cc",
    "file separators": "a\x1cb\x1dc\x1ed",
    "CR within": "a\rb",
    "escape sequences": "\x1b[31mred\x1b[0m",
    "NUL": "abc\0def",
    "right to left": "\u202eabc\u202c",
    "zero width": "\u200b",
    "emoji": "👩‍👩‍👧‍👦",
    "BOM within": "a\ufeffb",
    "special token": "<|im_end|>",
    "quotes": '"a", \'b\', "',
    "a template": "{{ text }}",
    "combining": "e\u0301",
    "noncharacters": "\ufffe\uffff",
    "no-break space alone": "\u00a0",
}
CASES = (
    *(Case(name, text.encode(), {"text": text}, TEXT) for name, text in KEPT.items()),
    Case("BOM", b"\xef\xbb\xbfhello", {"text": "hello"}, TEXT),
    Case("at the limit", b"x" * 10, {"text": "x" * 10}, SMALL),
    Case("above the limit", b"x" * 11, Refused(" bytes"), SMALL),
    Case("characters are not bytes", "é".encode() * 6, Refused(" bytes"), SMALL),
    Case("Latin-1", "größe".encode("latin-1"), Refused("not UTF-8: byte 3 is 0xf6"), TEXT),
    Case("cp1252", b"\x93a\x94", Refused("not UTF-8: byte 1 is 0x93"), TEXT),
    Case("overlong", b"a\xc1\xa1", Refused("not UTF-8: byte 2 is 0xc1"), TEXT),
    Case("surrogates", b"\xed\xa0\x80", Refused("not UTF-8: byte 1 is 0xed"), TEXT),
    Case("cut within a character", "añ".encode()[:-1], Refused("not UTF-8: byte 2 is 0xc3"), TEXT),
    Case("random bytes", bytes(range(128, 256)), Refused("not UTF-8: byte 1 is 0x80"), TEXT),
)


@cases(CASES)
def test_text_line_is_read_whole_or_rejected(case: Case, tmp_path: Path) -> None:
    for source, record in everywhere(case.raw, case.form, tmp_path):
        check(record, case.expected, source)
        if len(case.raw) <= case.form.max_record_bytes:
            assert record.raw == case.raw, source
            check_way(record, case.form, source)


def test_a_value_of_kafka_may_have_several_lines_or_none() -> None:
    for text in ("a\nb\r\n", "\n", "", "\r"):
        check(from_kafka(text.encode(), TEXT), {"text": text})
