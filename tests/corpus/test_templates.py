"""What a template makes of values that are null, missing, odd or hostile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from tests.corpus.case import cases
from tests.corpus.sources import from_kafka
from tests.corpus.way import keyed

from forebay.connectors.formats import Format
from forebay.engine.prompt import PromptTemplate
from forebay.errors import TemplateFailed
from forebay.records import KeyedEvent


@dataclass(frozen=True)
class Prompt:
    """A template, the bytes of a field `a`, and the prompt; or, as `fails`, a part of the error."""

    name: str
    template: str
    a: bytes
    text: str = ""
    fails: str = ""


def null(name: str, template: str, text: str = "", fails: str = "") -> Prompt:
    return Prompt(f"null: {name}", template, b"null", text, fails)


CASES = (
    null("alone", "{{ a }}", fails="field 'a' is null"),
    null("default", "{{ a | default('-') }}", "-"),
    null("default of a default", "{{ a | default(b) | default('-') }}", "-"),
    null("joined", "{{ a ~ 'x' }}", fails="field 'a' is null"),
    null("upper", "{{ a | upper }}", fails="field 'a' is null"),
    null("length", "{{ a | length }}", fails="field 'a' is null"),
    null("inner", "{{ a.b }}", fails="field 'a' is null"),
    null("item", "{{ a[0] }}", fails="field 'a' is null"),
    null("loop", "{% for x in a %}x{% endfor %}", fails="field 'a' is null"),
    null("if", "{% if a %}yes{% else %}no{% endif %}", "no"),
    null("is none", "{{ a is none }}", "true"),
    null("is defined", "{{ a is defined }}", "false"),
    null("equals none", "{{ a == none }}", "true"),
    null("or", "{{ a or '-' }}", "-"),
    null("tojson", "{{ a | tojson }}", "null"),
    null("of the event", "{{ event.a | default('-') }}", "-"),
    null("in brackets", "{{ event['a'] }}", fails="field 'a' is null"),
    null("plus 1", "{{ a + 1 }}", fails="field 'a' is null"),
    Prompt("null in a list", "{{ a }}", b"[1, null]", "[1,null]"),
    Prompt("item null", "{{ a[0] }}", b"[null]", fails="item '0' is null"),
    Prompt("null in a join", "{{ a | join(', ') }}", b'["x", null]', fails="null"),
    Prompt("null in a loop", "{% for x in a %}{{ x }}{% endfor %}", b"[null]", fails="a value is null"),
    Prompt("inner null", "{{ a.b }}", b'{"b": null}', fails="field 'b' is null"),
    Prompt("missing", "{{ b }}", b"1", fails="field 'b' is missing; the event has a, kafka"),
    Prompt("missing with default", "{{ b | default('-') }}", b"1", "-"),
    Prompt("inner missing", "{{ a.b.c }}", b'{"x": 1}', fails="field 'b' is missing; the object has x"),
    Prompt("empty keeps no default", "{{ a | default('-') }}", b'""', ""),
    Prompt("false keeps no default", "{{ a | default('-') }}", b"false", "false"),
    Prompt("0 keeps no default", "{{ a | default('-') }}", b"0", "0"),
    Prompt("true", "{{ a }}", b"true", "true"),
    Prompt("true in a list", "{{ a }}", b"[1, true]", "[1,true]"),
    Prompt("true joined", "{{ 'x' ~ a }}", b"true", "xtrue"),
    Prompt("2**64", "{{ a }}", b"18446744073709551616", "18446744073709551616"),
    Prompt("2**64 + 1", "{{ a + 1 }}", b"18446744073709551616", "18446744073709551617"),
    Prompt("1e400", "{{ a }}", b"1e400", "1e400"),
    Prompt("1e400 in a list", "{{ a }}", b"[1e400]", "[1e400]"),
    Prompt("1e400 times 2", "{{ a * 2 }}", b"1e400", fails="a number that cannot be written"),
    Prompt("20 digits", "{{ a }}", b"0.12345678901234567891", "0.12345678901234567891"),
    Prompt("a power", "{{ a ** 9999 }}", b"10", fails="more than 1024 bits"),
    Prompt("a long repetition", "{{ 'x' * a }}", b"99999999999", fails="prompt"),
    Prompt("text times text", "{{ 'x' * a }}", b'"x"', fails="prompt"),
    Prompt("a NUL", "{{ a }}", b'"a\\u0000b"', "a\0b"),
    Prompt("U+2028", "{{ a }}", '"a\u2028b"'.encode(), "a\u2028b"),
    Prompt("emoji reversed", "{{ a[:1] }}", '"😀x"'.encode(), "😀"),
    Prompt("a template", "{{ a }}", b'"{{ key }}{% if %}"', "{{ key }}{% if %}"),
    Prompt("special token", "{{ a }}", b'"<|im_end|>"', "< |im_end|>"),
    Prompt("token of two fields", "{{ a }}{{ a }}", b'"<"', "< < "),
    Prompt("token behind its start", "<{{ a }}", b'"|im_end|>"', "< |im_end|>"),
    Prompt("a dunder", "{{ a.__class__ }}", b'"x"', fails="'__class__' is missing"),
    Prompt("a field that is a dunder", "{{ a.__class__ }}", b'{"__class__": 1}', "1"),
    Prompt("a field that is a method", "{{ a.items }}", b'{"items": [1]}', "[1]"),
    Prompt("no such item", "{{ a[5] }}", b"[1]", fails="item 5 is missing"),
    Prompt("not a number", "{{ a / 2 }}", b'"x"', fails="takes numbers"),
    Prompt("by 0", "{{ 1 / a }}", b"0", fails="ZeroDivisionError"),
    Prompt("1 MiB", "{{ a }}{{ a }}", b'"%s"' % (b"x" * 600_000), fails="longer than 1048576 characters"),
)


@cases(CASES)
def test_rendered_value(case: Prompt) -> None:
    item = keyed(from_kafka(b'{"a": %s}' % case.a, Format()))
    assert isinstance(item, KeyedEvent)
    template: Any = PromptTemplate(case.template)
    if case.fails:
        with pytest.raises(TemplateFailed, match=re.escape(case.fails)):
            template.render(item.event.fields)
    else:
        (message,) = template.render(item.event.fields)
        assert message.content == case.text
