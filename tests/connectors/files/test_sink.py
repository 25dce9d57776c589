from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import S3Path
from forebay.connectors.files.sink import Part, committed_parts, read_jsonl_sink


def test_only_committed_files_are_read_in_the_order_written(tmp_path: Path) -> None:
    for name, text, written_s in (
        ("part-a-b-10.jsonl", "4\n5\n", 3),
        ("part-a-b-2.jsonl", "2\n3\n", 3),
        ("part-c-0.jsonl", "1\n", 2),
        ("part-0-0.jsonl", "6\n", 4),
        (".part-c-1.jsonl.inprogress.xyz", "no\n", 1),
        ("part-x.jsonl", "no\n", 1),
        ("other.jsonl", "no\n", 1),
    ):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (written_s, written_s))
    assert [int(line) for line in read_jsonl_sink(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert len(committed_parts(tmp_path)) == 4
    assert committed_parts(tmp_path / "none") == []


def test_lines_after_a_byte_are_the_same_in_a_folder_and_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"one\n\nthree\n"
    (tmp_path / "part").write_bytes(content)
    monkeypatch.setattr(S3Client, "lines", lambda self, key: iter(content.splitlines()))
    for begin in range(len(content) + 1):
        file, stored = (Part(place, "part", 0, len(content)) for place in (tmp_path, S3Path("b", "k")))
        assert list(stored.lines(begin)) == list(file.lines(begin))
