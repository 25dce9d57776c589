from __future__ import annotations

from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from forebay.errors import SettingError
from forebay.yaml_document import MAX_BYTES, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# note", None),
        ("a: 1", {"a": 1}),
        ("a: -1.5e3", {"a": -1500.0}),
        ("a: '1'", {"a": "1"}),
        ("a: true\nb: False\nc: ~\nd:", {"a": True, "b": False, "c": None, "d": None}),
        ("a: yes\nb: on", {"a": "yes", "b": "on"}),
        ("on: 1", {"on": 1}),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("a: 0x10", {"a": "0x10"}),
        ("a: [1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("'1': 2", {"1": 2}),
        ("a: " + "9" * 200, {"a": "9" * 200}),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_yaml(text, "f")[0] == value


def test_every_key_and_item_has_its_line() -> None:
    lines = parse_yaml("a: 1\nb:\n  - x\n  - c: 2\n", "f")[1]
    assert lines == {(): 1, ("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "f:3: found key 'a' a second time"),
        ("x: 1\na: &x 1", "f:2: found an anchor"),
        ("a: *x", "f:1: found an alias"),
        ("? *x\n: 1", "f:1: found an alias"),
        ("a: !!python/object/apply:os.system [x]", "f:1: found a tag"),
        ("a: !!str 1", "f:1: found a tag"),
        ("!foo a: 1", "f:1: found a tag"),
        ("<<: {a: 1}", "f:1: found a merge key"),
        ("1: 2", "f:1: found a key that is not a text"),
        ("null: 2", "f:1: found a key that is not a text"),
        ("[a]: 2", "f:1: found a key that is not a text"),
        ("a: 1\n---\nb: 2", "f:2: found a second document"),
        ("a: [", "f:1: not valid YAML"),
        ("a: b: c", "f:1: not valid YAML: ': ' within a text; put it in quotes, or"),
        ("a: 1\nb: @x", "f:2: not valid YAML: a text that begins with a special character; put it in quotes"),
        ('a: "say "{{ x }}""', "f:1: not valid YAML: text after a closing quote or bracket"),
        ("a: 'it's'", "f:1: not valid YAML: text after a closing quote"),
        ("a: 1\nb: {{ x }}", "f:2: found '{' as a key; put a text that begins with a template in quotes"),
        (
            "a:\n  - 1\n b: 2",
            "f:3: not valid YAML: the line does not match the lines above; check its indent",
        ),
        ('a: 1\nb: "x\nc: 3\nd: 4', "f:2: not valid YAML: a quote that is never closed"),
        ("a: |\n x\ny\n", "not valid YAML: a line that is neither indented nor 'key: value'"),
        ('{"a": 1}\n{"a": 2}\n', "f:2: not valid YAML: more text after the end of the first value"),
        ('a: "C:\\path"', "f:1: not valid YAML: a \\ in double quotes; write \\\\, or use single quotes"),
        ("a: 1\nb:\u00a02\nc: 3", "line 2 has a no-break space (U+00A0): replace it with a space"),
        ("a:\n  b: 1\n\tc: 2", "line 3 begins with a tab: indent it with spaces"),
        ("a: 1\nb: \x00", "f:2: found the invisible character U+0000"),
        ("a: 1\nb:\n  - \ud800", "f:3: found the invisible character U+D800"),
        ("[" * 100_000, "f:1: found more than 64 levels"),
        ("- " * 1000 + "x", "f:1: found more than 64 levels"),
        ("# " + "x" * MAX_BYTES, "the limit for a pipeline file is 1048576"),
    ],
)
def test_rejected_documents(text: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_yaml(text, "f")
    assert words in str(caught.value)


def test_errors_do_not_quote_values() -> None:
    for text in ("api_key: sk-secret: x", "api_key: 'sk-secret", "api_key: [sk-secret", "a: !sk-secret x"):
        with pytest.raises(SettingError) as caught:
            parse_yaml(text, "f")
        assert "sk-secret" not in str(caught.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_reads_what_a_yaml_library_writes(value: dict[str, Any]) -> None:
    library = YAML(typ="safe", pure=True)
    library.representer.ignore_aliases = lambda data: True
    stream = StringIO()
    try:
        library.dump(value, stream)
        written = library.load(stream.getvalue())
    except Exception:  # characters that YAML cannot hold
        return
    if written == value and "!!" not in stream.getvalue():
        assert parse_yaml(stream.getvalue(), "f")[0] == value


@given(st.text(alphabet="ab:-? \n[]{}&*!|>'\"#%,1.~<", max_size=40) | st.text(max_size=40))
def test_any_text_parses_or_raises_the_documented_error(text: str) -> None:
    with suppress(SettingError):
        parse_yaml(text, "f")
