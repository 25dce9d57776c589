"""Documents as a browser would find them, and texts that try to become markup."""

from __future__ import annotations

from html.parser import HTMLParser

ATTACKS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style><svg/onload=alert(1)>",
    "<!-- --><a href=javascript:alert(1)>x</a>",
    "&lt;script&gt;",
    "]]><script>",
    "{{ 7 * 7 }}{% raw %}",
)


class Seen(HTMLParser):
    """The elements and the text of a document."""

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
