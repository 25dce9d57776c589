"""What a hostile template, or a hostile record in a good one, may try: a plain error, soon and small.

Each of these got through once: it allocated hundreds of megabytes, took minutes, or raised what nobody
catches.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from jinja2 import nodes

from forebay.engine.prompt import PromptTemplate
from forebay.engine.prompt.filters import FILTERS
from forebay.engine.prompt.rendering import Budgeted
from forebay.engine.prompt.sandbox import INTERNAL, PromptEnvironment
from forebay.errors import SettingError, TemplateFailed

MAX_BYTES = 64 << 20
"""Memory limit of a rendering with the usual budget; some attacks took a gigabyte."""


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


FIELDS: dict[str, Any] = {
    "big": "x" * 500_000,
    "many": ["a"] * 20_000,
    "half": "a" * 500_000,
    "sought": "a" * 250_000 + "b" + "a" * 200_000,
    "signs": "y" * 500_000 + "x",
    "path": "0." * 100_000 + "0",
    "deep": nested(list(range(250_000)), 128),
}

WIDER = "{% set a = 'あ' * 1000 %}{% set a = a * 4000 %}"
WORDS = "{% set a = 'ab ' * 1000 %}{% set a = a * 1500 %}"
NESTED = "{% set a = (1, 1) %}" + "{% set a = (a, a) %}" * 16

ATTACKS = {
    "a filter's name that is an internal function, with a charge below zero": (
        "{% set a = [['q']] | map('turns', -10**15) | map('list') | list %}{{ ('x' * 300000000) | length }}"
    ),
    "the same as it was called once": (
        "{% set a = [['q']] | map('_turns', -10**15) | map('list') | list %}{{ ('x' * 300000000) | length }}"
    ),
    "a text that is rounded is repeated": "{{ 'x' | round(9, 'ceil') }}",
    "a list that is rounded": "{{ [1] | round(8, 'floor') }}",
    "a text sought backwards, by rpartition": "{{ half.rpartition(sought) | length }}",
    "a text sought backwards, by rsplit": "{{ half.rsplit(sought) | length }}",
    "a text sought backwards, by keyword": "{{ half.rsplit(sep=sought) | length }}",
    "many characters to strip, each compared with as many": "{{ big.strip(signs) | length }}",
    "the same by a filter": "{{ big | trim(signs) | length }}",
    "a path with as many steps as one likes, for each item, by sort": "{{ many | sort(attribute=path) }}",
    "… by unique": "{{ many | unique(attribute=path) | length }}",
    "… by max": "{{ many | max(attribute=path) }}",
    "… by min": "{{ many | min(attribute=path) }}",
    "… by join": "{{ many | join('', attribute=path) }}",
    "a key that takes long to hash": NESTED
    + "{% for i in range(100000) %}{{ '' if event[a] is defined }}{% endfor %}",
    "the characters of a text as a list": WIDER + "{{ a | list | length }}",
    "… sorted": WIDER + "{{ a | sort | length }}",
    "the words of a text": WORDS + "{{ a.split() | length }}",
    "… counted": WORDS + "{{ a | wordcount }}",
    "the lines of a text": "{% set a = 'あ\n' * 1000 %}{% set a = a * 1500 %}{{ a.splitlines() | length }}",
    "the parts of a text": "{% set a = 'ああb' * 1000 %}{% set a = a * 1500 %}{{ a.split('b') | length }}",
    "an indent for each of many lines": "{{ deep | tojson(indent=2) | length }}",
    "more numbers than the budget holds": "{{ range(2000000) | length }}",
    "a loop that compares new large texts each time": (
        "{% set b = big ~ 'x' %}{% set c = big ~ 'x' %}"
        "{% for i in range(50000) %}{{ '' if loop.changed(b if i % 2 else c) }}{% endfor %}"
    ),
    "a text formatted by a test": "{{ '' if '%900000000d' is divisibleby(5) }}",
    "a text formatted by a test without arguments": "{{ '' if '%900000000d' is odd }}",
    "a text formatted by a test of many": "{{ ['%900000000d'] | select('even') | list }}",
    "a number that is not real": "{{ (-8) ** 0.5 }}",
}


@pytest.mark.heavy
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_rejected_before_they_cost_time(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((TemplateFailed, SettingError)):
            PromptTemplate(ATTACKS[name], api="completions").render(FIELDS)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_first_character_of_a_long_text_is_cheap() -> None:
    tracemalloc.start()
    try:
        source = WIDER + "{{ a | first }}{{ a | last }}"
        assert PromptTemplate(source, api="completions").render({}) == "ああ"
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ 1e400 }}", "line 1: a number is too large"),
        ("\n{{ [-1e999] }}", "line 2: a number is too large"),
        ("{{ " + "9" * 5000 + " }}", "a number"),
        ("{{ 0x" + "f" * 60_000 + " }}", "a number"),
        ("{{ " + "1_" * 30_000 + "1 }}", "a number"),
        ("{{ a0 }}" + "".join(f"{{{{ a{i} }}}}" for i in range(6000)), "more than 5000 names"),
    ],
)
def test_too_large_literal_or_template_is_one_error(source: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        PromptTemplate(source)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("source", ["{{ x | " + "a" * 60_000 + " }}", "{% " + "a" * 60_000 + " %}"])
def test_errors_quote_part_of_the_template_only(source: str) -> None:
    with pytest.raises(SettingError) as caught:
        PromptTemplate(source)
    assert len(str(caught.value)) < 1000


def test_internal_functions_are_not_filters() -> None:
    environment = PromptEnvironment()
    assert environment.filters == FILTERS
    assert not set(INTERNAL) & set(FILTERS)


def test_templates_cannot_call_internal_functions() -> None:
    for name in INTERNAL:
        for source in (f"{{{{ {name}(1, 2) }}}}", f"{{{{ '{name}'(1, 2) }}}}", f"{{{{ ('{name}')(1) }}}}"):
            if name == "range" and source.startswith("{{ range"):
                continue
            with pytest.raises(SettingError):
                PromptTemplate(source)


def test_calls_not_inserted_by_the_sandbox_are_rejected() -> None:
    environment = PromptEnvironment()
    context = Budgeted(environment, {}, 1000)
    for target in (print, "print", "__import__", nodes.Const, None):
        with pytest.raises(TemplateFailed):
            environment.call(context, target, "x")


def test_charge_is_never_negative() -> None:
    context = Budgeted(PromptEnvironment(), {}, 10)
    context.charge(-(10**9))
    assert context.work == 10


class Broken(str):
    """A value whose use raises an error that no template should cause."""

    def upper(self) -> str:
        raise NameError("no such name")


def test_rendering_errors_are_the_records_fault() -> None:
    with pytest.raises(TemplateFailed, match="NameError"):
        PromptTemplate("{{ text.upper() }}").render({"text": Broken("x")})


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ text.split(none, 1) | length }}", "2"),
        ("{{ text.split(maxsplit=1) | length }}", "2"),
        ("{{ text.split() | length }}", "180000"),
        ("{{ text | wordcount }}", "180000"),
        ("{{ text.strip(' ab') | length }}", "0"),
        ("{{ text.rsplit(' ', 2) | length }}", "3"),
        ("{{ text.rpartition(' ') | length }}", "3"),
        ("{{ rows | map(attribute='user.name') | unique | list | length }}", "1"),
        ("{{ rows | sort(attribute='id') | first | tojson }}", '{"id":0,"user":{"name":"bob"}}'),
        ("{{ rows | sum(attribute='id') }}", "199990000"),
        ("{% for r in rows %}{{ 'x' if loop.changed(r.user) }}{% endfor %}", "x"),
        (
            "{{ 4 is even }} {{ 9 is divisibleby(3) }} {{ [1, 2, 3] | select('odd') | list }}",
            "true true [1,3]",
        ),
        ("{{ 2.5 | round | int }} {{ 1234 | round(-2) | int }}", "2 1200"),
    ],
)
def test_large_records_fit_the_bounds(source: str, expected: str) -> None:
    fields = {
        "text": "ab aba " * 90_000,
        "rows": [{"id": i, "user": {"name": "bob"}} for i in range(20_000)],
    }
    assert PromptTemplate(source, api="completions").render(fields) == expected
