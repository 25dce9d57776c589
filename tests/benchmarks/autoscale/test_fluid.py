"""The flow simulator against the step-by-step simulator."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from benchmarks.autoscale.fluid import FleetRun, Load, View, WorkModel, load_of, run_fleet
from benchmarks.autoscale.oracle import oracle

from forebay.planning.simulate import Scenario, Slo, dispatcher_for
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest

TRACE = PoissonArrivals(3000, 10.0, 3000, 150).make()


@cache
def fitted() -> WorkModel:
    """Not computed on import: other workers do not need it."""
    return WorkModel.fit(TRACE, LLAMA_8B)


def steady(load: Load, replicas: int, slo_s: float = 10.0) -> FleetRun:
    return run_fleet(load, fitted(), lambda _: replicas, slo_s=slo_s, boot_s=60, start=replicas)


def even(seconds: int, rate: float) -> Load:
    """Work for this many busy replicas in every second."""
    count = rate / fitted().mean_work_s
    values = (count, count * 3000, count * 150, rate)
    return Load(*(np.full(seconds, value) for value in values))


@pytest.mark.parametrize("lengths", [(3000, 150), (1000, 400), (8000, 30)])
def test_fluid_work_equals_the_stepwise_work(lengths: tuple[int, int]) -> None:
    trace = PoissonArrivals(12_000, 10.0, *lengths).make()
    model = WorkModel.fit(trace, LLAMA_8B)
    bare = [TraceRequest(0.0, one.prompt_tokens, one.output_tokens) for one in trace]
    per_s = Scenario(bare, LLAMA_8B, 2).capacity_per_s() / 2
    # The fit is to a sixth of them, whose last answers weigh more.
    assert model.mean_work_s * per_s == pytest.approx(1, rel=0.08)
    # The shares were fitted to one replica, and no large factor is left.
    assert 0.8 < model.scale < 1.25


def test_fluid_replica_count_equals_the_stepwise_one() -> None:
    load = load_of(TRACE, fitted())

    def enough(goodput: Callable[[int], float]) -> int:
        return next(number for number in range(1, 20) if goodput(number) >= 0.99)

    slo = Slo(10.0, 1.0, 1e9)
    stepped = enough(lambda number: Scenario(TRACE, LLAMA_8B, number, slo).run("expected_ttft").goodput)
    assert enough(lambda number: steady(load, number).goodput) == stepped


def test_fluid_batch_equals_the_stepwise_one() -> None:
    load = 0.6
    rate = load / fitted().mean_work_s
    scenario = Scenario(PoissonArrivals(3000, rate, 3000, 150).make(), LLAMA_8B, 1)
    requests = scenario.offer(scenario.trace, 1.0)
    scenario.serve(requests, dispatcher_for("round_robin"))
    stay_s = float(np.mean([one.finished_s - one.arrived_s for one in requests]))
    assert fitted().running(load) == pytest.approx(stay_s * rate, rel=0.4)


def test_replica_is_paid_for_boot_service_and_drain() -> None:
    def decide(view: View) -> int:
        return 1 if view.second < 200 else 0

    found = run_fleet(even(100, 0.5), fitted(), decide, slo_s=300, boot_s=60, start=0)
    assert found.goodput == pytest.approx(1)
    assert found.ready[:60] == [0] * 60
    assert found.ready[60] == 1
    assert found.paid[0] == 1
    # 50 s of work, all of it waiting until second 60 or coming later: done by second 110 or so.
    assert found.replica_seconds == pytest.approx(110 + fitted().stay_s, abs=5)
    assert found.max_backlog_tokens == pytest.approx(30 / fitted().mean_work_s * 3150, rel=0.05)


def test_late_requests_yield_to_punctual_ones() -> None:
    found = steady(even(1000, 2.0), 1, slo_s=10.0)
    assert found.goodput == pytest.approx(0.5, abs=0.02)
    assert steady(even(1000, 0.9), 1).goodput == pytest.approx(1)


def test_oracle_pays_for_the_work_and_one_start_under_steady_load() -> None:
    load = even(600, 3.0)
    found = oracle(load, slo_s=60, boot_s=60, drain_s=5, goal=0.999)
    assert found.replica_seconds == pytest.approx(3 * 600 + 3 * 65, rel=0.05)


def test_the_simulator_confirms_the_oracle_and_no_fixed_fleet_is_cheaper() -> None:
    rates = np.concatenate([np.full(300, 1.0), np.full(300, 6.0), np.full(300, 1.0)])
    parts = [even(1, rate) for rate in rates]
    load = Load(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("requests", "prompt", "output", "work_s")
        )
    )
    found = oracle(load, slo_s=10, boot_s=60, drain_s=5)
    ready = dict(enumerate(found.ready))
    replayed = run_fleet(
        load, fitted(), lambda view: ready.get(view.second // found.step_s, 0), slo_s=10, boot_s=0, start=0
    )
    assert replayed.goodput >= 0.98
    enough = [n for n in range(1, 9) if steady(load, n).goodput >= 0.99]
    assert found.replica_seconds < steady(load, enough[0]).replica_seconds
    assert found.replica_seconds >= 0.98 * float(load.work_s.sum())


def test_nothing_is_served_without_a_replica() -> None:
    found = run_fleet(even(50, 1.0), fitted(), lambda _: 0, slo_s=10, boot_s=60, start=0, most_s=100)
    assert found.goodput == 0
    assert found.replica_seconds == 0


def test_repeated_trace_keeps_its_shape() -> None:
    load = load_of(TRACE, fitted(), stretch=2.0, replicas=6.0, seed=3)
    assert float(load.work_s.mean()) == pytest.approx(6.0, rel=0.1)
    again = load_of(TRACE, fitted(), stretch=2.0, replicas=6.0, seed=3)
    assert np.array_equal(load.work_s, again.work_s)
