from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.autoscale.base import ServiceClass, Tokens
from forebay.fleet.autoscale.learned import ClassMix

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


@pytest.mark.parametrize(("ticks", "each"), [(40, 100.0), (1, 4000.0)])
def test_the_last_requests_count_in_any_report(ticks: int, each: float) -> None:
    mix = ClassMix(CLASSES)
    mix.add({"alarm": Tokens(100_000, 1, 1)})
    for _ in range(ticks):
        mix.add({"archive": Tokens(0.75 * each, 1, 1), "gone": Tokens(0.25 * each, 1, 1)})
    shares = {of.name: part.requests for of, part in mix.split(Tokens(1, 1, 1))}
    assert shares["archive"] / shares["default"] == pytest.approx(3, rel=0.01)
    assert shares["alarm"] < 0.4
    # A handful among thousands means little.
    mix.add({"alarm": Tokens(35, 1, 1)})
    more = {of.name: part.requests for of, part in mix.split(Tokens(1, 1, 1))}
    assert more["alarm"] < shares["alarm"] + 0.02


def test_it_outlives_a_restart() -> None:
    before, after = ClassMix(CLASSES), ClassMix(CLASSES)
    before.add({"alarm": Tokens(10, 20, 30), "default": Tokens(30, 20, 10)})
    after.recall(orjson.loads(orjson.dumps(before.remembers())))
    assert after.split(Tokens(4, 4, 4)) == before.split(Tokens(4, 4, 4))
    for wrong in ({"alarm": [1, 2]}, {"alarm": [-1, 0, 0]}, {"alarm": "x"}, {"alarm": [float("nan"), 0, 0]}):
        with pytest.raises(ValueError, match="alarm"):
            after.recall(wrong)
    assert after.split(Tokens(4, 4, 4)) == before.split(Tokens(4, 4, 4))


def test_without_other_classes_all_is_of_the_one() -> None:
    mix = ClassMix(CLASSES[:1])
    mix.add({"default": Tokens(3, 0.1, 0.7)})
    assert mix.split(Tokens(0.1, 0.2, 0.3)) == [(CLASSES[0], Tokens(0.1, 0.2, 0.3))]
