"""Committed lines are read once each, within bounds, and passed on as news."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.pipeline.live.runs import Run, letter, result

from forebay.connectors.files.sink import committed_parts
from forebay.pipeline.followed_lines import FollowedLines
from forebay.pipeline.live import outputs as live_outputs
from forebay.pipeline.live.outputs import (
    EXAMPLES,
    MAX_CAUSES,
    NewestLines,
    OutputsReader,
    RunOutputs,
    one_line,
)
from forebay.testing.waiting import wait_until


def test_followed_lines_of_growing_files_are_read_once(tmp_path: Path) -> None:
    followed = FollowedLines(tmp_path)
    assert list(followed.new()) == []
    part = tmp_path / "part-a-0.jsonl"
    part.write_bytes(b"1\n2\n")
    assert list(followed.new()) == [b"1", b"2"]
    assert list(followed.new()) == []
    with part.open("ab") as file:
        file.write(b"3\n")
    (tmp_path / "part-b-0.jsonl").write_bytes(b"4\n")
    (tmp_path / ".part-c-0.jsonl.inprogress").write_bytes(b"5\n")
    assert sorted(followed.new()) == [b"3", b"4"]
    assert len(committed_parts(tmp_path)) == 2


def test_file_that_was_removed_and_begun_again_is_read(tmp_path: Path) -> None:
    followed = FollowedLines(tmp_path)
    part = tmp_path / "part-a-0.jsonl"
    part.write_bytes(b"1\n2\n")
    assert list(followed.new()) == [b"1", b"2"]
    part.unlink()
    part.write_bytes(b"3\n")
    assert list(followed.new()) == [b"3"]


def test_only_the_newest_old_files_are_read(tmp_path: Path) -> None:
    for number in range(5):
        part = tmp_path / f"part-a-{number}.jsonl"
        part.write_bytes(b"%d\n" % number)
        os.utime(part, (number, number))
    followed = FollowedLines(tmp_path, newest=2)
    assert list(followed.new()) == [b"3", b"4"]
    (tmp_path / "part-b-0.jsonl").write_bytes(b"5\n")
    assert list(followed.new()) == [b"5"]
    assert list(FollowedLines(tmp_path, newest=9).new()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_only_the_newest_bytes_of_old_files_are_read(tmp_path: Path) -> None:
    for number in range(3):
        part = tmp_path / f"part-a-{number}.jsonl"
        part.write_bytes(b"a%d\nb%d\n" % (number, number))
        os.utime(part, (number, number))
    followed = FollowedLines(tmp_path, most_bytes=9)
    assert list(followed.new()) == [b"b1", b"a2", b"b2"]
    assert list(followed.new()) == []
    with (tmp_path / "part-a-0.jsonl").open("ab") as file:
        file.write(b"c0\n")
    assert list(followed.new()) == [b"c0"]
    assert list(FollowedLines(tmp_path, most_bytes=0).new()) == []


def test_newest_lines_fit_into_their_limit() -> None:
    newest = NewestLines(10)
    for number in range(100):
        newest.add(b"%04d" % number)
    assert list(newest.lines) == [b"0098", b"0099"]
    assert newest.added == 100


def test_news_are_results_that_appear_after_the_first_look(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit("results", result(1))
    news: list[bytes] = []
    outputs = RunOutputs(run.spec, news=news.append)
    outputs.look()
    assert news == []
    run.commit("results", result(2))
    outputs.look()
    outputs.look()
    assert len(news) == 1
    assert b"t-2" in news[0]


def test_dead_letters_are_counted_by_cause_with_a_few_examples(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.commit("letters", *[letter("timeout", str(number)) for number in range(9)], {"no": "cause"})
    assert run.outputs.causes["timeout"].count == 9
    assert len(run.outputs.causes["timeout"].newest) == EXAMPLES
    run.commit("letters", *[letter(f"cause{number}") for number in range(3 * MAX_CAUSES)])
    assert len(run.outputs.causes) <= MAX_CAUSES + 1
    assert run.outputs.causes["other"].count == 2 * MAX_CAUSES + 1


def test_line_counts_once_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    count = run.outputs._count

    def drawn_before(line: bytes) -> None:
        run.page.part("letters")
        count(line)

    monkeypatch.setattr(run.outputs, "_count", drawn_before)
    run.commit("letters", letter("timeout"))
    assert "timeout" in run.page.part("letters")
    added: list[int] = []
    newest = NewestLines(10)
    newest.lines = Mock(append=lambda _line: added.append(newest.added))
    newest.add(b"1")
    assert added == [0]


def test_a_folder_that_cannot_be_read_is_reported_until_it_can(tmp_path: Path) -> None:
    run = Run(tmp_path)
    place = tmp_path / "results"
    place.mkdir()
    (place / "part-x-0.jsonl").symlink_to(tmp_path / "gone")
    run.outputs.look()
    assert "the results cannot be read now" in run.outputs.trouble
    (place / "part-x-0.jsonl").unlink()
    run.outputs.look()
    assert run.outputs.trouble == ""


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_lines_are_read_without_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_outputs, "LOOK_S", 600.0)
    run = Run(tmp_path)
    (tmp_path / "results").mkdir()
    reader = OutputsReader(run.outputs)
    reader.start()
    for number in range(3):
        with (tmp_path / "results" / "part-x-0.jsonl").open("ab") as file:
            file.write(b"{}\n")
        wait_until(lambda wanted=number + 1: run.outputs.results.added == wanted)
    reader.close()


def test_reader_reads_a_last_time_on_close(tmp_path: Path) -> None:
    run = Run(tmp_path)
    reader = OutputsReader(run.outputs)
    reader.start()
    wait_until(lambda: not run.outputs._first)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "part-x-0.jsonl").write_bytes(b"{}\n")
    reader.close()
    assert run.outputs.results.added == 1


@pytest.mark.parametrize("text", ["a\nb\x1b[31m", "x" * 1000])
def test_news_are_one_short_line_without_controls(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= 200
