"""The numbers behind the charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.report.made_runs import answered, failed, made_run

from forebay.bench.records import Chunk, EngineSample, RequestRecord
from forebay.bench.report.curves import (
    CURVE_POINTS,
    MAX_ROWS,
    ROWS_AROUND,
    courses,
    cumulative,
    knee,
    response_and_service,
    share_within,
    signals,
    waterfall,
)

TIMES = st.lists(st.floats(0, 1e4), min_size=1, max_size=1000)


@given(TIMES)
def test_a_distribution_rises_from_the_smallest_to_the_largest(values: list[float]) -> None:
    found = cumulative(values)
    assert found == sorted(found)
    assert len(found) <= CURVE_POINTS + 1
    assert found[0] == (min(values), 0.0)
    assert found[-1] == (max(values), 1.0)
    # No point has a larger or a smaller share than the true one.
    for value, share in found[1:]:
        below = sum(one < value for one in values) / len(values)
        assert below < share <= sum(one <= value for one in values) / len(values) + 1e-12


def test_a_run_over_time() -> None:
    """Ten bins of a second: due, ended, received, and in flight."""
    run = made_run(
        records=(
            RequestRecord(0, 0.5, 1.0, 3.5, chunks=(Chunk(2.5, 1), Chunk(3.5, 3)), output_tokens=4),
            RequestRecord(1, 0.5, 2.0, 2.5, chunks=(Chunk(2.25), Chunk(2.5)), output_tokens=6),
            failed(2, 9.0),
        ),
        duration_s=10.0,
    )
    found = courses(run)
    assert found is not None
    assert [value for _, value in found.due_per_s] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert [value for _, value in found.answered_per_s] == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert [value for _, value in found.tokens_per_s] == [0, 0, 7, 3, 0, 0, 0, 0, 0, 0, 0]
    assert [value for _, value in found.in_flight] == pytest.approx([0, 1, 1.5, 0.5, 0, 0, 0, 0, 0, 0.1, 0.1])
    assert [at_s for at_s, _ in found.in_flight] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@given(st.integers(1, 300), st.integers(0, 5))
def test_every_request_and_token_of_a_run_is_in_its_course(requests: int, seed: int) -> None:
    run = made_run(requests=requests, seed=seed)
    found = courses(run)
    assert found is not None
    total = {
        name: sum(v for _, v in getattr(found, name)[:-1]) * found.due_per_s[1][0]
        for name in (
            "due_per_s",
            "answered_per_s",
            "tokens_per_s",
            "in_flight",
        )
    }
    good = [record for record in run.records if record.answered]
    assert total["due_per_s"] == pytest.approx(requests)
    assert total["answered_per_s"] == pytest.approx(len(good))
    assert total["tokens_per_s"] == pytest.approx(sum(len(record.chunks) for record in good))
    busy_s = sum(record.ended_s - record.sent_s for record in run.records if record.sent_s is not None)
    # A refused request may end after the last answer, where the run ends.
    assert total["in_flight"] == pytest.approx(busy_s, abs=0.11)


def test_requests_around_the_slowest_are_shown() -> None:
    few = made_run(requests=MAX_ROWS)
    assert [record.index for record in waterfall(few)] == list(range(MAX_ROWS))
    records = list(made_run(requests=1000, failing=0).records)
    slow = records[700]
    records[700] = RequestRecord(700, slow.due_s, slow.sent_s, slow.due_s + 900.0)
    found = [record.index for record in waterfall(made_run(records=tuple(reversed(records))))]
    assert len(found) == ROWS_AROUND
    assert found == list(range(found[0], found[0] + ROWS_AROUND))
    assert 700 in found


def test_the_knee_of_a_curve_that_bends() -> None:
    points = [(1.0, 10.0), (2.0, 10.0), (4.0, 11.0), (8.0, 14.0), (9.0, 40.0), (9.5, 100.0)]
    assert knee(points) == 3


def test_straight_or_falling_curves_and_three_points_have_no_knee() -> None:
    assert knee([(float(x), 2.0 * x) for x in range(8)]) is None
    assert knee([(float(x), 8.0 - x) for x in range(8)]) is None
    assert knee([(1.0, 1.0), (2.0, 1.0), (3.0, 9.0)]) is None
    assert knee([(1.0, 1.0)] * 5) is None


def test_service_times_count_from_when_it_was_sent() -> None:
    run = made_run(records=(answered(0, 1.0, 1.25, 1.5, 2.5), failed(1, 1.0)))
    assert response_and_service(run, "ttft") == ([0.5], [0.25])
    assert response_and_service(run, "e2el") == ([1.5], [1.25])


def test_signals_with_gaps() -> None:
    samples = (EngineSample(0.0, {"running": 1.0}), EngineSample(1.0, {"running": 2.0, "waiting": 3.0}))
    assert signals(made_run(samples=samples)) == {
        "running": [(0.0, 1.0), (1.0, 2.0)],
        "waiting": [(1.0, 3.0)],
    }


def test_the_share_within_a_bound() -> None:
    assert share_within([1.0, 2.0, 3.0, 4.0], 2.0) == 0.5
    assert share_within([], 2.0) == 0.0
