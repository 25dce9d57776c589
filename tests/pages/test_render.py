"""Pages: no text becomes markup, and nothing is loaded or run but the page's own."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import ChoiceLoader, DictLoader, PackageLoader, UndefinedError
from tests.pages.documents import ATTACKS, seen

from forebay.pages.axes import Axis
from forebay.pages.charts import Figure, Key, Line, Note, Row, Table, line_figure, rows_drawing
from forebay.pages.render import environment, page
from forebay.pages.svg import circle
from forebay.pages.units import NUMBER, Unit

PARTS = """{% extends "base.html.j2" %}{% import "parts.html.j2" as parts %}{% block body %}
    {{ parts.figures(figures) }}{{ parts.table(table) }}{{ parts.tiles([(text, text)]) }}
    {{ parts.quotes([text]) }}
    {{ parts.verdict("valid", text, [text], more=text, name=text) }}{{ parts.filter_box() }}{% endblock %}"""
LOADER = ChoiceLoader([DictLoader({"whole.html.j2": PARTS}), PackageLoader("forebay.pages")])
WITH_PARTS = environment().overlay(loader=LOADER)


def whole(text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A page that shows a text everywhere a part of a page can show one."""
    lines = [Line(text, [(0.0, 1.0), (1.0, 2.0)]), Line(text, [])]
    unit = Unit(text)
    table = Table(text, (text, text), [(text, text)])
    drawn = line_figure(
        text,
        lines,
        label=text,
        x_name=text,
        x_unit=unit,
        y_unit=NUMBER,
        notes=[Note(0.5, 1, text)],
        data=table,
    )
    rows = rows_drawing([Row([circle(1, 1, 1, "blue")], text, 0, 1, text, text)], Axis(0, 1), text, text)
    figures = [drawn, Figure(text, rows, [Key(text, "red")])]
    monkeypatch.setattr("forebay.pages.render.environment", lambda: WITH_PARTS)
    return page(
        "whole.html.j2", title=text, lead=text, script="filter.js", text=text, figures=figures, table=table
    )


TEXTS = st.one_of(
    st.sampled_from(ATTACKS), st.text(), st.tuples(st.text(), st.sampled_from(ATTACKS)).map("".join)
)


@given(TEXTS.filter(bool))
def test_a_text_adds_no_element_and_no_attribute(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found, harmless = seen(whole(text, patch)), seen(whole("a harmless text", patch))
    assert found.tags == harmless.tags
    assert found.names == harmless.names
    assert all(address.startswith("#") for address in found.addresses)


@pytest.mark.parametrize("text", ATTACKS)
def test_text_is_shown_unchanged(text: str) -> None:
    document = page("trends.html.j2", title=text, lead=text, trends=())
    assert seen(document).words.count(text) == 3


def test_controls_are_replaced_and_long_texts_are_cut() -> None:
    def lead(text: str) -> str:
        document = page("trends.html.j2", title="t", lead=text, trends=())
        return re.findall(r'<p class="lead">(.*?)</p>', document, re.S)[0]

    assert lead("a\u202eb\x00c\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert lead("مرحبا 👏") == "مرحبا 👏"
    assert len(lead("x" * 1_000_000)) == 2000


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="trends"):
        page("trends.html.j2", title="t", lead="l")


@pytest.mark.parametrize("script", ["", "filter.js"])
def test_the_policy_allows_the_own_style_and_script_only(script: str) -> None:
    document = page("trends.html.j2", title="t", lead="l", script=script, trends=())
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', document)
    allowed = dict(each.split(" ", 1) for each in unescape(policy).split("; "))
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    for tag in ("style", "script"):
        sources = [
            f"'sha256-{base64.b64encode(sha256(source.encode()).digest()).decode()}'"
            for source in re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.S)
        ]
        assert allowed[f"{tag}-src"] == (" ".join(sources) or "'none'")
    assert "src=" not in document
    assert "@import" not in document
    assert "url(" not in document
