from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.engine.prompt.filters import FILTERS, STR_METHODS
from forebay.errors import TemplateFailed
from forebay.json_numbers import ExactFloat, read_json
from forebay.records import Message

FIELDS: dict[str, Any] = {"x": None, "user": {"x": None, "name": "bob"}, "tags": ["a", None, "b"]}
WITHOUT: dict[str, Any] = {"user": {"name": "bob"}, "tags": ["a", "b"]}
USES = [
    *("{{ %s }}", "{{ %s ~ 'a' }}", "{{ 'a' ~ %s }}", "{{ %s + 1 }}", "{{ 1 + %s }}", "{{ 'a' + %s }}"),
    *("{{ %s - 1 }}", "{{ 2 * %s }}", "{{ %s * 2 }}", "{{ [1] + %s }}", "{{ 2 ** %s }}", "{{ 7 // %s }}"),
    *("{{ -%s }}", "{{ %s < 5 }}", "{{ 5 >= %s }}", "{{ %s.y }}", "{{ %s['y'] }}", "{{ %s[0] }}"),
    *("{{ %s[1:] }}", "{% for i in %s %}{% endfor %}", "{{ 'a' in %s }}", "{{ %s is even }}"),
    *("{{ 'abc' | replace('a', %s) }}", "{{ [1, 2] | join(%s) }}", "{{ (%s or none) ~ '' }}"),
    *(f"{{{{ %s | {name} }}}}" for name in FILTERS if name not in ("d", "default", "tojson")),
    *(f"{{{{ %s.{name}() }}}}" for name in sorted(STR_METHODS | {"get", "items", "keys", "values"})),
]


def render(source: str, fields: dict[str, Any], **names: Any) -> str:
    rendered = PromptTemplate(source, api="completions").render(fields, **names)
    assert isinstance(rendered, str)
    return rendered


@pytest.mark.heavy
@pytest.mark.parametrize("use", USES)
def test_null_fails_like_a_missing_field(use: str) -> None:
    for field in ("x", "user.x", "event.x", "event['x']"):
        for fields in (FIELDS, WITHOUT):
            with pytest.raises(TemplateFailed):
                render(use.replace("%s", field), fields)


@pytest.mark.parametrize("field", ["x", "user.x", "event['x']"])
def test_null_field_is_named(field: str) -> None:
    with pytest.raises(TemplateFailed, match=r"^prompt: field 'x' is null$"):
        render(f"{{{{ {field} }}}}", FIELDS)
    with pytest.raises(TemplateFailed, match=r"^messages\[0\].content: field 'x' is null$"):
        PromptTemplate(messages=[Message("user", f"{{{{ {field} | upper }}}}")]).render(FIELDS)


