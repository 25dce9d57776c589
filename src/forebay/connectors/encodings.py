"""Encodings of text files, their newline bytes, and a guess for bytes that cannot be decoded."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from forebay.errors import SettingError

UTF_8 = "utf-8"
WIDTHS = {"utf-16": 2, "utf-16-le": 2, "utf-16-be": 2, "utf-32": 4, "utf-32-le": 4, "utf-32-be": 4}
"""Bytes per line feed, if more than one."""
ASCII_BASED = (
    *(f"iso8859-{number}" for number in (1, *range(2, 12), 13, 14, 15, 16)),
    *(f"cp{number}" for number in range(1250, 1259)),
    *("cp437", "cp850", "cp852", "cp855", "cp858", "cp866", "cp874", "cp932", "cp936", "cp949", "cp950"),
    *("ascii", "mac-roman", "koi8-r", "koi8-u", "shift_jis", "euc_jp", "euc_kr", "gb2312", "gbk", "gb18030"),
    *("big5", "tis-620"),
)
"""In all of these, byte 0x0a is always a line feed and no decoder state crosses it."""
KNOWN = frozenset(codecs.lookup(name).name for name in (UTF_8, "utf-8-sig", *WIDTHS, *ASCII_BASED))
COMMON = "utf-8, utf-16, utf-16-le, latin-1, cp1252, cp1251, shift_jis, gb18030"
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SAMPLE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Encoding:
    """`codec`: Python's name with the byte order. `newline`: bytes of a line feed."""

    codec: str = UTF_8
    newline: bytes = b"\n"


def canonical_encoding(name: str) -> str:
    """Python's name of an encoding. Raises `SettingError` if it is unknown or cannot be split into lines."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        found = ""
    if found not in KNOWN:
        raise SettingError(f"encoding: expected the name of a text encoding ({COMMON}, …), found {name!r}")
    return UTF_8 if found == "utf-8-sig" else found


def encoding_of(name: str, head: bytes) -> Encoding:
    """Resolve the byte order of `name` from a file's byte order mark; `head` is the file's first 4 bytes.

    Without a mark, `utf-16` and `utf-32` are little-endian.
    """
    name = canonical_encoding(name)
    if name == "utf-16":
        name = "utf-16-be" if head.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
    elif name == "utf-32":
        name = "utf-32-be" if head.startswith(codecs.BOM_UTF32_BE) else "utf-32-le"
    width = WIDTHS.get(name, 1)
    return Encoding(name, b"\n".rjust(width, b"\0") if name.endswith("-be") else b"\n".ljust(width, b"\0"))


def looks_utf_16(data: bytes) -> str | None:
    """The UTF-16 or UTF-32 codec that `data` seems to use, or None. Other text never has a NUL in every other
    byte.
    """
    data = data[:SAMPLE_BYTES]
    for mark, name in MARKS:
        if data.startswith(mark):
            return name
    if 0 not in data or data.count(0) * 3 < len(data):
        return None
    # A line that was split at 0x0a may begin in the middle of a character.
    even, odd = data[::2].count(0), data[1::2].count(0)
    return "utf-16" if max(even, odd) * 10 >= 9 * (len(data) // 2) and min(even, odd) == 0 else None


def likely_encoding(data: bytes) -> str | None:
    """None if `data` is UTF-8."""
    found = looks_utf_16(data)
    if found is not None:
        return found
    try:
        data.decode(UTF_8)
    except UnicodeDecodeError:
        return "cp1252"
    return None


def encoding_hint(data: bytes) -> str:
    """The setting to suggest; empty if `data` is UTF-8."""
    likely = likely_encoding(data)
    if likely is None:
        return ""
    if likely.startswith("utf"):
        return f"it looks like {likely.upper()}: set `encoding: {likely}` for the source"
    return (
        f"if the file is in another encoding, name it: `encoding: {likely}` is the usual one of Western "
        "European Windows"
    )
