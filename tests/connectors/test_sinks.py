from __future__ import annotations

from pathlib import Path

from forebay.connectors.sinks import committed_parts, read_jsonl_sink


def test_only_committed_files_are_read_each_writers_in_order(tmp_path: Path) -> None:
    for name, text in {
        "part-a-b-10.jsonl": "3\n4\n",
        "part-a-b-2.jsonl": "1\n2\n",
        "part-c-0.jsonl": "5\n",
        ".part-c-1.jsonl.inprogress.xyz": "no\n",
        "part-x.jsonl": "no\n",
        "other.jsonl": "no\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert [int(line) for line in read_jsonl_sink(tmp_path)] == [1, 2, 3, 4, 5]
    assert len(committed_parts(tmp_path)) == 3
    assert committed_parts(tmp_path / "none") == []
