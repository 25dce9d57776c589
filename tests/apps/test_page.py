"""Pages of results: no text of a post becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.page import (
    card,
    element,
    filter_box,
    link,
    moment,
    page,
    path,
    quotes,
    section,
    svg,
    tags,
    text,
)

ATTACKS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style><svg/onload=alert(1)>",
    "<!-- --><a href=javascript:alert(1)>x</a>",
    "&lt;script&gt;",
    "]]><script>",
)


class Seen(HTMLParser):
    """Elements and text of a document, as parsed by a browser."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names.update(name for name, _ in attrs)
        self.addresses += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def seen(document: str) -> Seen:
    parser = Seen()
    parser.feed(document)
    parser.close()
    return parser


def whole(post: str) -> str:
    """A page with a post in every possible place."""
    drawing = svg(10, 10, element("text", post), element("title", post), label=post)
    parts = [
        card(post, quotes([post]), tags([post]), id=post),
        drawing,
        filter_box(post),
    ]
    return page(post, post, section(post, *parts, link(post, post), link("#" + post, post)))


HARMLESS = seen(whole("a harmless post"))


@given(st.one_of(st.sampled_from(ATTACKS), st.text(), st.sampled_from(ATTACKS).flatmap(
    lambda attack: st.text().map(lambda more: more + attack))))  # fmt: skip
def test_a_post_adds_no_element_and_no_attribute(post: str) -> None:
    found = seen(whole(post))
    assert [tag for tag in found.tags if tag != "a"] == [tag for tag in HARMLESS.tags if tag != "a"]
    assert found.names <= HARMLESS.names
    assert all(address.startswith(("#", "http://", "https://")) for address in found.addresses)


@pytest.mark.parametrize("post", ATTACKS)
def test_a_post_is_shown_as_it_is_written(post: str) -> None:
    assert post in seen(str(element("p", post))).words[0]


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "//evil", "http:x", "http://[x", ""],
)
def test_only_addresses_of_the_web_are_links(address: str) -> None:
    assert link(address, "t") == "t"


def test_links_that_are_kept() -> None:
    assert 'href="https://a.example/?b=1&amp;c=%22"' in link("https://a.example/?b=1&c=%22", "t")
    assert link("#x", "t").startswith('<a href="#x"')


@pytest.mark.parametrize(
    "make",
    [
        lambda: element("script", "x"),
        lambda: element("p onload", "x"),
        lambda: element("p", onclick="x"),
        lambda: element("p", style="x"),
        lambda: element("a", href="x"),
    ],
)
def test_what_could_run_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"no (element|attribute)"):
        make()  # type: ignore[operator]


def test_signs_that_turn_text_around_are_not_shown() -> None:
    assert text("a\u202eb\x00c\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert text("مرحبا 👏") == "مرحبا 👏"


def test_a_long_text_is_cut() -> None:
    assert len(text("x" * 1_000_000)) == 2000


def test_the_page_loads_nothing() -> None:
    document = page("t", "l", element("p", "x"), filter_box())
    assert "default-src &#x27;none&#x27;" in document
    assert document.count("<script>") == 1
    assert "src=" not in document
    assert "@import" not in document


def test_a_page_without_a_filter_has_no_script() -> None:
    document = page("t", "l", element("p", 'class="filter"'))
    assert "<script>" not in document
    assert "script-src &#x27;none&#x27;" in document


def test_moments() -> None:
    assert moment(1_503_793_148_000) == "2017-08-27 00:19:08"
    assert moment(1_503_793_148_000, seconds=False) == "2017-08-27 00:19"
    assert moment(None) == moment(10**20) == "–"


def test_a_path_has_room_for_any_number_of_points() -> None:
    found = path([("M", (0, 0.04)), *(("L", (x, 1.25)) for x in range(5000))], stroke="red", class_="line")
    assert found.startswith('<path d="M0 0L0 1.2L1 1.2')
    assert found.endswith('L4999 1.2" stroke="red" class="line"></path>')
    with pytest.raises(ValueError, match="no command"):
        path([('"/><script>', (1.0,))])


def test_rules_of_a_page_of_its_own_come_after_those_of_all() -> None:
    found = page("title", "lead", style="b{color:red}")
    assert found.index("b{color:red}</style>") > found.index("body{")
