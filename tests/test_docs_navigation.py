"""The pages of the documentation: each is in the navigation once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
SECTIONS = ["Start", "Concepts", "Guides", "Reference", "Evaluation"]


def navigation(text: str) -> list[str]:
    return re.findall(r'= "([\w/-]+\.md)"', text)


def wrong_navigation(text: str, pages: list[str]) -> list[str]:
    """What is wrong with a navigation: pages that are missing, listed twice, or not there."""
    listed = navigation(text)
    missing = [f"{page} is missing" for page in pages if page not in listed]
    twice = [f"{page} is listed twice" for page in sorted(set(listed)) if listed.count(page) > 1]
    return [*missing, *twice, *(f"{page} does not exist" for page in listed if page not in pages)]


def test_the_navigation_lists_every_page_once() -> None:
    assert len(PAGES) <= 40
    assert wrong_navigation((ROOT / "zensical.toml").read_text(encoding="utf-8"), PAGES) == []


def test_the_sections_are_in_the_readers_order() -> None:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert re.findall(r'^  \{"(\w+)" = ', text, re.M) == SECTIONS
    evaluation = text.partition('{"Evaluation" = ')[2]
    assert {page for page in PAGES if page.startswith("results/")} == set(navigation(evaluation))


def test_the_start_page_links_every_page_but_measurements() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [page for page in PAGES if not page.startswith("results/") and page != "README.md"]
    assert [page for page in pages if f"({page})" not in text] == []


def extras(text: str) -> set[str]:
    section = re.split(r"^\[", text.partition("[project.optional-dependencies]\n")[2], flags=re.M)[0]
    return set(re.findall(r"^([\w-]+) = ", section, re.M))


def test_one_table_lists_all_extras() -> None:
    rows = [
        (page, name)
        for page in PAGES
        for name in re.findall(
            r"^\| `forebay\[([\w-]+)\]` \|", (DOCS / page).read_text(encoding="utf-8"), re.M
        )
    ]
    assert {page for page, _ in rows} == {"README.md"}
    names = [name for _, name in rows]
    assert len(names) == len(set(names))
    assert set(names) == extras((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


NOT_OURS = {"results/NAME.md", "features/nixl_connector_usage.md"}
"""A pattern, and a page of vLLM's."""
SOURCES = [
    path
    for folder in ("src", "examples", "benchmarks", "tests", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml", ".md") and "corpus" not in path.parts
]


@pytest.mark.heavy
def test_pages_that_code_names_exist() -> None:
    named = {
        (page, path.relative_to(ROOT).as_posix())
        for path in [*SOURCES, ROOT / "Makefile", ROOT / "pyproject.toml"]
        for page in re.findall(r"(?<![\w/.-])docs/([\w/-]+\.md)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert sorted(each for each in named if each[0] not in {*PAGES, *NOT_OURS}) == []
