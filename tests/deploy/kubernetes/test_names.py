"""Names derived from any pipeline's name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from forebay.deploy.kubernetes.deployment import MAX_CHARS, instance_name, labels, owned_by

NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@given(NAMES)
def test_every_pipeline_gets_a_dns_label_with_room_behind_it(pipeline: str) -> None:
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
def test_what_owns_an_object_selects_its_labels(pipeline: str) -> None:
    name = instance_name(pipeline)
    wanted = dict(part.split("=") for part in owned_by(name).split(","))
    found = labels(name, "engine")
    assert wanted.items() <= found.items()
    assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) for value in found.values())
    assert all(len(value) <= 63 for value in found.values())
