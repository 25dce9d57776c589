"""Requests shared out among classes of service."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.autoscale.base import ServiceClass, Tokens
from forebay.autoscale.class_mix import ClassMix

CLASSES = (ServiceClass(), ServiceClass("alarm", 5.0), ServiceClass("archive", 3600.0))
AMOUNTS = st.builds(Tokens, st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e9))


@given(
    st.lists(st.dictionaries(st.sampled_from(["default", "alarm", "archive", "gone"]), AMOUNTS), max_size=5),
    AMOUNTS,
)
def test_the_parts_add_up_and_none_is_below_zero(seen: list[dict[str, Tokens]], tokens: Tokens) -> None:
    mix = ClassMix(CLASSES)
    for each in seen:
        mix.add(each)
    parts = mix.split(tokens)
    assert [of for of, _ in parts] == list(CLASSES)
    assert all(min(part.requests, part.prompt, part.output) >= 0 for _, part in parts)
    total = sum((part for _, part in parts), Tokens())
    for name in ("requests", "prompt", "output"):
        assert getattr(total, name) == pytest.approx(getattr(tokens, name), rel=1e-6, abs=1e-6)


def test_the_last_requests_count_most_and_those_of_no_class_are_as_usual() -> None:
    mix = ClassMix(CLASSES)
    mix.add({"alarm": Tokens(1000, 1000, 1000)})
    mix.add({"archive": Tokens(300, 300, 300), "gone": Tokens(100, 100, 100)})
    shares = {of.name: part.requests for of, part in mix.split(Tokens(1, 1, 1))}
    assert shares["alarm"] < 0.01
    assert shares["archive"] == pytest.approx(0.75, abs=0.01)
    assert shares["default"] == pytest.approx(0.25, abs=0.01)


def test_without_other_classes_all_is_of_the_one() -> None:
    mix = ClassMix(CLASSES[:1])
    mix.add({"default": Tokens(3, 0.1, 0.7)})
    assert mix.split(Tokens(0.1, 0.2, 0.3)) == [(CLASSES[0], Tokens(0.1, 0.2, 0.3))]
