"""Files as a source, without Flink: each record once, in order, wherever a run ends."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.harness.keyed_state import OneKeyContext, PlannedCalls, Room

from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.files import source
from forebay.connectors.files.reader import FilesReader, LineReader, columns_at, parts_of
from forebay.connectors.files.settings import check_files
from forebay.connectors.files.source import (
    Files,
    ReadPieces,
    ReplayRecords,
    ReplaySpeed,
    line_reader,
    piece_bytes,
    records_of,
    replay_source,
)
from forebay.connectors.formats import Format
from forebay.connectors.python_source import WAIT_S
from forebay.errors import SettingError
from forebay.flink.types import END_OF_TIME_MS

LINES = st.lists(st.sampled_from([b"", b'{"at": 1}', b"bad", b"x" * 150, b'1,"a', b'b"', b"2,c"]))
READERS = st.sampled_from(
    [
        LineReader(Format(max_record_bytes=100)),
        LineReader(Format("text"), limit=3),
        LineReader(Format("csv", columns=("id", "text"))),
    ]
)


@given(st.lists(LINES, max_size=4), READERS, st.integers(1, 200), st.data())
def test_restore_between_any_two_pieces_continues_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[bytes]],
    reader: LineReader,
    step: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for number, lines in enumerate(files):
        (folder / f"{number:03d}").write_bytes(b"\n".join(lines))
    parts = parts_of(folder, reader)
    everything = [decode(recorded.data) for recorded in records_of(parts, reader)]
    count = max(1, -(-FilesReader(parts, reader).size // step))
    context, got, first = OneKeyContext(), [], True
    function = None
    skips = data.draw(st.booleans())
    following = 0
    while (number := following) < count:
        following += 1
        if function is None or data.draw(st.booleans()):
            # A restored run was planned with the files present at that time.
            function = ReadPieces(parts_of(folder, reader), reader, step if first else 7)
            context, first = OneKeyContext(context.states), False
            function.open(context)
        skipped: list[int] = []
        function._skipped = cast(Any, SimpleNamespace(until=skipped.append))
        got += [decode(each) for each in function.process_element(number, context)]
        following = max([following, *skipped]) if skips else following
        with (folder / data.draw(st.sampled_from(["000", "0005", "zzz"]))).open("ab") as file:
            file.write(b"\nmore")
    assert function is not None
    assert list(function.on_timer(END_OF_TIME_MS, context)) == []
    assert got == everything
    assert context.gauge == (1 if sum(part.size for part in parts) else None)


@pytest.mark.parametrize(
    ("lengths", "piece"),
    [
        ([], 64),
        ([9] * 50, 64),
        ([99] * 50, 400),
        ([999] * 50, 1024),
        ([9999] * 5, 10_000),
        ([99] * 9 + [9999], 1024),
        ([9] * 6 + [9999] * 4, 1024),
    ],
)
def test_piece_has_a_few_lines_or_a_long_one(tmp_path: Path, lengths: list[int], piece: int) -> None:
    (tmp_path / "f").write_bytes(b"".join(b"x" * length + b"\n" for length in lengths))
    assert piece_bytes(parts_of(tmp_path, LineReader(Format("text")))) == piece


def test_end_of_input_timer_is_set_by_the_first_piece(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1,a\n" + b"2,b\n" * 20)
    reader, context = LineReader(Format("csv", columns=("id", "text"))), OneKeyContext()
    function = ReadPieces(parts_of(tmp_path, reader), reader, 4)
    function.open(context)
    assert [decode(record).raw for record in function.process_element(0, context)] == [b"1,a"]
    assert context.event_timers == {END_OF_TIME_MS}
    again = ReadPieces(parts_of(tmp_path, reader), reader, 4)
    again.open(OneKeyContext(context.states))
    assert len(list(again.on_timer(END_OF_TIME_MS, context))) == 20


def test_each_piece_has_the_rows_that_begin_in_it(tmp_path: Path) -> None:
    """However far an unclosed quote makes reading look ahead: no call emits thousands of rows."""
    (tmp_path / "f").write_bytes(b'1,"open\n' + b"2,good\n" * 999)
    reader, context = LineReader(Format("csv", columns=("id", "text"))), OneKeyContext()
    function = ReadPieces(parts_of(tmp_path, reader), reader, 70)
    function.open(context)
    counts = [len(list(function.process_element(call, context))) for call in range(101)]
    assert max(counts) == 10
    assert sum(counts) == 1000
    assert max(len(state) for state in context.states.values()) < 300


def test_files_may_be_added_and_removed_between_runs(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.csv").write_bytes(b"id,text\n1,b\n2,b\n3,b\n")
    (folder / "c.csv").write_bytes(b"text,id\nc,4\nc,5\n")
    reader, context = LineReader(Format("csv"), header=True), OneKeyContext()
    function = ReadPieces(parts_of(folder, reader), reader, 13)
    function.open(context)
    got = [decode(record) for record in function.process_element(0, context)]
    (folder / "a.csv").write_bytes(b"text,more,id\na,x,9\n")
    (folder / "b.csv").write_bytes((folder / "b.csv").read_bytes() + b"7,added\n")
    again = ReadPieces(parts_of(folder, reader), reader, 999)
    context = OneKeyContext(context.states)
    again.open(context)
    for number in range(1, 4):
        got += [decode(record) for record in again.process_element(number, context)]
    assert [(record.position, record.fields["id"], record.fields["text"]) for record in got] == [
        ("in/b.csv@2", "1", "b"),
        ("in/b.csv@3", "2", "b"),
        ("in/b.csv@4", "3", "b"),
        ("in/c.csv@2", "4", "c"),
        ("in/c.csv@3", "5", "c"),
    ]


FORM = Format(time=EventTime("at", "unix_s"), max_record_bytes=100)


class Run:
    """One replay of `path`, from a checkpoint; each record takes `takes_s`."""

    def __init__(
        self,
        path: Path,
        reader: LineReader,
        pace: ReplaySpeed | None = None,
        *,
        states: dict[str, bytes] | None = None,
        room: Room | None = None,
        takes_s: float = 0.0,
    ) -> None:
        self.clock = ManualClock(0.0)
        self.context = OneKeyContext(states)
        self.room = room or Room()
        self._takes_s = takes_s
        self.function = ReplayRecords(
            parts_of(path, reader), reader, pace or ReplaySpeed(), clock=self.clock, sleep=self.clock.pause
        )
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(source, "output_room", lambda _: self.room)
            self.function.open(self.context)

    def call(self, *, end: bool = False) -> list[tuple[float, bytes]]:
        """Time and content of each record that a call emitted."""
        left = []
        given = self.function.on_timer(END_OF_TIME_MS, self.context) if end else None
        for data in given or self.function.process_element(0, self.context):
            left.append((self.clock.monotonic_s(), decode(data).raw))
            self.clock.advance(self._takes_s)
        return left


def replayed(path: Path, pace: ReplaySpeed, late_s: float = 0.0) -> list[tuple[float, bytes]]:
    run = Run(path, LineReader(FORM), pace, takes_s=late_s)
    left = run.call()
    while run.function._next is not None:
        left += run.call()
    return left


def test_records_are_emitted_at_their_times(tmp_path: Path) -> None:
    lines = [b'{"at": 100}', b'{"at": 100.5}', b"bad", b'{"at": 99}', b'{"at": 103}', b'{"at": 9999}']
    (tmp_path / "f").write_bytes(b"\n".join(lines))
    left = replayed(tmp_path / "f", ReplaySpeed(speed=2, longest_gap_s=10))
    assert [raw for _, raw in left] == lines
    assert [at_s for at_s, _ in left] == pytest.approx([0, 0.25, 0.25, 0.25, 2.25, 12.25])


def test_late_records_are_caught_up(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"".join(b'{"at": %d}\n' % n for n in range(4)))
    assert [at_s for at_s, _ in replayed(tmp_path / "f", ReplaySpeed(), late_s=1.5)] == [0, 1.5, 3, 4.5]
    assert [at_s for at_s, _ in replayed(tmp_path / "f", ReplaySpeed(), late_s=0.5)] == pytest.approx(
        [0, 1, 2, 3]
    )


def test_calls_are_short_and_emit_only_what_fits(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'{"at": 1}\n' * 5 + b'{"at": 9}\n')
    run = Run(tmp_path / "f", LineReader(FORM), room=Room(True, False, False))
    assert [len(run.call()) for _ in range(4)] == [2, 1, 2, 0]
    assert run.clock.slept_s == [WAIT_S]


FILES = st.lists(st.lists(st.sampled_from([b"", b'{"at": 1}', b"bad", b"x" * 150, b'1,"a', b'b"', b"2,c"])))
REPLAYERS = st.sampled_from(
    [LineReader(FORM), LineReader(Format("text"), limit=3), LineReader(Format("csv", columns=("id", "text")))]
)


def written(factory: pytest.TempPathFactory, files: list[list[bytes]], end: bytes) -> Path:
    folder = factory.mktemp("replay")
    for number, lines in enumerate(files):
        (folder / f"{number:03d}").write_bytes(end.join(lines))
    return folder


@given(FILES, REPLAYERS, st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_restore_between_any_two_calls_continues_at_the_same_record(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[bytes]],
    reader: LineReader,
    end: bytes,
    data: st.DataObject,
) -> None:
    folder = written(tmp_path_factory, files, end)
    everything = [decode(recorded.data) for recorded in records_of(parts_of(folder, reader), reader)]
    states, got, script = {}, [], Room(*data.draw(st.lists(st.booleans())))
    for number in range(1000):
        run = Run(folder, reader, states=states, room=script)
        calls = data.draw(st.integers(1, 3))
        for _ in range(calls):
            got += [raw for _, raw in run.call()]
        states = run.context.states
        # Files that are added before and behind the place, and lines to those that are read.
        name = data.draw(st.sampled_from(["000", "0005", "zzz"]))
        with (folder / name).open("ab") as file:
            file.write(end + b'{"at": 77}')
        if run.function._next is None or number > 900:
            break
    got += [raw for _, raw in Run(folder, reader, states=states).call(end=True)]
    assert got == [record.raw for record in everything]


def test_file_added_before_the_current_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b"".join(b'{"at": 1, "n": %d}\n' % n for n in range(4)))
    reader = LineReader(FORM)
    run = Run(tmp_path, reader, room=Room(False, False))
    got = [raw for _ in range(2) for _, raw in run.call()]
    (tmp_path / "a.jsonl").write_bytes(b'{"at": 1, "added": true, "much": "longer than the other"}\n' * 9)
    got += [raw for _, raw in Run(tmp_path, reader, states=run.context.states).call()]
    assert got == [b'{"at": 1, "n": %d}' % n for n in range(4)]


@given(FILES, st.lists(st.booleans()), st.integers(1, 5))
def test_planned_calls_are_enough(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[bytes]], room: list[bool], gap_s: int
) -> None:
    """With any room: nothing is left for the end of the input, when checkpoints are impossible."""
    lines = [b'{"at": %d}' % (gap_s * n) for n, _ in enumerate(line for lines in files for line in lines)]
    folder = written(tmp_path_factory, [lines], b"\n")
    planned = PlannedCalls()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(source, "calls", planned)
        replay_source(None, Files(folder, FORM), ReplaySpeed(speed=7))
    run = Run(folder, LineReader(FORM), ReplaySpeed(speed=7), room=Room(*room), takes_s=0.001)
    left = [each for _ in range(planned.count) for each in run.call()]
    assert [raw for _, raw in left] == lines
    assert planned.count <= len(lines) + math.ceil(max(0, len(lines) - 1) * gap_s / 7 / WAIT_S) + 2


def test_invalid_settings(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"{}")
    with pytest.raises(SettingError, match="follow"):
        replay_source(None, Files(tmp_path / "f", FORM, follow=True), ReplaySpeed())
    with pytest.raises(SettingError, match="recorded time"):
        replay_source(None, Files(tmp_path / "f"), ReplaySpeed())
    for wrong in ({"speed": 0}, {"speed": float("nan")}, {"longest_gap_s": -1}):
        with pytest.raises(SettingError):
            ReplaySpeed(**wrong)


def test_csv_headers(tmp_path: Path) -> None:
    def columns(text: bytes) -> tuple[str, ...]:
        (tmp_path / "f.csv").write_bytes(text)
        config = Files(tmp_path, Format("csv"))
        line_reader(config)
        return columns_at(config)

    (tmp_path / "_hidden.csv").write_bytes(b"not,this")
    assert columns(b"id,text\r\n1,a") == ("id", "text")
    assert columns(b'\xef\xbb\xbf"a\nb",c\n1,2') == ("a\nb", "c")
    assert columns(b"a,a\n") == ("a", "a_2")
    for bad in (b"", b"\xff\n", b'"a,b\n', "a,b\n".encode("utf-16-le")):
        with pytest.raises(SettingError, match=r"header|is empty: it has no line with the names"):
            columns(bad)
    with pytest.raises(SettingError, match="set `encoding: utf-16` for the source"):
        columns("a,b\n".encode("utf-16"))


def test_missing_sources(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        line_reader(Files(tmp_path / "none"))
    with pytest.raises(SettingError, match="name the columns"):
        line_reader(Files(tmp_path, Format("csv")))
    with pytest.raises(SettingError, match="name the columns"):
        line_reader(Files(tmp_path, Format("csv"), letters=True))
    with pytest.raises(SettingError, match="limit"):
        line_reader(Files(tmp_path, limit=0))
    os.mkfifo(tmp_path / "pipe")
    for check in (line_reader, partial(check_files, "source")):
        with pytest.raises(SettingError, match="pipe is neither a file nor a directory; save its records"):
            check(Files(tmp_path / "pipe"))
    (tmp_path / "f").write_bytes(b"{}")
    with pytest.raises(SettingError, match="name a directory"):
        line_reader(Files(tmp_path / "f", follow=True))
    with pytest.raises(SettingError, match="leave one of them out"):
        line_reader(Files(tmp_path, follow=True, limit=5))