@pytest.mark.parametrize("field", ["x", "user.x", "event.x"])
@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("{{ %s | default('-') }}", "-"),
        ("{{ %s | d('-') | upper }}", "-"),
        ("{{ %s is defined }} {{ %s is undefined }}", "false true"),
        ("{% if %s is defined %}a{% else %}b{% endif %}", "b"),
        ("{% for i in %s | default([]) %}{{ i }}{% else %}none{% endfor %}", "none"),
    ],
)
def test_default_applies_to_null_and_missing_fields(use: str, expected: str, field: str) -> None:
    for fields in (FIELDS, WITHOUT):
        assert render(use.replace("%s", field), fields) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' if x else 'b' }}{{ x or 'c' }}{% if not x %}d{% endif %}", "bcd"),
        (
            "{{ x is none }} {{ x == none }} {{ none == x }} {{ x == user.x }} {{ x == 'a' }}",
            "true " * 4 + "false",
        ),
        ("{{ x | tojson }} {{ user }}", 'null {"x":null,"name":"bob"}'),
        ("{{ [1, x] }} {{ {'a': x} }}", '[1,null] {"a":null}'),
        ("{{ tags }} {{ tags | tojson }}", '["a",null,"b"] ["a",null,"b"]'),
        ("{{ tags | select | join('+') }} {{ tags | reject('none') | join }}", "a+b ab"),
        ("{{ tags | map('default', '-') | join }}", "a-b"),
        ("{% for t in tags if t %}{{ t }}{% endfor %}", "ab"),
        ("{% for t in tags %}{{ t | default('-') }}{{ t is none }}{% endfor %}", "afalse-truebfalse"),
        ("{{ [user, {'x': 'y'}] | map(attribute='x') | select | join }}", "y"),
        ("{{ [user] | map(attribute='x', default='-') | join }}", "-"),
        ("{{ [user] | selectattr('x') | list }}", "[]"),
        ("{{ user.get('x') | default('-') }}", "-"),
        ("{{ key | default('no key') }} {{ time_ms | default('no time') }}", "no key no time"),
    ],
)
def test_allowed_operations_on_null(source: str, expected: str) -> None:
    assert render(source, FIELDS) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ tags[1] }}", "item '1' is null"),
        ("{{ tags | join(', ') }}", "a value is null"),
        ("{{ tags | map('upper') | list }}", "a value is null"),
        ("{{ [user] | map(attribute='x') | join }}", "field 'x' is null"),
        ("{{ [user] | sum(attribute='x') }}", "field 'x' is null"),
        ("{% for t in tags %}{{ t }}{% endfor %}", "a value is null"),
        ("{{ none }}", "a value is null"),
        ("{{ [none, 1] | sum }}", "a value is null"),
        ("{{ tags | sort }}", "TypeError"),
        ("{{ key }}", "the record has no key"),
        ("{{ time_ms }}", "the event has no time"),
    ],
)
def test_nested_null_is_not_rendered_as_a_word(source: str, words: str) -> None:
    with pytest.raises(TemplateFailed, match=words):
        render(source, FIELDS)


LEAVES = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | LEAVES | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_is_written_as_json_at_any_depth(value: Any) -> None:
    template = PromptTemplate("{{ v }}", api="completions", escape=False)
    if value is None:
        with pytest.raises(TemplateFailed):
            template.render({"v": value})
        return
    text = template.render({"v": value})
    assert isinstance(text, str)
    if isinstance(value, str):
        assert text == value
    else:
        assert read_json(text.encode()) == value
        assert (
            PromptTemplate("{{ [v] }}", api="completions", escape=False).render({"v": value}) == f"[{text}]"
        )
        assert (
            PromptTemplate("{{ v | string ~ '' }}", api="completions", escape=False).render({"v": value})
            == text
        )


@given(LEAVES)
def test_id_is_the_json_of_its_field(value: Any) -> None:
    assert json.loads(FieldTemplate("{{ v }}", what="id").render({"v": value})) == value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ true }} {{ false | upper }} {{ 1 == 1 }}", "true FALSE true"),
        ("{{ 1e16 }} {{ 0.1 }} {{ 1e-7 }} {{ 2.0 }}", "1e+16 0.1 1e-7 2.0"),
        ("{{ [1e16, 1e-7] }}", "[1e+16,1e-7]"),
        ("{{ big }} {{ big + 1 }} {{ [big] }}", f"{2**70} {2**70 + 1} [{2**70}]"),
        ("{{ exact }} {{ [exact] }} {{ exact * 2 }}", "0.1000000000000000055 [0.1000000000000000055] 0.2"),
        ("{{ huge }} {{ huge > 1 }}", "1e400 true"),
    ],
)
def test_numbers_and_booleans_are_rendered_as_json(source: str, expected: str) -> None:
    fields = {"big": 2**70, "exact": ExactFloat("0.1000000000000000055"), "huge": ExactFloat("1e400")}
    assert render(source, fields) == expected


@pytest.mark.parametrize(
    "source", ["{{ 1e308 * 10 }}", "{{ [1e308, 1e308] | sum }}", "{{ 'nan' | float }}", "{{ [huge * 2] }}"]
)
def test_non_json_numbers_are_not_rendered(source: str) -> None:
    with pytest.raises(TemplateFailed, match="a number that cannot be written"):
        render(source, {"huge": ExactFloat("1e400")})
