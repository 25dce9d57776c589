"""The content of files, unpacked (by their first bytes) and decoded as text."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from forebay.errors import SettingError

Packing = Literal["gzip", "bzip2", "xz", "zstd", "zip"]
MAGIC: tuple[tuple[re.Pattern[bytes], Packing], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2"),
    (re.compile(rb"\xfd7zXZ\0"), "xz"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.S), "zstd"),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), "zip"),
)
FOREIGN = (
    (b"PAR1", "a Parquet file"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xd0\xcf\x11\xe0", "a document of an old office program"),
    (b"%PDF-", "a PDF"),
)
"""First bytes of files that are not read. Some of them may begin a text, so this only explains a failure."""
PACKED_SUFFIXES = (".gz", ".gzip", ".bz2", ".xz", ".zst", ".zip")
HIDDEN = (".", "_")
HEAD_BYTES = 16
BLOCK_BYTES = 1 << 16
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
"""Errors of a file that is damaged, truncated or forbidden."""

MAX_RATIO = 1000
FREE_BYTES = 64 << 20
"""Always allowed; beyond it, `MAX_RATIO` times the file's size."""
MAX_MEMORY_BYTES = 256 << 20
MAX_MEMBERS = 10_000


class UnreadableFile(OSError): ...


def _first_bytes(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)


def foreign_format(head: bytes) -> str | None:
    """Name the binary format of a file that begins with `head`, and what to do; None for others."""
    found = next((name for magic, name in FOREIGN if head.startswith(magic)), None)
    return None if found is None else f"it is {found}; save it as CSV or JSON lines first"


def why_foreign(path: str | Path) -> str | None:
    """As `foreign_format`, for a file. Raises one of `UNREADABLE`."""
    if packing_of(path) == "zip":
        members_of(path)
    return foreign_format(_first_bytes(path))


def packing_of(path: str | Path) -> Packing | None:
    head = _first_bytes(path)
    return next((packing for magic, packing in MAGIC if magic.match(head)), None)


def data_suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[1] in PACKED_SUFFIXES:
        return suffixes[0]
    return suffixes[-1] if suffixes else ""


def members_of(path: str | Path) -> list[str]:
    """By name, without hidden files. Raises one of `UNREADABLE`."""
    with zipfile.ZipFile(path) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if "[Content_Types].xml" in names:
        raise UnreadableFile("it is a document of an office program; save it as CSV first")
    kept = sorted(name for name in names if not is_hidden(Path(name)))
    if len(kept) > MAX_MEMBERS:
        raise UnreadableFile(
            f"the archive has {len(kept)} files, at most {MAX_MEMBERS} are read; unpack it first"
        )
    if len(set(kept)) < len(kept):
        raise UnreadableFile("the archive has several files of one name; unpack it first")
    return kept


