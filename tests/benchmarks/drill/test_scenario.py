"""Scenarios depend only on their seeds, and survive JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.drill.scenario import (
    AT_THE_END,
    OF_BROKERS,
    OF_FEEDS,
    OF_FOLDERS,
    OF_STORES,
    OF_TOPICS,
    SHIMMED,
    SOURCES,
    Range,
    Scenario,
    draw,
    smaller,
)
from benchmarks.drill.workload import workload
from hypothesis import given
from hypothesis import strategies as st

EVERYTHING = Range(kafka=True, s3=True)


@given(st.integers(0, 10**6))
def test_scenario_is_determined_by_its_seed_and_survives_json(seed: int) -> None:
    scenario = draw(seed, EVERYTHING)
    assert draw(seed, EVERYTHING) == scenario
    assert Scenario.from_json(scenario.to_json()) == scenario


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_only_possible_faults_are_drawn(seed: int, kafka: bool, shim: bool, s3: bool) -> None:
    scenario = draw(seed, Range(kafka=kafka, shim=shim, s3=s3))
    assert s3 or scenario.state == "folder"
    assert _is_possible(scenario)
    places, kinds = {scenario.source, scenario.sink}, {fault.kind for fault in scenario.faults}
    assert kafka or "kafka" not in places
    assert shim or not kinds & SHIMMED
    for smaller_one in smaller(scenario):
        assert _is_possible(smaller_one)
        assert smaller_one != scenario


def _is_possible(scenario: Scenario) -> bool:
    places, kinds = {scenario.source, scenario.sink}, {fault.kind for fault in scenario.faults}
    return (
        scenario.source in SOURCES[scenario.application]
        and len(scenario.faults) >= 1
        and ("kafka" in places or not kinds & OF_BROKERS)
        and (bool(places & {"sse", "websocket"}) or not kinds & OF_FEEDS)
        and (scenario.source == "kafka" or not kinds & OF_TOPICS)
        and not kinds & (OF_FOLDERS if scenario.state == "s3" else OF_STORES)
    )


def test_every_application_source_sink_and_fault_is_reached_by_few_seeds() -> None:
    drawn = [draw(seed, EVERYTHING) for seed in range(300)]
    assert {each.application for each in drawn} == set(EVERYTHING.applications)
    assert {each.source for each in drawn} == set(EVERYTHING.sources)
    assert {each.sink for each in drawn} == set(EVERYTHING.sinks)
    assert {each.state for each in drawn} == set(EVERYTHING.states)
    at_the_end = [fault for each in drawn for fault in each.faults if fault.of.startswith("last")]
    assert {fault.kind for fault in at_the_end} == AT_THE_END
    assert {fault.still for each in drawn for fault in each.faults} == {
        *("command", "all but jvm", "all", "cut", "dead")
    }
    assert {fault.kind for each in drawn for fault in each.faults} == set(EVERYTHING.faults)
    assert {fault.parallelism for each in drawn for fault in each.faults} == {None, 1, 2}


@pytest.mark.parametrize("application", EVERYTHING.applications)
def test_expected_output_is_known_and_not_empty(application: str) -> None:
    seeds = (seed for seed in range(1000) if draw(seed, EVERYTHING).application == application)
    scenario = draw(next(seeds), EVERYTHING)
    work = workload(scenario)
    assert work.expected.results
    assert workload(scenario) == work
    assert workload(replace(scenario, faults=())) == work
