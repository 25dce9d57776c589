from __future__ import annotations

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.concurrency import FIRST, FIRST_SHOWN, ConcurrencyLimit, LimitTurn

Rate = Callable[[int], float]
"""Answers per second of a replica by its number of simultaneous requests."""


def slots(count: int, each_s: float) -> Rate:
    """`count` at a time; the rest wait."""
    return lambda there: min(there, count) / each_s


def crowded(each_s: float, share: float) -> Rate:
    """All at a time, each slower by the others."""
    return lambda there: there / (each_s * (1 + share * (there - 1)))


class Bench:
    """A backlog in front of one replica whose answers come at a rate, evenly or `spread` by chance."""

    def __init__(self, limit: ConcurrencyLimit, rate: Rate, *, spread: float = 0.0, seed: int = 1) -> None:
        self.limit = limit
        self.rate = rate
        self.now_s = 0.0
        self.answers = 0
        self._sent_s: list[float] = []
        self._spread = spread
        self._random = random.Random(seed)

    def run(self, answers: int, *, demand: float = math.inf) -> None:
        for _ in range(answers):
            while len(self._sent_s) < min(self.limit.limit, demand):
                heappush(self._sent_s, self.now_s)
                self.limit.began(self.now_s)
            gap = 1 + self._spread * (self._random.expovariate(1.0) - 1)
            self.now_s += gap / self.rate(len(self._sent_s))
            there = len(self._sent_s)
            self.limit.answered(there, heappop(self._sent_s), self.now_s)
            self.answers += 1


def test_limit_grows_with_each_answer_without_tokens() -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(64, 1.0))
    assert bench.limit.limit == FIRST
    bench.run(1)
    assert bench.limit.limit == FIRST + 1
    bench.run(60)
    assert bench.limit.limit == 64


@pytest.mark.parametrize("each_s", [0.01, 0.5, 60.0])
def test_limit_keeps_a_replica_full_at_any_speed(each_s: float) -> None:
    bench = Bench(ConcurrencyLimit(most=256), slots(16, each_s), spread=0.5)
    bench.run(6000)
    assert 16 <= bench.limit.limit <= 48


def test_fifty_times_slower_replica_keeps_its_limit() -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(16, 0.5), spread=0.5)
    bench.run(6000)
    for each_s in (5.0, 25.0, 5.0, 0.5):
        bench.rate = slots(16, each_s)
        began_s = bench.now_s
        for _ in range(40):
            bench.run(20)
            # A trial with fewer may be under way.
            assert bench.limit.limit >= 8
        assert 800 / (bench.now_s - began_s) >= 0.9 * 16 / each_s


def test_limit_reaches_the_maximum_if_more_is_always_better() -> None:
    bench = Bench(ConcurrencyLimit(most=100), slots(1000, 1.0), spread=0.3)
    bench.run(3000)
    assert bench.limit.limit == 100


def test_contended_replica_gets_nearly_its_best_throughput() -> None:
    rate = crowded(0.5, 0.1)
    bench = Bench(ConcurrencyLimit(most=64), rate, spread=0.5)
    bench.run(2000)
    began_s = bench.now_s
    bench.run(8000)
    assert 8000 / (bench.now_s - began_s) >= 0.93 * rate(64)


def test_limit_falls_if_missed_deadlines_cost_throughput() -> None:
    def thrashes(there: int) -> float:
        return min(there, 8) / 0.5 / (1 + max(0, there - 16) / 4)

    bench = Bench(ConcurrencyLimit(most=512), thrashes, spread=0.3)
    bench.run(4000)
    assert 8 <= bench.limit.limit <= 24


def test_replica_with_more_slots_gets_more_requests() -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(4, 0.5), spread=0.3)
    bench.run(4000)
    assert bench.limit.limit <= 24
    bench.rate = slots(48, 0.5)
    bench.run(30_000)
    assert bench.limit.limit >= 40


def test_nothing_is_learned_below_the_limit() -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(16, 0.5))
    bench.run(3000, demand=2)
    assert bench.limit.limit == FIRST


def test_idle_time_does_not_count_as_slowness() -> None:
    one, other = (Bench(ConcurrencyLimit(most=1), slots(4, 0.5)) for _ in range(2))
    for _ in range(300):
        one.run(1)
        other.run(1)
        other.now_s += 30.0
    assert one.limit._base_per_s == pytest.approx(other.limit._base_per_s)


