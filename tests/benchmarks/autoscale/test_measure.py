"""Comparison of policies on a short load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.autoscale.contenders import OTHERS, Point
from benchmarks.autoscale.fluid import Load, WorkModel
from benchmarks.autoscale.loads import Case, bursts, days, stretched
from benchmarks.autoscale.measure import Comparison, compare_policies, frontiers_picture

from benchmarks.autoscale import contenders
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals

TRACE = PoissonArrivals(1500, 5.0, 3000, 150).make()
MODEL = WorkModel.fit(TRACE, LLAMA_8B)


def short() -> Case:
    rates = np.concatenate([np.full(300, 1.0), np.full(300, 4.0), np.full(300, 1.0)]) / MODEL.mean_work_s
    load = Load(rates, rates * 3000, rates * 150, rates * MODEL.mean_work_s)
    return Case("short", load, MODEL)


def test_every_policy_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contenders, "STEPS", 2)
    monkeypatch.setattr(contenders, "HOLDS_S", (60.0,))
    monkeypatch.setattr(contenders, "USES", (0.8,))
    monkeypatch.setattr(contenders, "WINDOWS_S", (60.0,))
    found = compare_policies(short(), [60.0], [60.0])
    assert len(found) == 1
    document = found[0].document()
    assert set(document["policies"]) == {"deadline", "fixed", *OTHERS}
    for entry in document["policies"].values():
        assert {"goodput", "replica_seconds", "oracle_ratio", "actions", "max_backlog_tokens"} <= set(entry)
        assert entry["replica_seconds"] > 0
    mine = document["policies"]["deadline"]
    assert mine["goodput"] > 0.9
    assert 0.9 < mine["oracle_ratio"] < 2
    assert "oracle (99 %)" in frontiers_picture(found).svg()


def test_cheaper_policies_and_better_ones_at_equal_cost() -> None:
    def point(policy: str, goodput: float, cost: float) -> Point:
        return Point(policy, "", goodput, cost, 0, 0.0)

    others = (
        point("fixed", 0.995, 300), point("queue", 0.992, 200), point("queue", 0.9, 100),
        point("batch", 0.95, 150), point("kv_cache", 0.5, 50), point("capacity", 0.999, 500),
    )  # fmt: skip
    found = Comparison("x", False, 60, 10, 80.0, point("deadline", 0.99, 160), others, 100.0)
    equal, other, steady = (
        found.at_equal_cost(),
        found.cheapest(of_fixed=False),
        found.cheapest(of_fixed=True),
    )
    assert equal is not None
    assert (equal.policy, equal.goodput) == ("batch", 0.95)
    assert other is not None
    assert (other.policy, other.replica_seconds) == ("queue", 200)
    assert steady is not None
    assert steady.replica_seconds == 300
    assert found.document()["cost_over_best_other"] == 0.8
    assert found.best("batch").goodput == 0.95


def test_frontier_omits_dominated_settings() -> None:
    def point(setting: str, goodput: float, cost: float) -> Point:
        return Point("queue", setting, goodput, cost, 0, 0.0)

    others = (
        point("beaten", 0.9, 200), point("most", 0.99, 300), point("least", 0.8, 50), point("good", 0.9, 150),
        point("same for more", 0.99, 400), Point("fixed", "alone", 0.1, 900, 0, 0.0),
    )  # fmt: skip
    found = Comparison("x", False, 60, 10, 80.0, point("", 0.99, 160), others, 100.0)
    assert [each.setting for each in found.frontier("queue")] == ["least", "good", "most"]
    assert [each.setting for each in found.frontier("fixed")] == ["alone"]
    assert found.frontier("batch") == []


def test_loads_have_the_shape_that_they_promise() -> None:
    day = days(TRACE, MODEL, replicas=1.0, seed=1)
    assert day.history is not None
    assert len(day.history) == 7 * 86_400
    hours = day.load.work_s.reshape(24, 3600).mean(axis=1)
    assert hours[9] > 4 * hours[3]
    assert float(day.load.work_s.mean()) == pytest.approx(1.0, rel=0.1)
    burst = bursts(TRACE, MODEL, times=10, replicas=1.0, count=2)
    assert float(burst.load.work_s.max()) > 5
    assert len(stretched("x", TRACE, MODEL, stretch=2, replicas=3).load) >= 2 * int(TRACE[-1].arrived_s)
