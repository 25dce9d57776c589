from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.prompt import FieldTemplate, PromptTemplate, request_hash, request_id
from forebay.errors import SettingError, TemplateFailed
from forebay.records import Event, Message, Request, Sampling

EVENT: dict[str, Any] = {
    "text": "Hello, world",
    "user": {"name": "bob", "items": [3, 1, 2], "get": "got"},
    "tags": ["a", "b", "c"],
    "user id": 7,
    "event": "shadow",
    "n": 3,
    "none": None,
}


def render(source: str, fields: dict[str, Any] | None = None, **names: Any) -> str:
    rendered = PromptTemplate(source, api="completions").render(EVENT if fields is None else fields, **names)
    assert isinstance(rendered, str)
    return rendered


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("plain", "plain"),
        ("{{ text }}!", "Hello, world!"),
        ("{{ event['user id'] }}", "7"),
        ("{{ event.event }}", "shadow"),
        ("{{ user.name | upper }}", "BOB"),
        ("{{ user.items }}", "[3,1,2]"),
        ("{{ user.items() | list | length }}", "3"),
        ("{{ user.get('name') }} {{ user.get }}", "bob got"),
        ("{{ user }}", '{"name":"bob","items":[3,1,2],"get":"got"}'),
        ("{{ {'ä': [1, none, true]} | tojson }}", '{"ä":[1,null,true]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        (
            "{% for t in tags %}{{ loop.index }}/{{ loop.length }}{{ t }}"
            "{{ ',' if not loop.last }}{% endfor %}",
            "1/3a,2/3b,3/3c",
        ),
        (
            "{% for t in tags if t != 'b' %}{{ loop.cycle('x', 'y') }}{{ t }}{% else %}none{% endfor %}",
            "xayc",
        ),
        ("{% for t in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in user.items() %}{{ k }};{% endfor %}", "name;items;get;"),
        ("{% for i in range(3) %}{{ i }}{% endfor %}", "012"),
        (
            "{% set a = n + 2 %}{{ a * 2 - 1 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 1 / 2 }}",
            "9 3 3 1024 0.5",
        ),
        ("{% with a = 1 %}{{ a }}{% endwith %}", "1"),
        ("{% if 'a' in tags and n > 2 %}yes{% elif n %}{% else %}no{% endif %}", "yes"),
        (
            "{{ missing is defined }} {{ missing | default('-') }} {{ none | default('x', true) }}",
            "false - x",
        ),
        ("{{ text[:5] }} {{ tags[0] }} {{ tags[-1] }}", "Hello a c"),
        ("{{ text ~ 1 ~ [2] }}", "Hello, world1[2]"),
        ("{{ '-' * 5 }}{{ tags + ['d'] }}", '-----["a","b","c","d"]'),
        ("{{ text.replace('l', 'L') }} {{ text | replace('o', '0') }}", "HeLLo, worLd Hell0, w0rld"),
        ("{{ tags | map('upper') | join('+') }}", "A+B+C"),
        ("{{ [user] | map(attribute='name') | first }}", "bob"),
        ("{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list }}", '[{"a":2}]'),
        ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}", "3"),
        ("{{ user['items'] | sort | last }} {{ tags | reverse | join }}", "3 cba"),
        ("{{ 'one two three' | truncate(9) }}", "one..."),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        (
            "{{ '12' | int + 1 }} {{ 'x' | int(9) }} {{ '1.5' | float }} {{ 2.345 | round(1) }}",
            "13 9 1.5 2.3",
        ),
        ("{{ 'a,b'.split(',') | last }} {{ ' x ' | trim }} {{ 'a b' | wordcount }}", "b x 2"),
        ("{% raw %}{{ x }}{% endraw %}{# note #}", "{{ x }}"),
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        ("{{ key }} {{ time_ms }}", "k 5"),
    ],
)
def test_renders(source: str, expected: str) -> None:
    assert render(source, key="k", time_ms=5) == expected


