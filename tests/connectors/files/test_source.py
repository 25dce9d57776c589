"""Files as a source, without Flink: each record once, in order, wherever a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.keyed_state import OneKeyContext

from forebay.codec import decode
from forebay.connectors.files.lines import LineReader, Pieces, longest_line, parts_of
from forebay.connectors.files.replay import records_of
from forebay.connectors.files.source import ReadPieces
from forebay.connectors.formats import Format
from forebay.flink.types import END_OF_TIME_MS

LINES = st.lists(st.sampled_from([b"", b'{"at": 1}', b"bad", b"x" * 150, b'1,"a', b'b"', b"2,c"]))
READERS = st.sampled_from(
    [
        LineReader("d", Format(max_record_bytes=100)),
        LineReader("d", Format("text"), limit=3),
        LineReader("d", Format("csv", columns=("id", "text"))),
    ]
)


@given(st.lists(LINES, max_size=4), READERS, st.integers(1, 200), st.data())
def test_a_restore_between_any_two_pieces_goes_on_right_behind_whatever_lies_there_now(
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
    count = max(1, -(-Pieces(parts, longest_line(reader)).size // step))
    context, got, first = OneKeyContext(), [], True
    function = None
    for number in range(count):
        if function is None or data.draw(st.booleans()):
            # A run that is restored has been planned with what lies there then.
            function = ReadPieces(parts_of(folder, reader), reader, step if first else 7)
            context, first = OneKeyContext(context.states), False
            function.open(context)
        got += [decode(each) for each in function.process_element(number, context)]
        with (folder / data.draw(st.sampled_from(["000", "0005", "zzz"]))).open("ab") as file:
            file.write(b"\nmore")
    assert function is not None
    got += [decode(each) for each in function.on_timer(END_OF_TIME_MS, context)]
    assert got == everything


def test_the_end_of_the_input_is_waited_for_from_the_first_piece_on(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'1,"open')
    reader, context = LineReader("f", Format("csv", columns=("id", "text"))), OneKeyContext()
    function = ReadPieces(parts_of(tmp_path, reader), reader, 64)
    function.open(context)
    assert list(function.process_element(0, context)) == []
    assert context.event_timers == {END_OF_TIME_MS}
    again = ReadPieces(parts_of(tmp_path, reader), reader, 64)
    again.open(OneKeyContext(context.states))
    (letter,) = again.on_timer(END_OF_TIME_MS, context)
    assert decode(letter).raw == b'1,"open'