def check_link(path: str | Path) -> None:
    """Raise `UnreadableFile` if `path` is another user's link: it may lead to any file that this user can
    read."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in {os.getuid(), 0}:
        raise UnreadableFile(f"it is a link of user {found.st_uid}, which is not followed; copy the file")


def is_hidden(path: Path) -> bool:
    return any(part.startswith(HIDDEN) for part in path.parts)


def open_file(path: str | Path, member: str | None = None) -> BinaryIO:
    """Not seekable if compressed. Opening and reading raise one of `UNREADABLE`."""
    packing = "zip" if member is not None else packing_of(path)
    if packing is None:
        return open(path, "rb", buffering=BLOCK_BYTES)
    packed_bytes = os.stat(path).st_size
    inner = _open_member(path, member) if packing == "zip" else OPENERS[packing](path)
    return cast(BinaryIO, io.BufferedReader(_Bounded(inner, packed_bytes), BLOCK_BYTES))


class _Bounded(io.RawIOBase):
    def __init__(self, inner: Any, packed_bytes: int) -> None:
        self._inner = inner
        self._most = FREE_BYTES + MAX_RATIO * packed_bytes
        self._taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got: bytes = self._inner.read(len(buffer))
        buffer[: len(got)] = got
        self._taken += len(got)
        if self._taken > self._most:
            raise UnreadableFile(
                f"it unpacks to more than {MAX_RATIO:,} times its size, as only a decompression bomb does; "
                "if it is not one, unpack it first"
            )
        return len(got)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _open_xz(path: str | Path) -> Any:
    """An xz dictionary may have up to 4 GiB."""
    with open(path, "rb") as file:
        head = file.read(1024)
    try:
        lzma.LZMADecompressor(memlimit=MAX_MEMORY_BYTES).decompress(head, 1)
    except lzma.LZMAError as error:
        raise UnreadableFile(f"{error}; at most {MAX_MEMORY_BYTES >> 20} MiB of memory are used") from None
    return lzma.open(path)


def _open_zstd(path: str | Path) -> Any:
    import pyarrow

    if not pyarrow.Codec.is_available("zstd"):
        raise UnreadableFile("this build of pyarrow does not read zstd; unpack the file first")
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(open(path, "rb"), "r"), "zstd")


def _open_member(path: str | Path, member: str | None) -> Any:
    if member is None:
        raise UnreadableFile("a zip archive is read by its members")
    with zipfile.ZipFile(path) as archive:
        try:
            info = archive.getinfo(member)
        except KeyError:
            raise UnreadableFile(f"the archive has no file {member!r} any more") from None
        if info.flag_bits & 1:
            raise UnreadableFile("the archive is encrypted; unpack it first")
        # The member keeps the archive open until it is closed.
        return archive.open(info)


OPENERS: dict[str, Callable[[str | Path], Any]] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": _open_xz,
    "zstd": _open_zstd,
}


UTF_8 = "utf-8"
WIDTHS = {"utf-16": 2, "utf-16-le": 2, "utf-16-be": 2, "utf-32": 4, "utf-32-le": 4, "utf-32-be": 4}
ASCII_BASED = (
    *(f"iso8859-{number}" for number in (1, *range(2, 12), 13, 14, 15, 16)),
    *(f"cp{number}" for number in range(1250, 1259)),
    *("cp437", "cp850", "cp852", "cp855", "cp858", "cp866", "cp874", "cp932", "cp949", "cp950"),
    *("ascii", "mac-roman", "koi8-r", "koi8-u", "shift_jis", "euc_jp", "euc_kr", "gb2312", "gbk", "gb18030"),
    *("big5", "tis-620"),
)
"""In all of these, byte 0x0a is a line feed and no decoder state crosses it."""
KNOWN = frozenset((UTF_8, "utf-8-sig", *WIDTHS, *ASCII_BASED))
"""Looking them up would load fifty modules into each process."""
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
    codec: str = UTF_8
    newline: bytes = b"\n"


def canonical_encoding(name: str) -> str:
    """Raises `SettingError` if it is unknown or cannot be split into lines."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        found = ""
    if found not in KNOWN:
        raise SettingError(f"encoding: expected the name of a text encoding ({COMMON}, …), found {name!r}")
    return UTF_8 if found == "utf-8-sig" else found


def encoding_of(name: str, head: bytes) -> Encoding:
    """`head`: the first 4 bytes, with the byte order. Without a mark, `utf-16` and `utf-32` are
    little-endian."""
    name = canonical_encoding(name)
    if name == "utf-16":
        name = "utf-16-be" if head.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
    elif name == "utf-32":
        name = "utf-32-be" if head.startswith(codecs.BOM_UTF32_BE) else "utf-32-le"
    width = WIDTHS.get(name, 1)
    return Encoding(name, b"\n".rjust(width, b"\0") if name.endswith("-be") else b"\n".ljust(width, b"\0"))


def looks_utf_16(data: bytes) -> str | None:
    """Other text has no NUL in every other byte."""
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
    found = looks_utf_16(data)
    if found is not None:
        return found
    try:
        data.decode(UTF_8)
    except UnicodeDecodeError:
        return "cp1252"
    return None


def encoding_hint(data: bytes) -> str:
    likely = likely_encoding(data)
    if likely is None:
        return ""
    if likely.startswith("utf"):
        return f"it looks like {likely.upper()}: set `encoding: {likely}` for the source"
    return (
        f"if the file is in another encoding, name it: `encoding: {likely}` is the usual one of Western "
        "European Windows"
    )
