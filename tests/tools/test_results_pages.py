"""The pages of recorded results show what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.results_pages import PAGES, documents, page, table

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_has_the_tables_of_its_documents(kind: str) -> None:
    found = documents(kind, RESULTS)
    assert found
    text = (RESULTS / f"{kind}.md").read_text()
    assert page(text, kind, found) == text, "run: python -m tools.results_pages"
    for name in found:
        assert (RESULTS / f"{name}.svg").is_file()


def test_a_table_has_its_heads_first() -> None:
    assert table([["a", "b"], ["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_a_page_without_the_marks_of_a_document_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"docs/results/grid\.md: expected"):
        page("# No marks\n", "grid", {"grid": {}})