def test_prompt_is_one_user_message_or_a_completion() -> None:
    assert PromptTemplate("{{ n }}").render(EVENT) == (Message("user", "3"),)
    assert PromptTemplate("{{ n }}", api="completions").render(EVENT) == "3"


def test_messages_are_templates() -> None:
    template = PromptTemplate(messages=[Message("system", "Be {{ n }}"), Message("user", "{{ text }}")])
    assert template.render(EVENT) == (Message("system", "Be 3"), Message("user", "Hello, world"))


def test_reserved_names_win_over_fields() -> None:
    assert render("{{ key }}{{ event.key }}", {"key": "field"}, key="k") == "kfield"


def test_templates_survive_pickling() -> None:
    template = pickle.loads(pickle.dumps(PromptTemplate("{{ text | upper }}", max_chars=20)))
    assert template.render(EVENT) == (Message("user", "HELLO, WORLD"),)
    assert template.max_chars == 20
    key = pickle.loads(pickle.dumps(FieldTemplate("{{ none_ }}", what="id", required=True)))
    with pytest.raises(TemplateFailed, match="id: field 'none_' is missing"):
        key.render(EVENT)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ nope }}", "field 'nope' is missing; the event has text, user"),
        ("{{ user.nope }}", "field 'nope' is missing; the object has name, items, get"),
        ("{{ user.name.nope }}", "field 'nope' is missing; str has no fields"),
        ("{{ event['no such'] }}", "field 'no such' is missing"),
        ("{{ tags[9] }}", "item 9 is missing"),
        ("{{ nope | upper }}", "'nope' is missing"),
        ("{{ nope.x }}", "'nope' is missing"),
        ("{{ nope + 1 }}", "'nope' is missing"),
        ("{{ 1 - nope }}", "'nope' is missing"),
        ("{{ [nope] | length }}", "'nope' is missing"),
        ("{{ 'x' ~ nope }}", "'nope' is missing"),
        ("{{ text == nope }}", "'nope' is missing"),
        ("{% if nope %}{% endif %}", "'nope' is missing"),
        ("{% for x in nope %}{% endfor %}", "'nope' is missing"),
        ("{{ nope.upper() }}", "'nope' is missing"),
        ("{% for x in n %}{% endfor %}", "a loop needs a list; it was given int"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ text + 1 }}", "TypeError"),
        ("{{ '%s' % 1 }}", "'%' takes numbers; it was given str and int"),
        ("{{ n.upper() }}", "a int has no method 'upper'"),
        ("{{ text.keys() }}", "a text has no method 'keys'"),
        ("{{ tags | sum }}", "sum adds numbers, found str"),
        ("{{ 'half' ~ '\ud800' }}", "lone surrogate"),
    ],
)
def test_render_errors_name_the_field(source: str, words: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        render(source)
    assert words in str(caught.value)
    assert str(caught.value).startswith("prompt")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{{ x", "prompt, line 2: unexpected end of template"),
        ("a\nb{% if x %}", "line 2"),
        ("{{ x | uper }}", "no filter 'uper' in prompt templates; did you mean 'upper'"),
        ("{{ x is definde }}", "no test 'definde' in prompt templates; did you mean 'defined'"),
        ("{{ x.uper() }}", "no method 'uper' in prompt templates; did you mean 'upper'"),
        ("{{ self }}", "write event['self']"),
        ("{% for x in y recursive %}{{ loop(x) }}{% endfor %}", "recursive loops"),
        ("(" * 3 + "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
        ("x" * 70_000, "70000 characters"),
    ],
)
def test_invalid_template_is_rejected_at_construction(source: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        PromptTemplate(source)
    assert words in str(caught.value)


def test_invalid_message_is_named_by_its_index() -> None:
    with pytest.raises(SettingError, match=r"messages\[1\].content, line 1"):
        PromptTemplate(messages=[Message("user", "a"), Message("user", "{{")])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt": "a", "messages": [Message("user", "b")]},
        {"messages": [Message("user", "b")], "api": "completions"},
        {"messages": [Message("user", "b")] * 65},
        {"prompt": "a", "max_chars": 0},
    ],
)
def test_invalid_prompt_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        PromptTemplate(**arguments)


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ '' | attr('__class__') }}",
    "{{ ['x'] | map(attribute='__class__') | list }}",
    "{{ ['x'] | map('attr', '__class__') | list }}",
    "{{ ['x'] | map('_method', 'format') | list }}",
    "{{ ['x'] | map('_method', '__len__') | list }}",
    "{{ [text] | selectattr('__class__') | list | length > 0 and boom }}",
    "{{ [text] | sort(attribute='__class__.__name__') and boom }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{x.__class__}'.format_map(event) }}",
    "{{ '%s' | format(text) }}",
    "{{ '%(a)s' % event }}",
    "{{ text.format }}",
    "{{ text.upper }}",
    "{{ event.items }}",
    "{{ loop.__init__ }}",
    "{% for x in tags %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for x in tags %}{{ loop._iterable }}{% endfor %}",
    "{% for x in tags %}{{ loop['_iterator'] }}{% endfor %}",
    "{% for x in tags %}{{ loop(tags) }}{% endfor %}",
    "{% for x in tags %}{{ loop.cycle }}{% endfor %}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner('x') }}",
    "{{ lipsum() }}",
    "{{ namespace() }}",
    "{{ dict(a=1) }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ config }}",
    "{{ range.__class__ }}",
    "{{ range }}",
    "{{ [].append(1) }}",
    "{{ tags.append('x') }}",
    "{{ tags.pop() }}",
    "{{ event.update({'a': 1}) }}",
    "{{ event.clear() }}",
    "{{ user.setdefault('a', 1) }}",
    "{{ text.encode() }}",
    "{{ text.join(tags) }}",
    "{{ text.translate({}) }}",
    "{{ text.center(10) }}",
    "{{ text.upper.__func__() }}",
    "{{ (text.upper)() () }}",
    "{{ [text.upper][0]() }}",
    "{{ text | pprint }}",
    "{{ text | xmlattr }}",
    "{{ (text, 1) | random }}",
    "{{ [event] | groupby('text') }}",
    "{{ text | e }}",
    "{{ text | safe }}",
    "{{ tags | batch(2) }}",
    "{{ tags | slice(2) }}",
    "{{ text | wordwrap(1) }}",
    "{{ text | center(9) }}",
    "{{ text | urlize }}",
    "{{ text | filesizeformat }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{% block a %}{% endblock %}",
    "{% macro m() %}{% endmacro %}",
    "{% call m() %}{% endcall %}",
    "{% filter upper %}x{% endfilter %}",
    "{% set x %}{{ text }}{% endset %}",
    "{% set user.name = 1 %}",
    "{% set x = namespace(a=1) %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% do tags.append(1) %}",
    "{% debug %}",
    "{% trans %}x{% endtrans %}",
    "{% for x in tags %}{% break %}{% endfor %}",
    "{{ tags | join(*tags) }}",
    "{{ text.split(**user) }}",
    "{{ caller() }}",
    "{{ varargs }}",
    "{{ context }}",
    "{{ environment }}",
    "{{ context.environment }}",
    "{{ undefined }}",
    "{{ __builtins__ }}",
    "{{ __import__('os') }}",
    "{{ _ }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_sandbox_cannot_be_escaped(source: str) -> None:
    event = {**EVENT, "user": dict(EVENT["user"])}
    with pytest.raises((SettingError, TemplateFailed)):
        render(source, event)
    assert event == EVENT


