"""The plan of a recovery run."""

from __future__ import annotations

import pytest

from forebay.bench.kills import AFTER_S, DOWN_S, MAX_RESULTS, TURNS, Mode, plan, shares
from forebay.errors import SettingError

MODES: tuple[Mode, ...] = ("process", "thread")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_kills_and_another_seed_others(mode: Mode) -> None:
    assert plan(20, 1, mode) == plan(20, 1, mode)
    assert plan(20, 1, mode) != plan(20, 2, mode)


@pytest.mark.parametrize("mode", MODES)
def test_kinds_come_by_turns(mode: Mode) -> None:
    assert [kill.kind for kill in plan(7, 3, mode)] == list(TURNS[mode] * 2)[:7]


def test_a_python_worker_of_its_own_is_there_to_kill_in_process_mode_only() -> None:
    assert "worker" in TURNS["process"]
    assert "worker" not in TURNS["thread"]
    assert "jvm" in TURNS["thread"]


@pytest.mark.parametrize("count", [1, 2, 5, 10, 20])
def test_one_whole_job_comes_back_at_another_parallelism(count: int) -> None:
    scaled = [i for i, kill in enumerate(plan(count, 1, "thread", rescale_to=3)) if kill.parallelism]
    kills = plan(count, 1, "thread", rescale_to=3)
    assert [(kills[i].kind, kills[i].parallelism) for i in scaled] == [("job", 3)]
    assert abs(scaled[0] - count / 2) <= len(TURNS["thread"])
    assert all(kill.parallelism is None for kill in plan(count, 1, "thread", rescale_to=None))


def test_moments_are_within_their_bounds() -> None:
    for kill in plan(200, 7, "process"):
        assert 1 <= kill.after_results <= MAX_RESULTS
        assert AFTER_S[0] <= kill.after_s <= AFTER_S[1]
        assert DOWN_S[0] <= kill.down_s <= DOWN_S[1]
        assert 0 <= kill.pick < 1


def test_kills_are_shared_out_over_the_modes() -> None:
    assert shares(20, MODES) == (10, 10)
    assert shares(5, MODES) == (3, 2)
    assert shares(5, ("thread",)) == (5,)
    with pytest.raises(SettingError, match="2 modes need at least as many kills, found 1"):
        shares(1, MODES)


def test_no_kills_are_no_plan() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        plan(0, 1, "thread")
