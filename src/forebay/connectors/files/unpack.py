"""Open compressed files, recognised by their first bytes, not their names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

Packing = Literal["gzip", "bzip2", "xz", "zstd", "zip"]
MAGIC: tuple[tuple[re.Pattern[bytes], Packing], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip"),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2"),
    (re.compile(rb"\xfd7zXZ\0"), "xz"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.S), "zstd"),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), "zip"),
)
PACKED_SUFFIXES = (".gz", ".gzip", ".bz2", ".xz", ".zst", ".zip")
HEAD_BYTES = 16
BLOCK_BYTES = 1 << 16
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
"""Errors of opening and reading a file that is damaged, truncated or forbidden."""

MAX_RATIO = 1000
FREE_BYTES = 64 << 20
"""Always allowed; beyond it, `MAX_RATIO` times the file's size."""
MAX_MEMORY_BYTES = 256 << 20
MAX_MEMBERS = 10_000


class UnreadableFile(OSError):
    """Rejected, with the reason."""


def packing_of(path: str | Path) -> Packing | None:
    """None: uncompressed."""
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    return next((packing for magic, packing in MAGIC if magic.match(head)), None)


def data_suffix(path: Path) -> str:
    """The content's suffix: `.csv` for `posts.csv` and for `posts.CSV.gz`."""
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
    """Raise `UnreadableFile` if `path` is a link that another user made: it could lead to any file that only
    this user may read.
    """
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in {os.getuid(), 0}:
        raise UnreadableFile(f"it is a link of user {found.st_uid}, which is not followed; copy the file")


def is_hidden(path: Path) -> bool:
    """A part of the path begins with `.` or `_`."""
    return any(part.startswith((".", "_")) for part in path.parts)


def open_file(path: str | Path, member: str | None = None) -> BinaryIO:
    """Unpacked bytes of a file, or of a `member` of a zip archive; not seekable if compressed.

    Opening and reading raise one of `UNREADABLE`.
    """
    packing = "zip" if member is not None else packing_of(path)
    if packing is None:
        return open(path, "rb", buffering=BLOCK_BYTES)
    packed_bytes = os.stat(path).st_size
    inner = _open_member(path, member) if packing == "zip" else OPENERS[packing](path)
    return cast(BinaryIO, io.BufferedReader(_Bounded(inner, packed_bytes), BLOCK_BYTES))


class _Bounded(io.RawIOBase):
    """Fails once the unpacked stream is much longer than its file."""

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
    """Checks memory first: an xz dictionary may have up to 4 GiB."""
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
