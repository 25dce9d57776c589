"""Rules of all templates that keep autoescape enough: texts are only in contents and in quoted attributes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forebay.pages

TEMPLATES = sorted((Path(forebay.pages.__file__).parent / "templates").glob("*.j2"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_escape_all_texts(path: Path) -> None:
    text = re.sub(r"\{#.*?#\}", "", path.read_text(), flags=re.S)
    assert "|safe" not in text.replace(" ", "")
    assert "autoescape" not in text
    tags = re.findall(r"<[a-zA-Z](?:[^<>{]|\{\{.*?\}\}|\{%.*?%\})*>", text)
    assert tags
    for tag in tags:
        without = re.sub(r'"[^"{]*(?:(?:\{\{.*?\}\}|\{%.*?%\})[^"{]*)*"', '""', tag)
        assert "{{" not in without or without.startswith("<h{{"), tag
        assert not re.search(r"\s(?:on\w+|style|src|srcdoc|action|formaction)=", tag), tag
        for address in re.findall(r'href="([^"]*)"', tag):
            assert address.startswith("#"), tag
    if path.name not in ("base.html.j2", "picture.svg.j2"):
        assert not re.search(r"<(?:script|style|iframe|object|embed|base|meta|link|form)\b", text)


def test_all_text_is_readable_on_a_phone() -> None:
    """Drawings keep the size of their text at any width: sizes in the stylesheet are those on the screen."""
    style = (TEMPLATES[0].parent / "style.css").read_text()
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:(\d+)px", style)]
    assert len(sizes) > 8
    assert min(sizes) >= 12
    assert not re.search(r"font-size:[\d.]+(?!px|\d)", style)
    charts = (TEMPLATES[0].parents[1] / "svg.py").read_text()
    assert charts.count("viewBox") == 1, "only paths are stretched"
