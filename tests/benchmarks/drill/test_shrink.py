"""A failing scenario becomes smaller, and still fails."""

from __future__ import annotations

from benchmarks.drill.scenario import Fault, Range, Scenario, draw
from benchmarks.drill.shrink import LEAST_EVENTS, shrink

LARGE = draw(7, Range())


def large(*kinds: str) -> Scenario:
    from dataclasses import replace

    faults = tuple(Fault(kind, 3, parallelism=2) for kind in kinds)  # type: ignore[arg-type]
    return replace(LARGE, application="infer", source="csv", events=400, keys=10, bad=17, faults=faults)


def test_only_the_fault_that_matters_is_left() -> None:
    scenario = large("pause jvm", "stop", "kill jvm", "kill all", "cut engine")
    found = shrink(scenario, lambda one: any(fault.kind == "kill jvm" for fault in one.faults), 100)
    assert [fault.kind for fault in found.faults] == ["kill jvm"]
    assert (found.source, found.parallelism, found.keys, found.bad) == ("file", 1, 1, 0)
    assert LEAST_EVENTS <= found.events < 2 * LEAST_EVENTS
    assert found.faults[0].parallelism is None


def test_what_is_needed_stays() -> None:
    scenario = large("stop", "kill all", "kill all")
    found = shrink(
        scenario, lambda one: len(one.faults) >= 2 and one.source == "csv" and one.events > 150, 100
    )
    assert len(found.faults) == 2
    assert (found.source, found.events) == ("csv", 200)


def test_the_number_of_tries_is_bounded() -> None:
    tried: list[Scenario] = []

    def fails(one: Scenario) -> bool:
        tried.append(one)
        return len(tried) % 2 == 0

    found = shrink(large("stop", "kill all", "kill all"), fails, 9)
    assert len(tried) == 9
    assert found in tried
