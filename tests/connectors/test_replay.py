from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode
from forebay.connectors.files import Files, line_reader
from forebay.connectors.formats import Format
from forebay.connectors.replay import Pace, ReplayFeed, records_of, replay_source
from forebay.connectors.rows import LineReader
from forebay.connectors.times import EventTime
from forebay.errors import SettingError

FORM = Format(time=EventTime("at", "unix_s"), max_record_bytes=100)


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


def replayed(path: Path, pace: Pace, late_s: float = 0.0) -> list[tuple[float, bytes]]:
    clock = Time()
    feed = ReplayFeed(path, LineReader("f", FORM), pace, clock=clock, sleep=clock.sleep)

    async def read() -> list[tuple[float, bytes]]:
        left = []
        async for received in feed.read(None):
            left.append((clock.now_s - 1000, decode(received.raw).raw))
            clock.now_s += late_s
        return left

    return asyncio.run(read())


def test_records_leave_at_their_times(tmp_path: Path) -> None:
    lines = [b'{"at": 100}', b'{"at": 100.5}', b"bad", b'{"at": 99}', b'{"at": 103}', b'{"at": 9999}']
    (tmp_path / "f").write_bytes(b"\n".join(lines))
    left = replayed(tmp_path / "f", Pace(speed=2, longest_gap_s=10))
    assert [raw for _, raw in left] == lines
    assert [at_s for at_s, _ in left] == pytest.approx([0, 0.25, 0.25, 0.25, 2.25, 12.25])


def test_what_was_late_is_made_up(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"".join(b'{"at": %d}\n' % n for n in range(4)))
    assert [at_s for at_s, _ in replayed(tmp_path / "f", Pace(), late_s=1.5)] == [0, 1.5, 3, 4.5]
    assert [at_s for at_s, _ in replayed(tmp_path / "f", Pace(), late_s=0.5)] == [0, 1, 2, 3]


FILES = st.lists(st.lists(st.sampled_from([b"", b'{"at": 1}', b"bad", b"x" * 150, b'1,"a', b'b"', b"2,c"])))
READERS = st.sampled_from(
    [
        LineReader("d", FORM),
        LineReader("d", Format("text"), limit=3),
        LineReader("d", Format("csv", columns=("id", "text"))),
    ]
)


@given(FILES, READERS, st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_a_cursor_goes_on_right_after_its_record(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[bytes]],
    reader: LineReader,
    end: bytes,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    for number, lines in enumerate(files):
        (folder / f"{number:03d}").write_bytes(end.join(lines))
    everything = [received for received, _ in records_of(folder, reader, None)]
    after = data.draw(st.integers(0, len(everything)))
    cursor = everything[after - 1].cursor if after else None
    assert [received for received, _ in records_of(folder, reader, cursor)] == everything[after:]


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"{}")
    with pytest.raises(SettingError, match="follow"):
        replay_source(None, Files(tmp_path / "f", FORM, follow=True), Pace())
    with pytest.raises(SettingError, match="recorded time"):
        replay_source(None, Files(tmp_path / "f"), Pace())
    for wrong in ({"speed": 0}, {"speed": float("nan")}, {"longest_gap_s": -1}):
        with pytest.raises(SettingError):
            Pace(**wrong)


def test_csv_headers(tmp_path: Path) -> None:
    def columns(text: bytes) -> tuple[str, ...]:
        (tmp_path / "f.csv").write_bytes(text)
        return line_reader(Files(tmp_path, Format("csv"))).format.columns

    (tmp_path / "_hidden.csv").write_bytes(b"not,this")
    assert columns(b"id,text\r\n1,a") == ("id", "text")
    assert columns(b'\xef\xbb\xbf"a\nb",c\n1,2') == ("a\nb", "c")
    for bad in (b"", b"a,a\n", b"\xff\n", b'"a,b\n'):
        with pytest.raises(SettingError, match="header"):
            columns(bad)


def test_sources_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not exist"):
        line_reader(Files(tmp_path / "none"))
    with pytest.raises(SettingError, match="name the columns"):
        line_reader(Files(tmp_path, Format("csv")))
    with pytest.raises(SettingError, match="name the columns"):
        line_reader(Files(tmp_path, Format("csv"), letters=True))
    with pytest.raises(SettingError, match="limit"):
        line_reader(Files(tmp_path, limit=0))
    (tmp_path / "f").write_bytes(b"{}")
    with pytest.raises(SettingError, match="name a directory"):
        line_reader(Files(tmp_path / "f", follow=True))
    with pytest.raises(SettingError, match="leave one of them out"):
        line_reader(Files(tmp_path, follow=True, limit=5))