BOMBS = [
    "{{ 'x' * 10**9 }}",
    "{{ 10**9 * 'x' }}",
    "{{ [0] * 10**9 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 2 ** -99999999999999 }}",
    "{{ 9 ** 9999 }}",
    "{{ 1.5 ** 99999999 }}",
    "{% set a = 2 ** 1000 %}{{ a * a }}",
    "{{ range(10**9) | list }}",
    "{{ range(10**9) | length }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}",
    "{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% if big in big2 %}{% endif %}{% endfor %}",
    "{% for i in range(9999) %}{{ big[1:] | length }}{% endfor %}",
    "{% for i in range(9999) %}{{ (big ~ i) | length }}{% endfor %}",
    "{% for i in range(9999) %}{{ big | upper | length }}{% endfor %}",
    "{% for i in range(9999) %}{{ big.count('y') }}{% endfor %}",
    "{% for i in range(9999) %}{{ many == many2 }}{% endfor %}",
    "{{ many | select('in', many) | list | length }}",
    "{{ many | map('replace', 'a', big) | list | length }}",
    "{{ big | replace('x', big) }}",
    "{{ big.replace('x', big) }}",
    "{{ big | replace('', big) }}",
    "{{ many | join(big) }}",
    "{{ ('\n' * 10000) | indent(100000) }}",
    "{{ 1 | round(10**9) }}",
    "{{ 1 | round(-(10**9), 'ceil') }}",
    "{{ big }}" * 12,
    "{% for i in range(1000) %}" + "x" * 2000 + "{% endfor %}",
    "{% set a = big %}" + "{% set a = a ~ a %}" * 40 + "{{ a | length }}",
    "{% set a = big %}" + "{% set a = a + a %}" * 40 + "{{ a | length }}",
    "{% set a = [big] %}" + "{% set a = a + a %}" * 40 + "{{ a | length }}",
    "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
    "{% set a = [1] %}" + "{% set a = (a, a) %}" * 60 + "{{ a | string | length }}",
    "{% set a = [1] %}" + "{% set a = {'x': a, 'y': a} %}" * 60 + "{{ a | tojson | length }}",
    "{% set a = [1] %}{% set b = [1] %}" + "{% set a = [a, a] %}{% set b = [b, b] %}" * 60 + "{{ a == b }}",
    "{{ " + "[" * 200 + "]" * 200 + " | tojson }}",
    "{{ 'ab' * 999999999999999999999 }}",
]


