"""The highest sustained rate of pipelines with a known limit."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stream.simulated_queue import SimulatedQueue
from tests.bench.stream.stream_runs import even, event, lost, stream_run

from forebay.bench.load.schedules import Constant
from forebay.bench.statistics import percentile
from forebay.bench.stream.events import EventLoad, EventSlo
from forebay.bench.stream.rate_search import MAX_TRIALS, RateSearch, trials, tried
from forebay.bench.stream.records import StreamRun
from forebay.errors import SettingError

rates = st.floats(0.05, 5e4)
resolutions = st.floats(1.02, 2.0)


@given(rates, rates, resolutions, st.integers(0, 4))
def test_a_limit_is_found_to_the_resolution(
    limit: float, first: float, resolution: float, confirmations: int
) -> None:
    search = RateSearch(first, resolution=resolution, confirmations=confirmations)
    trials = []
    while (rate := search.next_per_s) is not None:
        trials.append(rate)
        search.record(rate <= limit)
    assert all(trials.count(rate) == 2 for rate in trials if rate > limit)
    found = search.found_per_s
    assert found is not None
    assert found <= limit < found * resolution * (1 + 1e-9)
    assert trials.count(found) == 1 + confirmations
    doublings = abs(math.log2(limit / first)) + 2
    bisections = math.log2(1 / math.log2(resolution)) + 1
    assert len(set(trials)) <= doublings + max(0.0, bisections) + 1


@given(rates, st.integers(0, 2**32))
def test_any_outcomes_end_the_search_with_a_confirmed_rate(first: float, seed: int) -> None:
    dice, told = Random(seed), dict[float, list[bool]]()
    search = RateSearch(first)
    for _ in range(MAX_TRIALS + 1):
        rate = search.next_per_s
        if rate is None:
            break
        outcome = dice.random() < 0.6
        told.setdefault(rate, []).append(outcome)
        search.record(outcome)
    assert search.next_per_s is None
    found = search.found_per_s
    if found is not None:
        assert told[found] in ([True] * 3, [False] + [True] * 3)


def test_a_new_rate_that_fails_is_tried_once_more() -> None:
    search = RateSearch(10.0, most_per_s=10.0)
    search.record(False)
    assert (search.high_per_s, search.next_per_s) == (None, 10.0)
    for _ in range(3):
        search.record(True)
    assert search.found_per_s == 10.0


@pytest.mark.heavy
def test_a_search_finds_the_capacity_of_a_simulated_queue() -> None:
    dice, slots, found = Random(20), 16, []
    for _ in range(24):
        search = RateSearch(slots * 10 ** dice.uniform(-1, 0.7))
        queue = SimulatedQueue(slots, dice)
        for _ in trials(queue, search, queue.load):  # type: ignore[arg-type]
            pass
        assert search.found_per_s is not None
        found.append(search.found_per_s / slots)
    found.sort()
    assert percentile(found, 50) == pytest.approx(1, abs=0.05)
    assert percentile(found, 5) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("arguments", [{"first_per_s": 0.0}, {"first_per_s": 1.0, "resolution": 1.0}])
def test_invalid_search_settings(arguments: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        RateSearch(**arguments)


def growing(index: int) -> tuple[float, ...]:
    return (0.001, 0.002, 0.003, 0.01, 0.1 + index / 8 - index / 10, 0.2, 0.001, 0.5)


def test_conditions_of_a_too_high_rate() -> None:
    slo = EventSlo(within_s=1.0)
    assert tried(stream_run(even(200)), 10.0, slo, 0.99).sustained
    why = tried(stream_run([event(n, n / 10, growing(n)) for n in range(200)]), 10.0, None, 0.99).why
    assert why.startswith("the lag grew by 2")
    assert tried(stream_run([*even(199), lost(199, 19.9)]), 10.0, None, 0.9).why.startswith("1 of 200 events")
    assert tried(stream_run(even(200)), 10.0, EventSlo(within_s=0.5), 0.99).why.startswith("0.0% committed")
    assert tried(stream_run(even(200), failure="it ended"), 10.0, None, 0.99).why == "it ended"


SIX_S = (0.001, 0.002, 0.003, 0.01, 6.0, 0.2, 0.001, 0.5)


def test_slow_answers_are_not_a_growing_lag() -> None:
    short = tried(stream_run(even(80, 4.0, stages_s=SIX_S)), 4.0, None, 0.99)
    assert (short.sustained, short.why, short.too_short) == (False, "", True)
    assert tried(stream_run(even(320, 4.0, stages_s=SIX_S)), 4.0, None, 0.99).sustained


def test_conditions_of_a_doubtful_trial() -> None:
    (few,) = tried(stream_run(even(20)), 10.0, None, 0.99).doubts
    assert few.startswith("20 events are too few")
    disturbed = tried(stream_run(even(200), others_cores=1.5, cores=2), 10.0, None, 0.99)
    assert not disturbed.sustained
    assert disturbed.doubts[0].startswith("other programs kept 1.50 of 2 cores busy")
    doubled = stream_run([*even(199), event(199, 19.9, results=2)])
    assert tried(doubled, 10.0, None, 0.99).doubts == (
        "1 of 200 events have more than one result or dead letter",
    )


class Session:
    """All trials are good, except the disturbed ones, by number."""

    def __init__(self, disturbed: set[int]) -> None:
        self.disturbed = disturbed
        self.rates: list[float] = []

    def measure(self, load: EventLoad) -> StreamRun:
        others = 2.0 if len(self.rates) in self.disturbed else 0.0
        assert isinstance(load.schedule, Constant)
        self.rates.append(load.schedule.rate_per_s)
        return stream_run(even(200), others_cores=others, cores=2)

    def settle(self, timeout_s: float) -> bool:
        return True


@pytest.mark.parametrize(
    ("disturbed", "rates", "found"),
    [({1}, [5.0, 10.0, 10.0, 10.0, 10.0], 10.0), ({1, 2}, [5.0, 10.0, 10.0], None)],
)
def test_doubtful_trial_is_repeated_once(
    disturbed: set[int], rates: list[float], found: float | None
) -> None:
    session, search = Session(disturbed), RateSearch(5.0, most_per_s=10.0)
    load_at = lambda rate, number, times: EventLoad(schedule=Constant(rate))  # noqa: E731
    made = [trial for trial, _ in trials(session, search, load_at)]  # type: ignore[arg-type]
    assert session.rates == rates
    assert search.found_per_s == found
    assert bool(made[-1].doubts) == (found is None)


@pytest.mark.parametrize(("enough", "told"), [(4, [False, False, True, True, True]), (100, [False] * 4)])
def test_a_trial_that_is_too_short_lasts_longer_the_next_time(enough: int, told: list[bool]) -> None:
    lengths: list[float] = []

    def load_at(rate_per_s: float, number: int, times: float) -> EventLoad:
        lengths.append(times)
        return EventLoad(schedule=Constant(rate_per_s), events=80 * round(times))

    class Slow:
        """Answers take six seconds, so that a load of 20 s is too short."""

        def measure(self, load: EventLoad) -> StreamRun:
            count = 320 if load.events >= 80 * enough else 80
            return stream_run(even(count, 4.0, stages_s=SIX_S))

        def settle(self, timeout_s: float) -> bool:
            return True

    search = RateSearch(4.0, most_per_s=4.0)
    made = [trial for trial, _ in trials(Slow(), search, load_at)]  # type: ignore[arg-type]
    assert [trial.sustained for trial in made] == told
    assert lengths == [1, 2, *([4] * 3 if enough == 4 else [4, 8])]
    assert search.found_per_s == (4.0 if enough == 4 else None)


def test_no_rate_is_sustained() -> None:
    search = RateSearch(1.0, least_per_s=0.3)
    seen = []
    while (rate := search.next_per_s) is not None:
        seen.append(rate)
        search.record(False)
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.3, 0.3]
    assert search.found_per_s is None


def test_the_highest_rate_that_may_be_tried_is_sustained() -> None:
    search = RateSearch(3.0, most_per_s=10.0, confirmations=1)
    seen = []
    while (rate := search.next_per_s) is not None:
        seen.append(rate)
        search.record(True)
    assert seen == [3.0, 6.0, 10.0, 10.0]
    assert search.found_per_s == 10.0


def test_a_rate_that_is_not_sustained_again_is_too_high() -> None:
    search = RateSearch(10.0, resolution=2.0, confirmations=1)
    for outcome in (True, False, False, False):
        search.record(outcome)
    assert (search.low_per_s, search.high_per_s, search.next_per_s) == (None, 10.0, 5.0)
