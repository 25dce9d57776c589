"""The check of words finds its markers in prose, and only there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.plain_english import findings_in, main

from tools import plain_english

TESTS = Path(__file__).parents[1]
DIALECT = [
    "`None` where the engine does not answer.",
    "Raises `ValueError` where it is missing.",
    "Where the connection breaks, the watch is opened again.",
    "The server tells its load.",
    "A job that is told to stop.",
    "The log says why.",
    "It has heard nothing for a second.",
    "A fleet knows its replicas.",
    "The key that it wants.",
    "Started anew, whoever looks.",
    "Mend its package.",
    "The file beside it.",
    "Both failed of late.",
    "The bytes are none, and it holds none.",
    "The value is no number.",
    "After so many tries.",
    "Tables of what it does.",
    "The job goes on.",
    "It stands in keyed state for ever.",
    "What of it counts.",
]
PLAIN = [
    "The folder where checkpoints are kept.",
    "See where the time goes.",
    "Where results are written.",
    "Where figures come from, and where they go.",
    "What it has seen so far, and what it has begun.",
    "A clock that stands still; the job went on without it.",
    "There is no file, and it is no longer needed.",
    "Tell one from another; tell them apart.",
    "A user knows the key, or one who wants an answer.",
    "It stands for the namespace of late events.",
    "The field is None: where it is, and where it goes.",
    "Set `where` and `told` in the file.",
]


def words_in(source: str, path: str = "a.py") -> list[str]:
    return [finding.words for finding in findings_in(path, source)]


@pytest.mark.parametrize("sentence", DIALECT)
def test_a_marker_is_found_in_docstrings_comments_messages_and_docs(sentence: str) -> None:
    assert words_in(f'"""{sentence}"""\n')
    assert words_in(f"value = 1\n# {sentence}\n")
    assert words_in(f"raise ValueError('''{sentence} Give {{}} again.''')\n")
    assert words_in(f"# A page\n\n{sentence}\n", "a.md")


@pytest.mark.parametrize("sentence", PLAIN)
def test_plain_english_is_not_reported(sentence: str) -> None:
    assert words_in(f'"""{sentence}"""\n') == []
    assert words_in(f"{sentence}\n", "a.md") == []


def test_code_is_not_prose() -> None:
    assert words_in('told = says["so long"]\nquery = "beside"\n') == []
    assert words_in('"""An example:\n\n    >>> tell("who says what")\n"""\n') == []
    assert words_in("```python\n# says nothing\n```\n", "a.md") == []
    assert words_in("<!-- Made by x -->\n| it says |\n<!-- to here. -->\n", "a.md") == []


def test_a_finding_has_the_line_of_its_words_even_across_lines() -> None:
    source = '"""First.\n\nThe log says it."""\n\n# After so\n# many tries.\nerror = f"{1} of them goes on"\n'
    found = [(finding.line, finding.words) for finding in findings_in("a.py", source)]
    assert found == [(3, "says"), (5, "so many"), (7, "goes on")]
    assert str(findings_in("a.py", source)[0]).startswith("a.py:3: 'says': ")


def test_an_exception_covers_its_words_in_its_file_and_must_be_of_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("The page says it.\n", encoding="utf-8")
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    monkeypatch.setattr(plain_english, "CLEAN", ("page.md",))
    assert main([]) == 1
    assert "page.md:1: 'says'" in capsys.readouterr().out

    monkeypatch.setattr(plain_english, "ALLOWED", {("page.md", "says"): "a page of quotations"})
    assert main([]) == 0
    page.write_text("The page is empty.\n", encoding="utf-8")
    assert main([]) == 1
    assert "matches nothing" in capsys.readouterr().out


def test_a_path_that_does_not_exist_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"gone\.md does not exist"):
        main(["gone.md"])


def test_names_of_tests_have_less_than_70_characters() -> None:
    """Three folders are exempt until theirs are shortened."""
    exempt = ("fleet", "gateway", "pipeline")
    files = [path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in exempt]
    names = [name for path in files for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))]
    assert [name for name in names if len(name) >= 70] == []
