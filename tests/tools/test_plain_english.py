"""Unwanted words are found in comments, docstrings, messages and Markdown, but not in code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.plain_english import findings_in, main

from tools import plain_english

SOURCE = '''"""The module tells the caller nothing."""


def says(name: str) -> str:
    # The reader is told of records,
    # and knows all of them.
    return f"{name} says that it is missing"
'''


def test_words_are_found_with_their_lines_in_each_kind_of_text() -> None:
    found = [(each.line, each.words) for each in findings_in("a.py", SOURCE)]
    assert found == [(1, "tells"), (5, "told"), (6, "knows"), (7, "says")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It returns None where it fails.", ["None where"]),
        ("Where the file is missing, the run fails.", ["Where the file is missing,"]),
        ("One\n\nline is made anew.", ["anew"]),
        ("It is none of these.", ["is none"]),
        ("This is the folder where it was found.", []),
        ("There is none of these.", []),
        ("`tells` is a name.\n\n```\nIt says nothing.\n```\n", []),
        ("A count of late events.", []),
    ],
)
def test_words_are_found_in_markdown_but_not_in_its_code(text: str, words: list[str]) -> None:
    assert [each.words for each in findings_in("a.md", text)] == words


def test_an_exception_that_matches_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "trends.md").write_text("One\nline says nothing.\n")
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    monkeypatch.setattr(plain_english, "CLEAN", ("docs",))
    monkeypatch.setattr(plain_english, "ALLOWED", {})
    assert main([]) == 1
    assert capsys.readouterr().out == "docs/trends.md:2: 'says': code reports, returns or contains\n"
    monkeypatch.setattr(plain_english, "ALLOWED", {("docs/trends.md", "says"): "a quotation"})
    assert main([]) == 0
    monkeypatch.setattr(plain_english, "ALLOWED", {("docs/trends.md", name): "" for name in ("says", "told")})
    assert main([]) == 1
    assert "the exception 'told' for docs/trends.md matches nothing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="gone does not exist"):
        main(["gone"])
