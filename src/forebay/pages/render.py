"""Renders a template to a self-contained HTML page, in which no text can become markup.

Templates escape every text. As a second defence, the content security policy allows only the page's own
style and script, by hash.
"""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha256
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forebay.pages.units import moment, shown_text
from forebay.untrusted_text import counted

STYLE = "style.css"
POLICY = "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'{}"


def page(
    template: str, *, title: str, lead: str, script: str = "", connects: bool = False, **values: Any
) -> str:
    """Render `template` with `values`. `script`: the files of the page's script. `connects`: the script may
    ask the page's server.

    Texts are escaped, truncated to `MAX_TEXT_CHARS`, and control characters in them are replaced.
    """
    style, code = source(STYLE), Markup("\n").join(map(source, script.split()))
    may_connect = "; connect-src 'self'" if connects else ""
    policy = POLICY.format(_hash(style), _hash(code) if code else "'none'", may_connect)
    shared = {"title": title, "lead": lead, "policy": policy, "style": style, "script": code}
    return environment().get_template(template).render(shared | values)


def fragment(template: str, block: str, **values: Any) -> str:
    found = environment().get_template(template)
    return "".join(found.blocks[block](found.new_context(values)))


def main_of(document: str) -> str:
    """The contents of a document of `page`, without style and script; empty for any other document."""
    return document.partition("<main>")[2].rpartition("</main>")[0]


@cache
def environment() -> Environment:
    found = Environment(
        loader=PackageLoader("forebay.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown_text,
    )
    found.filters |= {"counted": counted, "moment": moment}
    return found


def source(name: str) -> Markup:
    env = environment()
    assert env.loader is not None
    return Markup(env.loader.get_source(env, name)[0].strip())


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(source.encode()).digest()).decode()}'"
