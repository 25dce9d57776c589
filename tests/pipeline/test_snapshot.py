"""A run's limit, rate and remaining time in words."""

from __future__ import annotations

import pytest

from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.snapshot import OVER_S, Snapshot, Throughput


def run(
    throughput: Throughput, per_s: float, seconds: int, *, pending: int = 0, since_s: int = 0, done: float = 0
) -> Snapshot:
    for passed_s in range(seconds + 1):
        now = Snapshot(
            float(since_s + passed_s),
            "RUNNING",
            results=round(done + passed_s * per_s),
            in_flight=64,
            pending=pending,
            backlog=TopicBacklog(1000, None, None, 1.0) if pending else None,
        )
        throughput.add(now)
    return now


def test_waiting_events_mean_the_engine_limits() -> None:
    throughput = Throughput()
    now = run(throughput, 4.0, 20, pending=36)
    assert throughput.limit(now) == "limited by the engine: 4.0 events/s, backlog done in 5 min"
    assert throughput.limited(now) == "limited by the engine: 4.0 events/s"


def test_engine_does_not_limit_without_waiting_events() -> None:
    throughput = Throughput()
    now = run(throughput, 4.0, 20)
    assert (throughput.limit(now), throughput.limited(now)) == ("", "")


def test_no_remaining_time_without_a_backlog() -> None:
    throughput = Throughput()
    run(throughput, 25.0, 10)
    now = Snapshot(11.0, "RUNNING", results=275, pending=1)
    throughput.add(now)
    assert throughput.limit(now) == "limited by the engine: 25 events/s"
    assert throughput.limited(now) == "", "for one second of eleven"


def test_rate_covers_the_last_half_minute() -> None:
    throughput = Throughput()
    run(throughput, 30.0, 100)
    run(throughput, 3.0, int(OVER_S), since_s=100, done=3000)
    assert throughput.per_s == pytest.approx(3.0)


def test_rates_and_times_of_what_is_read() -> None:
    throughput = Throughput()
    for second in range(11):
        backlog = TopicBacklog(1000 - 50 * second, None, None, 1.0)
        counts = {"read": 7 * second, "completion_tokens": 9 * second}
        now = Snapshot(float(second), "RUNNING", **counts, read_share=0.05 * second, backlog=backlog)
        throughput.add(now)
    assert (throughput.read_per_s, throughput.tokens_per_s) == (7, 9)
    assert throughput.source_left_s == pytest.approx(10)
    assert throughput.gone_s == pytest.approx(10)
    throughput.add(Snapshot(12.0, "RUNNING", read=99, backlog=TopicBacklog(9999, None, None, 1.0)))
    assert (throughput.source_left_s, throughput.gone_s) == (None, None)


def test_restart_resets_the_rate() -> None:
    throughput = Throughput()
    run(throughput, 30.0, 100)
    throughput.add(Snapshot(101.0, "RUNNING", results=0))
    assert throughput.per_s is None
    run(throughput, 2.0, 10, since_s=102)
    assert throughput.per_s == pytest.approx(20 / 11)


def test_silent_engine_has_no_remaining_time() -> None:
    throughput = Throughput()
    now = run(throughput, 0.0, 20, pending=8)
    assert throughput.limit(now) == "limited by the engine: 0.0 events/s"
    assert throughput.limited(Snapshot(0.0, "FAILED")) == ""