def test_missed_deadlines_of_earlier_requests_halve_the_limit_once() -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(64, 1.0))
    bench.run(500)
    before, sent_s = bench.limit.limit, bench.now_s - 1
    for _ in range(9):
        bench.limit.missed(sent_s, bench.now_s)
    assert bench.limit.limit == before // 2
    bench.limit.missed(bench.now_s, bench.now_s + 1)
    assert bench.limit.limit == before // 4
    for moment_s in range(20):
        bench.limit.missed(bench.now_s + 2 + moment_s, bench.now_s + 2 + moment_s)
    assert bench.limit.limit == 1


def test_limit_falls_if_answers_exceed_their_time() -> None:
    bench = Bench(ConcurrencyLimit(most=64, most_s=20.0), slots(16, 1.0), spread=0.3)
    bench.run(70)
    assert bench.limit.limit >= 32
    bench.rate = slots(16, 16.0)
    bench.run(150)
    assert 14 <= bench.limit.limit <= 21, "they take 20 s now"
    began_s = bench.now_s
    bench.run(300)
    assert 300 / (bench.now_s - began_s) >= 0.7, "of one in a second: 16 would take 16 s"


def test_two_limits_of_one_replica_never_try_at_once() -> None:
    turn = LimitTurn()
    limits = [ConcurrencyLimit(most=64, turn=turn) for _ in range(2)]
    benches = [Bench(limit, slots(16, 0.5), spread=0.5, seed=seed) for seed, limit in enumerate(limits)]
    tried = [0, 0]
    for _ in range(20_000):
        for number, bench in enumerate(benches):
            bench.run(1)
            tried[number] += limits[number]._phase == "trial"
        assert sum(limit._phase in ("trial", "back") for limit in limits) <= 1
    assert all(tried)


@given(
    most=st.integers(1, 300),
    most_s=st.sampled_from([0.001, 1.0, 1e3, math.inf]),
    events=st.lists(
        st.tuples(
            st.sampled_from(["send", "answer", "miss"]),
            st.floats(0, 1e4, allow_nan=False),
            st.integers(1, 9),
        ),
        max_size=300,
    ),
)
def test_limit_always_stays_between_one_and_the_maximum(
    most: int, most_s: float, events: list[tuple[str, float, int]]
) -> None:
    limit = ConcurrencyLimit(most=most, most_s=most_s)
    now_s, sent_s = 0.0, [0.0]
    there: list[float] = []
    for what, passes_s, times in events:
        for _ in range(times):
            if what == "send" or not there:
                heappush(there, now_s)
                limit.began(now_s)
            elif what == "answer":
                sent_s.append(there[0])
                limit.answered(len(there), heappop(there), now_s)
            else:
                limit.missed(sent_s[-1], now_s)
            assert 1 <= limit.limit <= most
        now_s += passes_s


@given(
    count=st.integers(2, 48),
    each_s=st.floats(0.05, 30.0),
    spread=st.floats(0.0, 0.6),
    seed=st.integers(0, 10**6),
)
def test_replica_of_any_size_and_speed_is_kept_full(
    count: int, each_s: float, spread: float, seed: int
) -> None:
    bench = Bench(ConcurrencyLimit(most=64), slots(count, each_s), spread=spread, seed=seed)
    bench.run(20 * count + 200)
    began_s = bench.now_s
    bench.run(4000)
    # By chance it may have stopped early, and look ten times for more.
    assert 4000 / (bench.now_s - began_s) >= 0.75 * count / each_s * (1 - spread * 3 / math.sqrt(4000))


def test_limit_rises_again_if_far_more_requests_pay() -> None:
    bench = Bench(ConcurrencyLimit(most=1000), slots(8, 1.0))
    bench.run(500)
    assert bench.limit.limit <= 32
    bench.rate = slots(1000, 1.0)
    began_s, before = bench.now_s, bench.limit.limit
    while bench.limit.limit < 1000:
        bench.run(1)
    steps = math.log(1000 / before, 1.5)
    # By steps of half as many more, each with three looks at four times the limit, it would take longer.
    assert bench.now_s - began_s < steps * 3 * 4


TICK_S = 0.25


