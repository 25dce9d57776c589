"""After a run without results the most frequent cause of its dead letters is named."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
from rich.console import Console

from forebay.cli.run import show_lost


def shown(folder: str | None) -> str:
    written = io.StringIO()
    show_lost(folder, Console(file=written, width=60))
    return written.getvalue()


def write(folder: Path, *letters: tuple[str, str]) -> None:
    lines = (orjson.dumps({"cause": cause, "detail": detail}) + b"\n" for cause, detail in letters)
    (folder / "part-0-0.jsonl").write_bytes(b"".join(lines))


def test_the_most_frequent_cause_and_an_example_are_named(tmp_path: Path) -> None:
    one, other = ("malformed_record", "the time field 'text' holds [red]no time"), ("late", "2 s")
    write(tmp_path, other, one, ("malformed_record", "another"))
    assert shown(str(tmp_path)) == (
        "no results, only dead letters, most often malformed_record: the time field 'text' holds "
        "[red]no time\n"
    )


def test_what_a_record_says_is_short_and_no_order_to_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, ("bad_record", "\x1b[2J\x07" + "a" * 5000))
    assert "\x1b" not in shown(str(tmp_path))
    assert "\x07" not in shown(str(tmp_path))
    assert len(shown(str(tmp_path))) < 600


def test_letters_elsewhere_are_not_spoken_of(tmp_path: Path) -> None:
    assert shown(None) == ""
    assert shown(str(tmp_path)) == ""
