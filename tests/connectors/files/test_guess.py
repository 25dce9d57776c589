from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.files.guess import guessed_settings


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,text\n1,a\n", {}),
        ("id;text\n1;a, b\n", {"delimiter": ";"}),
        ("id;text, long\n1;a\n", {"delimiter": ";"}),
        ('id|text\n1|"a\n;;b"\n\n', {"delimiter": "|"}),
        ("id\ttext\r\n1\ta\r\n", {"delimiter": "\t"}),
        ("text\nno other column; really\n", {}),
        ("id,text\n1,a;b\n2,ragged,row\n", {}),
        ("", {}),
    ],
)
def test_delimiter_of_csv(content: str, expected: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text(content)
    assert guessed_settings(file, "csv") == expected
    assert guessed_settings(file, "jsonl") == {}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
@pytest.mark.parametrize("rows", [1, 9000])
def test_encoding(encoding: str, rows: int, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("id;käse\n" + "1;café\n" * rows, encoding=encoding)
    named = {} if encoding.startswith("utf-8") else {"encoding": encoding}
    assert guessed_settings(file, "csv") == {**named, "delimiter": ";"}


def test_first_member_of_an_archive_and_damaged_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.csv.zip", "w") as archive:
        archive.writestr("a.csv", "id;text\n1;a\n")
    assert guessed_settings(tmp_path / "in.csv.zip", "csv") == {"delimiter": ";"}
    (tmp_path / "bad.csv.gz").write_bytes(b"\x1f\x8b\x08 damaged")
    assert guessed_settings(tmp_path / "bad.csv.gz", "csv") == {}
    (tmp_path / "empty").mkdir()
    assert guessed_settings(tmp_path / "empty", "csv") == {}


@given(
    rows=st.lists(st.tuples(st.text('ab ,;|"\n', max_size=5), st.text("ab,;", max_size=5)), max_size=5),
    delimiter=st.sampled_from(",;|\t"),
)
def test_written_csv_is_read_with_its_delimiter(
    rows: list[tuple[str, str]], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO()
    # All quoted, so that no other character divides the rows.
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    file = tmp_path_factory.mktemp("guess") / "in.csv"
    file.write_text(text.getvalue(), newline="")
    assert guessed_settings(file, "csv").get("delimiter", ",") == delimiter
