"""Compressed files are detected by content, and unpacked within bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode
from forebay.connectors.files import unpack
from forebay.connectors.files.lines import LinePart, sized
from forebay.connectors.files.reader import FileCursor, FilesReader, LineReader, parts_of
from forebay.connectors.files.unpack import (
    ASCII_BASED,
    UNREADABLE,
    UnreadableFile,
    canonical_encoding,
    encoding_hint,
    looks_utf_16,
    open_file,
    packing_of,
)
from forebay.connectors.formats import Format
from forebay.errors import SettingError

TEXT = LineReader(Format("text"))
LINES = [b"%d" % n for n in range(5000)]
CONTENT = b"\n".join(LINES) + b"\n"


def zstd(content: bytes) -> bytes:
    packed: bytes = pyarrow.Codec("zstd").compress(content).to_pybytes()
    return packed


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
    "zip": lambda content: zipped(f=content),
}


def read(path: Path, cursor: FileCursor | None = None) -> list[tuple[FileCursor, str, bytes]]:
    files = FilesReader(parts_of(path, TEXT), TEXT)
    found = [
        (at, decode(record)) for at, record in files.records(cursor or FileCursor()) if record is not None
    ]
    return [(at, record.position, record.raw) for at, record in found]


@pytest.mark.heavy
@pytest.mark.parametrize("packing", list(PACKED))
@pytest.mark.parametrize("name", ["data", "data.csv", "data.bz2", "DATA.GZ"])
def test_file_is_unpacked_by_content_not_name(tmp_path: Path, packing: str, name: str) -> None:
    (tmp_path / name).write_bytes(PACKED[packing](CONTENT))
    assert packing_of(tmp_path / name) == packing
    (part,) = parts_of(tmp_path, TEXT)
    assert part.size == len(CONTENT)
    found = read(tmp_path)
    assert [raw for *_, raw in found] == LINES
    assert read(tmp_path, found[1234][0]) == found[1235:]


@pytest.mark.parametrize("content", [b"", b"a", b"BZh91,x\n", b"plain\n", b"\x1f\x8b", b"P\n"])
def test_plain_file_is_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.gz").write_bytes(content)
    assert packing_of(tmp_path / "f.gz") is None
    with open_file(tmp_path / "f.gz") as file:
        assert file.read() == content


def test_each_file_in_an_archive_is_a_file(tmp_path: Path) -> None:
    members = {"b.csv": b"1\n2\n", "a/x.csv": b"3\n", "__MACOSX/b": b"no", ".hidden": b"no", "empty/": b""}
    (tmp_path / "in.zip").write_bytes(zipped(**members))
    assert [(position, raw) for _, position, raw in read(tmp_path / "in.zip")] == [
        ("in.zip/a/x.csv@1", b"3"),
        ("in.zip/b.csv@1", b"1"),
        ("in.zip/b.csv@2", b"2"),
    ]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"[Content_Types].xml": b""}, "a document of an office program; save it as CSV"),
        ({"a": b"", "b": b"", "c": b""}, "the archive has 3 files, at most 2 are read"),
    ],
)
def test_rejected_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes], said: str
) -> None:
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 2)
    (tmp_path / "in.zip").write_bytes(zipped(**members))
    with pytest.raises(SettingError, match=f"in.zip cannot be read: .*{said}"):
        read(tmp_path)


def test_encrypted_archive_is_rejected(tmp_path: Path) -> None:
    content = bytearray(zipped(f=b"1\n"))
    # The flag is in the local header and in the directory.
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "in.zip").write_bytes(content)
    with pytest.raises(SettingError, match="encrypted; unpack it first"):
        read(tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("packing", list(PACKED))
def test_decompression_bomb_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    monkeypatch.setattr(unpack, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(unpack, "MAX_RATIO", 100)
    (tmp_path / "f").write_bytes(PACKED[packing](bytes(16 << 20)))
    with pytest.raises(SettingError, match="unpacks to more than 100 times its size"):
        parts_of(tmp_path, TEXT)


def test_memory_hungry_xz_file_is_rejected(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    (tmp_path / "f").write_bytes(lzma.compress(CONTENT, filters=filters))
    assert sized(LinePart(str(tmp_path / "f"), "f")).size == len(CONTENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpack, "MAX_MEMORY_BYTES", 1 << 19)
        with pytest.raises(UnreadableFile, match="at most 0 MiB of memory"):
            open_file(tmp_path / "f")


@pytest.mark.parametrize("packing", list(PACKED))
def test_truncated_or_damaged_file_is_named(tmp_path: Path, packing: str) -> None:
    packed = PACKED[packing](CONTENT)
    (tmp_path / "f").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SettingError, match="f cannot be read: "):
        parts_of(tmp_path, TEXT)
    if packing == "zstd":
        return  # Arrow writes no checksums.
    damaged = bytearray(packed)
    for at in range(len(packed) // 3, len(packed) // 3 + 40):
        damaged[at] ^= 0x5A
    (tmp_path / "f").write_bytes(damaged)
    with pytest.raises((SettingError, *UNREADABLE)):
        parts_of(tmp_path, TEXT)


@pytest.mark.parametrize("name", ["", "utf-7", "base64", "idna", "unicode_escape", "cp037", "hz", "utf_8\0"])
def test_file_that_is_not_read_by_lines_is_rejected(name: str) -> None:
    with pytest.raises(SettingError, match=r"encoding: expected the name of a text encoding \(utf-8, utf-16"):
        canonical_encoding(name)


@pytest.mark.parametrize("name", ASCII_BASED)
def test_a_line_feed_is_one_byte_in_encodings_that_contain_ascii(name: str) -> None:
    for high in range(0x80, 0x100):
        for data in (bytes((high, 0x0A)), bytes((high, 0x81, 0x0A)), bytes((high, 0x30, 0x81, 0x0A))):
            with suppress(UnicodeDecodeError):
                assert data.decode(name).endswith("\n")
    assert canonical_encoding(name) == name
    assert bytes(range(0x20, 0x7F)).decode(name).encode("ascii") == bytes(range(0x20, 0x7F))


@pytest.mark.parametrize("order", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_recognised_at_any_cut(order: str) -> None:
    data = 'id,text\n1,"a line of some words"\n'.encode(order)
    for line in data.split(b"\n")[:2]:
        assert looks_utf_16(line) == "utf-16"
        assert "set `encoding: utf-16`" in encoding_hint(line)


@given(st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_no_hint_for_utf_8(text: str) -> None:
    assert encoding_hint(text.encode()) == ""
