from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.files.guess import HEAD_BYTES, guessed_settings


def guess(folder: Path, *contents: bytes, kind: str = "csv") -> dict[str, str]:
    files = [folder / f"{number}.csv" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return guessed_settings(files, kind)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,text\n1,a\n", {}),
        ("id;text\n1;a, b\n", {"delimiter": ";"}),
        ('id|text\n1|"a\n;;b"\n\n', {"delimiter": "|"}),
        ("id\ttext\r\n1\ta\r\n", {"delimiter": "\t"}),
        ("text\nno other column; really\n", {}),
        ("id,text\n1,a;b\n2,ragged,row\n", {}),
        ("id,tags|cats,text\n1,a|b,hello, you\n2,c|d,x\n", {}),
        ("id;text\n1;a\u2028b\n2\n3;c\n", {"delimiter": ";"}),
        ("", {}),
    ],
)
def test_delimiter_of_csv(content: str, expected: dict[str, str], tmp_path: Path) -> None:
    assert guess(tmp_path, content.encode()) == expected
    assert guess(tmp_path, content.encode(), kind="jsonl") == {}


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
)
@pytest.mark.parametrize("rows", [1, 9000])
def test_encoding(encoding: str, rows: int, tmp_path: Path) -> None:
    content = ("id;käse\n" + "1;Größe, naïve café\n" * rows).encode(encoding)
    named = {} if encoding in ("utf-8", "utf-8-sig") else {"encoding": encoding}
    assert guess(tmp_path, content) == {**named, "delimiter": ";"}


def test_quotation_marks_of_windows(tmp_path: Path) -> None:
    assert guess(tmp_path, "“Größe” – 5 €\n".encode("cp1252"), kind="text") == {"encoding": "cp1252"}


@pytest.mark.parametrize(
    "content",
    [
        # One bad record among good ones is a dead letter, and the others are read right.
        '{"text": "café 日本"}\n'.encode() + b'{"text": "x\xff"}\n',
        "テキスト 日本語\n".encode("shift_jis"),
        "Привет мир\n".encode("cp1251"),
        "你好世界\n".encode("gb18030"),
        bytes(range(256)),
    ],
)
def test_other_encodings_are_not_mistaken_for_a_western_one(content: bytes, tmp_path: Path) -> None:
    assert guess(tmp_path, content, kind="text") == {}


def test_files_of_a_folder_must_agree(tmp_path: Path) -> None:
    utf_8, western = "id;käse\n1;a\n".encode(), "id;käse\n1;a\n".encode("cp1252")
    assert guess(tmp_path, b"", utf_8, utf_8) == {"delimiter": ";"}
    assert guess(tmp_path, western, western) == {"encoding": "cp1252", "delimiter": ";"}
    assert guess(tmp_path, western, utf_8) == {"delimiter": ";"}
    assert guess(tmp_path, b"id;text\n1;a\n", western) == {"encoding": "cp1252", "delimiter": ";"}
    assert guess(tmp_path, b"id,text\n1,a\n", western) == {"encoding": "cp1252"}
    assert guess(tmp_path) == {}


@pytest.mark.parametrize("cut", range(4))
def test_character_may_be_cut_at_the_end(cut: int, tmp_path: Path) -> None:
    for text in ("é", "日", "😀"):
        ascii_text = "a" * (HEAD_BYTES - cut)
        assert guess(tmp_path, (ascii_text + text * 3).encode(), kind="text") == {}
        assert guess(tmp_path, ("café " + ascii_text[5:] + text * 3).encode(), kind="text") == {}


def test_archives_and_damaged_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "in.csv.zip", "w") as archive:
        archive.writestr("a.csv", "id;text\n1;a\n")
    assert guessed_settings([tmp_path / "in.csv.zip"], "csv") == {"delimiter": ";"}
    assert guess(tmp_path, b"\x1f\x8b\x08 damaged") == {}


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
    found = guess(tmp_path_factory.mktemp("guess"), text.getvalue().encode())
    assert found.get("delimiter", ",") == delimiter