@pytest.mark.heavy
@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", BOMBS)
def test_template_cost_is_bounded(source: str) -> None:
    fields = {
        "big": "x" * 100_000,
        "big2": "x" * 100_000 + "y",
        "many": ["a"] * 20_000,
        "many2": ["a"] * 20_000,
    }
    with pytest.raises((TemplateFailed, SettingError)):
        render(source, fields)


def test_thousand_digit_number_is_not_converted() -> None:
    assert render("{{ d | int(-1) }}", {"d": "9" * 1000}) == "-1"


def test_output_of_all_messages_together_is_bounded() -> None:
    template = PromptTemplate(messages=[Message("user", "{{ text }}")] * 2, max_chars=20)
    assert len(template.render({"text": "x" * 10})) == 2
    with pytest.raises(TemplateFailed, match=r"messages\[1\].content is longer than 9 characters"):
        template.render({"text": "x" * 11})


def test_large_event_still_renders() -> None:
    fields = {"rows": [{"id": i, "text": "x" * 50} for i in range(10_000)]}
    assert len(render("{{ rows | tojson }}", fields)) > 700_000
    assert len(render("{% for r in rows %}{{ r.id }}: {{ r.text | upper }}\n{% endfor %}", fields)) > 500_000


def test_key_is_trimmed_bounded_and_may_be_empty() -> None:
    assert FieldTemplate(" {{ user.name }}\n").render(EVENT) == "bob"
    assert FieldTemplate("{{ key }}").render({"key": "of the event"}) == "of the event"
    assert FieldTemplate("{{ time_ms }}").render(EVENT, time_ms=9) == "9"
    assert FieldTemplate("{{ text }}").render({"text": " "}) == ""
    with pytest.raises(TemplateFailed, match="key is longer than 1024 characters"):
        FieldTemplate("{{ text }}").render({"text": "x" * 1025})
    with pytest.raises(TemplateFailed, match="is empty for this record"):
        FieldTemplate("{{ text }}", what="id", required=True).render({"text": " "})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=6))