class Streams:
    """A backlog in front of a replica that streams answers of `tokens`, in steps of one token for all."""

    def __init__(
        self,
        limit: ConcurrencyLimit,
        *,
        slots: int = 10**9,
        step_s: Rate = lambda _: 0.03,
        tokens: int = 10**9,
        first_s: float = 0.3,
    ) -> None:
        self.limit = limit
        self.slots = slots
        self.tokens = tokens
        self.now_s = 0.0
        self._step_s = step_s
        self._first_s = first_s
        self._waiting: list[float] = []
        self._begun: list[list[float]] = []
        self._looked_s = self._gap_s = 0.0

    @property
    def there(self) -> int:
        return len(self._waiting) + len(self._begun)

    @property
    def begun(self) -> int:
        return len(self._begun)

    def run(self, seconds: float, *, demand: float = math.inf) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self._fill(demand)
            self._gap_s = self._step_s(max(1, self.begun))
            self.now_s += self._gap_s
            self._step(demand)
            if self.now_s >= self._looked_s + TICK_S:
                self._looked_s = self.now_s
                self.limit.look(self.there, self.now_s)

    def _fill(self, demand: float) -> None:
        while self.there < min(self.limit.limit, demand):
            self._waiting.append(self.now_s)
            self.limit.began(self.now_s)

    def _step(self, demand: float) -> None:
        for request in list(self._begun):
            request[1] += 1
            self.limit.flowed(self.begun, self._gap_s, self.now_s)
            if request[1] >= self.tokens:
                there = self.there
                self._begun.remove(request)
                self.limit.answered(there, request[0], self.now_s)
                self._fill(demand)
        while self._waiting and self.begun < self.slots and self._waiting[0] <= self.now_s - self._first_s:
            sent_s = self._waiting.pop(0)
            self._begun.append([sent_s, 1])
            self.limit.begun(self.begun, sent_s, self.now_s)


def test_engine_with_room_gets_everything_before_any_answer_ends() -> None:
    streams = Streams(ConcurrencyLimit(most=512))
    streams.run(2.5)
    assert streams.limit.limit == 512
    assert streams.begun >= 256


def test_taken_slots_are_noticed_before_any_answer_ends() -> None:
    streams = Streams(ConcurrencyLimit(most=512), slots=16)
    streams.run(3.0)
    assert 16 <= streams.limit.limit <= 24


@pytest.mark.parametrize("tokens", [50, 1000])
def test_engine_with_new_slots_gets_more_requests_at_once(tokens: int) -> None:
    streams = Streams(ConcurrencyLimit(most=512), slots=16, tokens=tokens)
    streams.run(60.0)
    assert 16 <= streams.limit.limit <= 36
    streams.slots = 200
    streams.run(45.0)
    assert streams.begun >= 180


def test_growth_stops_if_doubling_gives_no_more_tokens() -> None:
    def thrashes(begun: int) -> float:
        return 0.02 * max(1.0, begun / 32) ** 2

    streams = Streams(ConcurrencyLimit(most=512), step_s=thrashes)
    streams.run(20.0)
    assert 32 <= streams.limit.limit <= 64


def test_full_kv_cache_stops_the_growth() -> None:
    streams = Streams(ConcurrencyLimit(most=512))
    streams.limit.reported(0, 0, 0.95, 0.0)
    streams.run(5.0)
    assert streams.limit.limit == FIRST
    streams.limit.reported(32, 0, 0.5, streams.now_s)
    streams.run(5.0)
    assert streams.limit.limit == 512


def test_reported_load_raises_the_limit_of_non_streaming_answers() -> None:
    limit = ConcurrencyLimit(most=512)
    limit.reported(32, 0, 0.1, 1.0)
    assert limit.limit == 64
    limit.reported(40, 0, 0.1, 2.0)
    assert limit.limit == 64, "it has room for 24 more"
    limit.reported(60, 3, 0.1, 3.0)
    assert limit.limit == 64, "some wait there"
    limit.reported(64, 0, 0.95, 4.0)
    assert limit.limit == 64, "its KV cache is full"


def test_replica_with_queue_and_memory_metrics_starts_higher() -> None:
    limit = ConcurrencyLimit(most=1000)
    limit.start_high()
    assert limit.limit == FIRST_SHOWN
    few = ConcurrencyLimit(most=8)
    few.start_high()
    assert few.limit == 8


def test_tokens_do_not_raise_the_limit_after_a_missed_deadline() -> None:
    streams = Streams(ConcurrencyLimit(most=512))
    streams.run(0.5)
    streams.limit.missed(0.0, streams.now_s)
    before = streams.limit.limit
    streams.run(5.0)
    assert streams.limit.limit == before


def test_serialised_prefills_keep_the_limit_low() -> None:
    limit = ConcurrencyLimit()
    limit.waited(1.0, 1.0, 0.0, 1.0)
    assert limit.limit == FIRST
    limit.waited(32.0, 1.0, 0.0, 32.0)
    assert limit.limit == 4
    limit.waited(500.0, 1.0, 40.0, 600.0)
    assert limit.limit == 4
