from __future__ import annotations

import os
from pathlib import Path

from forebay.connectors.files.sink import committed_parts, read_jsonl_sink


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
