"""Files in other encodings: read as they were meant, or refused with the encoding to set."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.case import Refused, cases, check
from tests.corpus.sources import PACKINGS, read_file
from tests.corpus.way import check_way

from forebay.connectors.files.reader import LineReader
from forebay.connectors.files.unpack import canonical_encoding
from forebay.connectors.formats import Format

LE, BE, UTF_8 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8


@dataclass(frozen=True)
class Encoded:
    """A file of texts, or CSV if it has a header; `records`: the expected ones."""

    name: str
    content: bytes
    encoding: str
    records: list[Any]
    header: bool = False


def lines(name: str, encoding: str, text: str, *, bom: bytes = b"", setting: str | None = None) -> Encoded:
    """A file in `encoding`, set in the source, whose lines can all be read."""
    records = [{"text": line.removesuffix("\r")} for line in text.split("\n") if line.strip()]
    return Encoded(name, bom + text.encode(encoding), setting or encoding, records)


def wrong(name: str, content: bytes, encoding: str, *records: Any) -> Encoded:
    return Encoded(name, content, encoding, list(records))


HI = "grüße\n€ 5\r\nok\n"
READ = (
    lines("UTF-8", "utf-8", HI),
    lines("UTF-8 with BOM", "utf-8", HI, bom=UTF_8),
    lines("utf-8-sig", "utf-8", HI, bom=UTF_8, setting="utf-8-sig"),
    lines("UTF-16 LE", "utf-16-le", HI),
    lines("UTF-16 LE with BOM", "utf-16-le", HI, bom=LE),
    lines("UTF-16 BE", "utf-16-be", HI),
    lines("UTF-16 BE with BOM", "utf-16-be", HI, bom=BE),
    lines("utf-16 by the BOM of LE", "utf-16-le", HI, bom=LE, setting="utf-16"),
    lines("utf-16 by the BOM of BE", "utf-16-be", HI, bom=BE, setting="utf-16"),
    lines("utf-16 without BOM", "utf-16-le", HI, setting="utf-16"),
    lines("UTF-32 LE with BOM", "utf-32-le", HI, bom=codecs.BOM_UTF32_LE, setting="utf-32"),
    lines("UTF-32 BE with BOM", "utf-32-be", HI, bom=codecs.BOM_UTF32_BE, setting="utf-32"),
    lines("no end of the last line", "utf-16-le", "a\nb"),
    lines("Latin-1", "latin-1", "größe\nÿ\n"),
    lines("Latin-1 with C1", "latin-1", "a\x85b\x93\n", setting="iso-8859-1"),
    lines("Latin-9", "iso8859-15", "€ Œ\n"),
    lines("cp1252", "cp1252", "“€”\n", setting="windows-1252"),
    lines("cp1251", "cp1251", "привет\n"),
    lines("KOI8-R", "koi8-r", "привет\n"),
    lines("cp437", "cp437", "│é\n"),
    lines("Shift JIS", "shift_jis", "表示ソ能\nＡ\n"),
    lines("GB 18030", "gb18030", "中文𠀀\n"),
    lines("Big5", "big5", "許功蓋\n"),
    lines("EUC-KR", "euc_kr", "안녕\n"),
    lines("0x0a within a character", "utf-16-le", "Ċ਀\u0a0a\n\u0a41x\n"),
    lines("0x0a within one of BE", "utf-16-be", "Ċ਀\u0a0a\n\u0a41x\n"),
    lines("0x0d within a character", "utf-16-le", "\u0d0d\u0d41\n"),
    lines("line ends of Unicode", "utf-16-le", "a\u2028b\x85c\x0bd\n"),
    lines("surrogate pairs", "utf-16-le", "😀\n𐀊\n"),
    lines("BOM within", "utf-16-le", "a\ufeffb\n"),
    lines("NUL in UTF-16", "utf-16-le", "a\0b\n"),
    lines("blank lines", "utf-16-be", "\n \r\na\n\n"),
    lines("only a BOM", "utf-16-le", "", bom=LE),
)
CP1252, UTF_16 = Refused("`encoding: cp1252`"), Refused("set `encoding: utf-16`")
WRONG = (
    wrong(
        "Latin-1 unnamed", "ok\ngrün\nok\n".encode("latin-1"), "utf-8", {"text": "ok"}, CP1252, {"text": "ok"}
    ),
    wrong("UTF-16 LE unnamed", LE + "ab\ncd\n".encode("utf-16-le"), "utf-8", *3 * [UTF_16]),
    wrong("one letter a line", "a\n\r\nb\n".encode("utf-16-le"), "utf-8", *4 * [UTF_16]),
    wrong("UTF-16 unnamed, no BOM", "abcd\n".encode("utf-16-be"), "utf-8", UTF_16),
    wrong("UTF-16 named UTF-8", BE + "abcd\n".encode("utf-16-be"), "utf8", UTF_16),
    wrong("overlong", b"\xc0\xaf\nok\n", "utf-8", Refused("not UTF-8: byte 1 is 0xc0"), {"text": "ok"}),
    wrong("surrogates", b"\xed\xa0\x80\nok\n", "utf-8", Refused("not UTF-8: byte 1 is 0xed"), {"text": "ok"}),
    wrong("broken UTF-8", b"a\xe2\x82\nok\n", "utf-8", Refused("not UTF-8: byte 2 is 0xe2"), {"text": "ok"}),
    wrong(
        "undefined in cp1252", b"\x81\nok\n", "cp1252", Refused("not cp1252: byte 1 is 0x81"), {"text": "ok"}
    ),
    wrong("not ASCII", b"\xe9\nok\n", "ascii", Refused("not ascii: byte 1 is 0xe9"), {"text": "ok"}),
    wrong("half in Shift JIS", b"\x83\nok\n", "shift_jis", Refused("not shift_jis"), {"text": "ok"}),
    wrong(
        "lone surrogate of UTF-16",
        b"\x00\xd8\n\0o\0k\0\n\0",
        "utf-16-le",
        *(Refused("not utf-16-le: byte 1 is 0x00"), {"text": "ok"}),
    ),
    wrong("odd end of UTF-16", b"o\0k\0\n\0x", "utf-16-le", {"text": "ok"}, Refused("not utf-16-le: byte 1")),
    wrong("beyond Unicode", b"\xff\xff\xff\x7f\n\0\0\0", "utf-32-le", Refused("not utf-32-le")),
)
CSV = (
    Encoded(
        "CSV of UTF-16", 'ä,b\n1,"x\r\ny"\n'.encode("utf-16"), "utf-16", [{"ä": "1", "b": "x\r\ny"}], True
    ),
    Encoded("CSV of BE", "ä,b\n1,2\n".encode("utf-16-be"), "utf-16-be", [{"ä": "1", "b": "2"}], True),
    Encoded("CSV of cp1252", "ä,b\n€,2\n".encode("cp1252"), "cp1252", [{"ä": "€", "b": "2"}], True),
    Encoded("CSV with 0x5c", "a,b\n表,ソ\n".encode("shift_jis"), "shift_jis", [{"a": "表", "b": "ソ"}], True),
    Encoded(
        "CSV of UTF-16 unnamed",
        "a,b\n1,2\n".encode("utf-16"),
        "utf-8",
        [
            Refused("the header is not UTF-8; it looks like UTF-16: set"),
            *2 * [Refused("the columns have no names")],
        ],
        True,
    ),
    Encoded(
        "CSV with a wrong byte", b"a\n\x81\n1\n", "cp1252", [Refused("not cp1252: byte 1"), {"a": "1"}], True
    ),
)


@pytest.mark.heavy
@cases((*READ, *WRONG, *CSV))
def test_a_file_is_read_in_its_encoding(case: Any, tmp_path: Path) -> None:
    form = Format("csv" if case.header else "text")
    reader = LineReader(form, case.header, encoding=canonical_encoding(case.encoding))
    for packing, pack in PACKINGS.items():
        path = tmp_path / packing
        path.write_bytes(pack(case.content))
        records = read_file(path, reader)
        assert len(records) == len(case.records), (packing, records)
        for record, expected in zip(records, case.records, strict=True):
            check(record, expected, packing)
            if not case.header and not isinstance(expected, Refused):
                check_way(record, form, packing)


def test_json_lines_in_other_encodings(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "gb18030"):
        path = tmp_path / encoding
        path.write_bytes('{"a": "é ý"}\n{"n": 18446744073709551616}\n'.encode(encoding))
        first, second = read_file(path, LineReader(Format(), encoding=canonical_encoding(encoding)))
        check(first, {"a": "é ý"}, encoding)
        check(second, {"n": 2**64}, encoding)
