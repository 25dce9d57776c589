from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
from benchmarks.grid.cells import (
    ARRIVALS,
    CONSTANT,
    EXACT,
    EXPONENTIAL,
    HEAVY,
    TAILS,
    CellSpec,
    GridOptions,
    Parallelism,
    burst_load,
    cell_load,
    read_parallelism,
    tail_lengths,
)
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError


@given(
    tail=st.sampled_from(TAILS),
    count=st.integers(8, 300),
    mean=st.integers(2, 300),
    room=st.floats(4, 20),
    seed=st.integers(0, 9),
)
def test_every_tail_has_the_same_mean_within_its_limit(
    tail: str, count: int, mean: int, room: float, seed: int
) -> None:
    limit = int(mean * room)
    lengths = tail_lengths(tail, count, mean, limit, seed)
    assert len(lengths) == count
    assert all(1 <= length <= limit for length in lengths)
    # Whole tokens: of several equal lengths all grow at once.
    assert fmean(lengths) == pytest.approx(mean, rel=0.08, abs=1)
    assert tail_lengths(tail, count, mean, limit, seed) == lengths
    assert sorted(tail_lengths(tail, count, mean, limit, seed + 1)) == sorted(lengths)


TRACE_S = tuple(float(at * at) for at in range(12))


def options(**changed: Any) -> GridOptions:
    sizes: dict[str, Any] = {"models": ("a", "b"), "requests": 12, "prompt_tokens": 8, "mean_tokens": 8}
    return GridOptions(**{**sizes, "limit_tokens": 64, **changed})


def test_every_engine_has_every_cell_and_its_cells_are_measured_together() -> None:
    asked = options(parallelisms=(Parallelism(1), Parallelism(2)), subtasks=(1, 2), tails=TAILS, repeats=2)
    engines = list(asked.engines())
    assert engines == [
        ("a", Parallelism(1)),
        ("a", Parallelism(2)),
        ("b", Parallelism(1)),
        ("b", Parallelism(2)),
    ]
    cells = [cell for engine in engines for cell in asked.cells(*engine)]
    assert len(set(cells)) == len(cells) == 4 * 2 * 2 * 3 * 2
    # Repeats of a cell follow one another.
    assert [cell.repeat for cell in cells[:4]] == [0, 1, 0, 1]
    assert len({cell.name for cell in cells}) == len(cells)


@given(
    arrival=st.sampled_from(ARRIVALS),
    tail=st.sampled_from(TAILS),
    rate_per_s=st.floats(0.05, 500),
    repeat=st.integers(0, 3),
)
def test_a_load_has_its_rate_and_tokens_for_any_arrival_and_tail(
    arrival: str, tail: str, rate_per_s: float, repeat: int
) -> None:
    asked = options(arrivals=ARRIVALS, trace_s=TRACE_S)
    spec = CellSpec("a", Parallelism(), 1, arrival, tail, repeat)
    load = cell_load(asked, spec, rate_per_s)
    due_s = [request.due_s for request in load.requests if request.due_s is not None]
    assert len(due_s) == 12
    assert due_s == sorted(due_s)
    # Of evenly spaced ones, and of a trace, the first is due at once.
    last_s = 11 / rate_per_s if arrival == CONSTANT else 12 / rate_per_s
    assert due_s[-1] == pytest.approx(last_s, rel=1e-3)
    assert fmean(request.output_tokens for request in load.requests) == pytest.approx(8, abs=0.5)
    assert {request.prompt_tokens for request in load.requests} == {8}
    assert load.asked["tail"] == tail


def test_repeats_have_other_times_and_fresh_prompts() -> None:
    first, second = (
        cell_load(options(), CellSpec("a", Parallelism(), 1, "poisson", "heavy", repeat), 2.0)
        for repeat in (0, 1)
    )
    assert [one.due_s for one in first.requests] != [one.due_s for one in second.requests]
    assert [list(one.prompt) for one in first.requests] != [list(one.prompt) for one in second.requests]
    assert sorted(one.output_tokens for one in first.requests) == sorted(
        one.output_tokens for one in second.requests
    )


@pytest.mark.parametrize(
    ("text", "found"), [("1", Parallelism(1)), ("2x4", Parallelism(2, 4)), ("64x1024", Parallelism(64, 1024))]
)
def test_parallelism_is_replicas_and_cores(text: str, found: Parallelism) -> None:
    assert read_parallelism(text) == found
    assert read_parallelism(text).name == text


def test_replicas_share_the_cores() -> None:
    assert Parallelism(1).on((0, 1, 2, 3, 4)) == Parallelism(1, 5)
    assert Parallelism(2).on((0, 1, 2, 3, 4)) == Parallelism(2, 2)
    assert Parallelism(2, 1).on((0, 1, 2)) == Parallelism(2, 1)
    for asked in (Parallelism(2, 2), Parallelism(4)):
        with pytest.raises(SettingError, match=f"--replicas {asked.name}: there are 3 cores"):
            asked.on((0, 1, 2))


def test_capacity_is_measured_with_all_requests_at_once() -> None:
    assert {request.due_s for request in burst_load(options(), "heavy").requests} == {0.0}


def test_tails_grow_from_one_to_the_next() -> None:
    lengths = {tail: sorted(tail_lengths(tail, 100, 32, 512)) for tail in TAILS}
    assert lengths[EXACT][0] == lengths[EXACT][-1] == 32
    assert lengths[EXACT][-1] < lengths[EXPONENTIAL][-1] < lengths[HEAVY][-1] <= 512
    assert lengths[EXACT][50] > lengths[EXPONENTIAL][50] > lengths[HEAVY][50]
    # The median of an exponential distribution is ln 2 of its mean.
    assert lengths[EXPONENTIAL][50] == pytest.approx(32 * 0.693, abs=1.5)
