from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import Share, limits_of_pools, shares

PARTS = st.lists(st.integers(1, 40), min_size=1, max_size=10)


@given(PARTS, st.integers(0, 200))
def test_pools_add_up_to_the_wanted_number_and_little_more(parts: list[int], wanted: int) -> None:
    found = [share.of_replicas(wanted) for share in shares(parts)]
    assert wanted <= sum(found) < wanted + len(parts)
    assert all(found) == (wanted > 0)


@given(PARTS, st.integers(0, 60), st.integers(0, 60), st.data())
def test_limits_bound_all_pools_together(
    parts: list[int], least: int, more: int, data: st.DataObject
) -> None:
    most = max(least + more, len(parts))
    limits = limits_of_pools(ScalingLimits(least, most), parts)
    assert sum(each.most for each in limits) == most
    assert all(each.most >= 1 for each in limits)
    wanted = data.draw(st.integers(0, most))
    for number in (wanted, least):
        found = [
            min(share.of_replicas(number), each.most)
            for share, each in zip(shares(parts), limits, strict=True)
        ]
        assert number <= sum(found) <= most
    assert sum(each.least for each in limits) >= least


def test_single_pool_gets_everything() -> None:
    limits = ScalingLimits(1, 9, budget_per_hour=10.0, price_per_hour=2.0)
    assert limits_of_pools(limits, [7]) == (ScalingLimits(1, 5),)
    (share,) = shares([7])
    assert share.whole
    assert (share.of_replicas(5), share.of_work(9.0)) == (5, 9.0)


def test_replicas_are_split_by_share() -> None:
    assert limits_of_pools(ScalingLimits(2, 8), [1, 3]) == (ScalingLimits(1, 2), ScalingLimits(2, 6))
    # One that would have less than a replica has one.
    assert [each.most for each in limits_of_pools(ScalingLimits(0, 3), [1, 99])] == [1, 2]
    one, other = shares([1, 3])
    assert not one.whole
    assert (one.of_work(8.0), other.of_work(8.0)) == (2.0, 6.0)


def test_impossible_split_is_rejected() -> None:
    with pytest.raises(
        SettingError, match="expected at least 2 replicas at most, one for each pool, found 1"
    ):
        limits_of_pools(ScalingLimits(0, 1), [1, 1])
    with pytest.raises(SettingError, match="found 0 of 3"):
        Share(0, 3)
