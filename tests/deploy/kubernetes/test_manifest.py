"""Manifests as YAML."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from forebay.deploy.kubernetes.deployment import MAX_CHARS, instance_name, labels, owned_by
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
def test_yaml_round_trip(bodies: list[dict[str, object]]) -> None:
    assert read(to_yaml(Manifest("p", body) for body in bodies)) == bodies


def test_comments_are_above_their_keys_and_change_nothing() -> None:
    content = {"spec": {"a": 1, "list": [{"name": "x", "deep": {"k": 2}}], "b": "on"}}
    notes = {"spec/a": "why a", "spec/list/0/deep": "why deep", "spec/b": "b " * 100}
    plain = manifest("p", "Service", "n", content, labels={})
    noted = manifest("p", "Service", "n", content, labels={}, notes=notes)
    text = to_yaml([noted])
    assert read(text) == read(to_yaml([plain]))
    assert "  # why a\n  a: 1\n" in text
    assert "    # why deep\n    deep:\n" in text
    assert text.count("# b b") == 3
    assert 'b: "on"' in text


NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@given(NAMES)
def test_pipeline_name_is_a_dns_label_with_room_for_a_suffix(pipeline: str) -> None:
    name = instance_name(pipeline)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= MAX_CHARS
    assert name == instance_name(pipeline)


@given(NAMES, NAMES)
def test_two_pipelines_never_share_a_name(one: str, other: str) -> None:
    assert one == other or instance_name(one) != instance_name(other)


def test_long_names_that_differ_at_their_end_differ() -> None:
    assert instance_name("a" * 62 + "b") != instance_name("a" * 62 + "c")


@given(NAMES)
def test_owner_selects_the_labels_of_its_objects(pipeline: str) -> None:
    name = instance_name(pipeline)
    wanted = dict(part.split("=") for part in owned_by(name).split(","))
    found = labels(name, "engine")
    assert wanted.items() <= found.items()
    assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) for value in found.values())
    assert all(len(value) <= 63 for value in found.values())
