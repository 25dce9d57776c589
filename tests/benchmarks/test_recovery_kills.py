"""The plan of a recovery run."""

from __future__ import annotations

import pytest
from benchmarks.killable import AFTER_S, DOWN_S, MAX_RESULTS, TURNS, WITH_BROKER, plan


def test_the_same_seed_gives_the_same_kills_and_another_seed_others() -> None:
    assert plan(20, 1) == plan(20, 1)
    assert plan(20, 1) != plan(20, 2)


def test_kinds_come_by_turns() -> None:
    assert [kill.kind for kill in plan(7, 3)] == list(TURNS * 2)[:7]
    assert {kill.kind for kill in plan(20, 3, broker=True)} == {*WITH_BROKER} == {*TURNS, "broker"}


@pytest.mark.parametrize("count", [1, 2, 5, 10, 20])
def test_one_whole_job_comes_back_at_another_parallelism(count: int) -> None:
    scaled = [i for i, kill in enumerate(plan(count, 1, rescale_to=3)) if kill.parallelism]
    kills = plan(count, 1, rescale_to=3)
    assert [(kills[i].kind, kills[i].parallelism) for i in scaled] == [("job", 3)]
    assert abs(scaled[0] - count / 2) <= len(TURNS)
    assert all(kill.parallelism is None for kill in plan(count, 1, rescale_to=None))


def test_moments_are_within_their_bounds() -> None:
    for kill in plan(200, 7):
        assert 1 <= kill.after_results <= MAX_RESULTS
        assert AFTER_S[0] <= kill.after_s <= AFTER_S[1]
        assert DOWN_S[0] <= kill.down_s <= DOWN_S[1]
