"""Files as a source, without Flink: each record once, in order, wherever a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.keyed_state import OneKeyContext

from forebay.codec import decode
from forebay.connectors.files.reader import FilesReader, LineReader, parts_of
from forebay.connectors.files.source import ReadPieces, records_of
from forebay.connectors.formats import Format
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
def test_a_restore_between_any_two_pieces_continues_at_the_same_place(
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
    for number in range(count):
        if function is None or data.draw(st.booleans()):
            # A restored run was planned with the files present at that time.
            function = ReadPieces(parts_of(folder, reader), reader, step if first else 7)
            context, first = OneKeyContext(context.states), False
            function.open(context)
        got += [decode(each) for each in function.process_element(number, context)]
        with (folder / data.draw(st.sampled_from(["000", "0005", "zzz"]))).open("ab") as file:
            file.write(b"\nmore")
    assert function is not None
    got += [decode(each) for each in function.on_timer(END_OF_TIME_MS, context)]
    assert got == everything
    assert context.gauge == (1_000_000 if sum(part.size for part in parts) else None)


def test_the_end_of_the_input_is_waited_for_from_the_first_piece_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1,a\n" + b"2,b\n" * 20)
    reader, context = LineReader(Format("csv", columns=("id", "text"))), OneKeyContext()
    function = ReadPieces(parts_of(tmp_path, reader), reader, 4)
    function.open(context)
    assert [decode(record).raw for record in function.process_element(0, context)] == [b"1,a"]
    assert context.event_timers == {END_OF_TIME_MS}
    again = ReadPieces(parts_of(tmp_path, reader), reader, 4)
    again.open(OneKeyContext(context.states))
    assert len(list(again.on_timer(END_OF_TIME_MS, context))) == 20


def test_each_piece_gives_the_rows_that_begin_in_it(tmp_path: Path) -> None:
    """However far an unclosed quote makes reading look ahead: no call emits thousands of rows."""
    (tmp_path / "f").write_bytes(b'1,"open\n' + b"2,good\n" * 999)
    reader, context = LineReader(Format("csv", columns=("id", "text"))), OneKeyContext()
    function = ReadPieces(parts_of(tmp_path, reader), reader, 70)
    function.open(context)
    counts = [len(list(function.process_element(call, context))) for call in range(101)]
    assert max(counts) == 10
    assert sum(counts) == 1000
    assert max(len(state) for state in context.states.values()) < 300


def test_files_of_a_folder_may_come_and_go_between_runs(tmp_path: Path) -> None:
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