def test_any_event_renders_or_raises_the_documented_error(fields: dict[str, Any]) -> None:
    template = PromptTemplate(
        "{{ event }}{% for k, v in event.items() %}{{ k }}{{ v }}{{ v | tojson | upper }}"
        "{% if v == k %}{% endif %}{{ v ~ k }}{{ v is mapping }}{% endfor %}",
    )
    try:
        first = template.render(fields, key="k")
    except TemplateFailed:
        return
    assert template.render(fields, key="k") == first


@given(st.text(alphabet="{}%| abx.()[]'_~*+1", max_size=40))
def test_any_template_compiles_or_raises_the_documented_error(source: str) -> None:
    with suppress(SettingError, TemplateFailed):
        render(source, {"a": [1], "b": {"x": "y"}})


def test_explicit_id_wins_over_the_position() -> None:
    event = Event(raw=b"{}", fields={}, position="f@1")
    assert request_id(event, "k", "mine") == "mine"
    assert request_id(event, "k", None) == "f@1"


def test_id_without_a_position_is_made_from_bytes_and_key() -> None:
    event = Event(raw=b'{"a":1}', fields={"a": 1})
    assert request_id(event, "k", None) == "6313576a579b50545f7d1700dc38efcf"
    assert request_id(replace(event, time_ms=5), "k", None) == request_id(event, "k", None)


@given(st.binary(max_size=20), st.text(max_size=5), st.binary(max_size=20), st.text(max_size=5))
def test_different_records_have_different_ids(raw: bytes, key: str, other: bytes, other_key: str) -> None:
    one = request_id(Event(raw=raw, fields={}), key, None)
    two = request_id(Event(raw=other, fields={}), other_key, None)
    assert (one == two) == ((raw, key) == (other, other_key))
    assert len(one) == 32


ASKED = Request(
    id="1",
    model="m",
    messages=(Message("user", "hällo \ud800"),),
    sampling=Sampling(max_tokens=8, stop=("a",), extra={"b": 1, "a": 2}),
    schema={"type": "object", "properties": {"x": {}, "a": {}}},
)


def test_hash_is_stable_across_processes() -> None:
    assert request_hash(ASKED) == "d44b5404bb1b2fd74bf3a9c540f5de344a29a58a2b91203487f207713207187f"


def test_prompt_hash_ignores_id_and_key_order() -> None:
    same = replace(
        ASKED,
        id="2",
        sampling=Sampling(max_tokens=8, temperature=0, stop=("a",), extra={"a": 2, "b": 1}),
        schema={"properties": {"a": {}, "x": {}}, "type": "object"},
    )
    assert request_hash(same) == request_hash(ASKED)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"messages": (Message("system", "hällo \ud800"),)},
        {"messages": (), "prompt": "hällo"},
        {"sampling": Sampling(max_tokens=9)},
        {"sampling": replace(ASKED.sampling, temperature=0.1)},
        {"sampling": replace(ASKED.sampling, top_p=0.9)},
        {"sampling": replace(ASKED.sampling, seed=1)},
        {"sampling": replace(ASKED.sampling, stop=())},
        {"sampling": replace(ASKED.sampling, extra={})},
        {"schema": None},
    ],
)
def test_prompt_hash_covers_everything_that_determines_the_answer(change: dict[str, object]) -> None:
    assert request_hash(replace(ASKED, **change)) != request_hash(ASKED)  # type: ignore[arg-type]
