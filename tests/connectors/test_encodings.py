from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.files.unpack import (
    ASCII_BASED,
    Encoding,
    canonical_encoding,
    encoding_hint,
    encoding_of,
    likely_encoding,
    looks_utf_16,
)
from forebay.errors import SettingError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("UTF8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("Latin-1", "iso8859-1"),
        ("windows-1252", "cp1252"),
        ("sjis", "shift_jis"),
    ],
)
def test_names_that_are_known(name: str, expected: str) -> None:
    assert canonical_encoding(name) == expected


@pytest.mark.parametrize("name", ["", "utf-7", "base64", "idna", "unicode_escape", "cp037", "hz", "utf_8\0"])
def test_what_is_not_read_by_lines_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"encoding: expected the name of a text encoding \(utf-8, utf-16"):
        canonical_encoding(name)


@pytest.mark.parametrize("name", ASCII_BASED)
def test_a_line_feed_is_one_byte_in_encodings_that_contain_ascii(name: str) -> None:
    for high in range(0x80, 0x100):
        for data in (bytes((high, 0x0A)), bytes((high, 0x81, 0x0A)), bytes((high, 0x30, 0x81, 0x0A))):
            with suppress(UnicodeDecodeError):
                assert data.decode(name).endswith("\n")
    assert bytes(range(0x20, 0x7F)).decode(name).encode("ascii") == bytes(range(0x20, 0x7F))


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("utf-16", b"\xff\xfea\0", Encoding("utf-16-le", b"\n\0")),
        ("utf-16", b"\xfe\xff\0a", Encoding("utf-16-be", b"\0\n")),
        ("utf-16", b"a\0b\0", Encoding("utf-16-le", b"\n\0")),
        ("utf-32", b"\0\0\xfe\xff", Encoding("utf-32-be", b"\0\0\0\n")),
        ("utf-16-be", b"", Encoding("utf-16-be", b"\0\n")),
        ("latin-1", b"", Encoding("iso8859-1", b"\n")),
    ],
)
def test_the_byte_order(name: str, head: bytes, expected: Encoding) -> None:
    assert encoding_of(name, head) == expected


@pytest.mark.parametrize("order", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_recognised_wherever_a_line_is_cut(order: str) -> None:
    data = 'id,text\n1,"a line of some words"\n'.encode(order)
    for line in data.split(b"\n")[:2]:
        assert looks_utf_16(line) == "utf-16"
        assert "set `encoding: utf-16`" in encoding_hint(line)


@given(st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_no_hint_for_utf_8(text: str) -> None:
    assert encoding_hint(text.encode()) == ""


@pytest.mark.parametrize("data", [b"caf\xe9", b"\x93quoted\x94", b"na\xefve words"])
def test_other_bytes_are_likely_windows_ones(data: bytes) -> None:
    assert likely_encoding(data) == "cp1252"
    assert "`encoding: cp1252`" in encoding_hint(data)
