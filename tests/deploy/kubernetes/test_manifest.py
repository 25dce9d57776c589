"""Manifests as YAML."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from forebay.deploy.kubernetes.manifest import Manifest, manifest, to_yaml

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=40)
SCALARS = st.one_of(
    TEXTS, st.booleans(), st.integers(-(10**6), 10**6), st.sampled_from(["1", "on", "1e3", "a\nb\n"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3))
)


def read(text: str) -> list[object]:
    return list(YAML(typ="safe").load_all(text))


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_it_is_read_as_it_was_meant(bodies: list[dict[str, object]]) -> None:
    assert read(to_yaml(Manifest("p", body) for body in bodies)) == bodies


def test_comments_stand_above_their_keys_and_change_nothing() -> None:
    content = {"spec": {"a": 1, "list": [{"name": "x", "deep": {"k": 2}}], "b": "on"}}
    notes = {
        "spec/a": "why a",
        "spec/list/0/deep": "why deep",
        "spec/b": "b " * 100,
    }
    plain = manifest("p", "Service", "n", content, labels={})
    noted = manifest("p", "Service", "n", content, labels={}, notes=notes)
    text = to_yaml([noted])
    assert read(text) == read(to_yaml([plain]))
    assert "  # why a\n  a: 1\n" in text
    assert "    # why deep\n    deep:\n" in text
    assert text.count("# b b") == 3
    assert 'b: "on"' in text
