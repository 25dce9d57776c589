"""Makes a failing scenario smaller: fewer faults, fewer events, a simpler pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.drill.scenario import OF_BROKERS, OF_FEEDS, OF_STORES, OF_TOPICS, SOURCES, Scenario

MIN_EVENTS = 20


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are one step simpler, biggest steps first."""
    faults = scenario.faults
    if len(faults) > 1:
        half = len(faults) // 2
        yield replace(scenario, faults=faults[:half])
        yield replace(scenario, faults=faults[half:])
        if half > 1:
            for index in range(len(faults)):
                yield replace(scenario, faults=faults[:index] + faults[index + 1 :])
    of_kafka = any(fault.kind in OF_BROKERS for fault in faults)
    of_source = any(fault.kind in OF_FEEDS | OF_TOPICS for fault in faults)
    if scenario.state == "s3" and not any(fault.kind in OF_STORES for fault in faults):
        yield replace(scenario, state="folder")
    if scenario.sink != "files" and not (of_kafka and scenario.source != "kafka"):
        yield replace(scenario, sink="files")
    plain = SOURCES[scenario.application][0]
    if scenario.source != plain and not of_source and not (of_kafka and scenario.sink != "kafka"):
        yield replace(scenario, source=plain)
    if scenario.events // 2 >= MIN_EVENTS:
        yield replace(scenario, events=scenario.events // 2)
    if scenario.parallelism > 1:
        yield replace(scenario, parallelism=1)
    if any(fault.parallelism is not None for fault in faults):
        yield replace(scenario, faults=tuple(replace(fault, parallelism=None) for fault in faults))
    if scenario.bad:
        yield replace(scenario, bad=0)
    if scenario.slow:
        yield replace(scenario, slow=0.0)
    if scenario.event_time and scenario.application == "infer":
        yield replace(scenario, event_time=False)
    if scenario.keys > 1 and scenario.application in {"infer", "sessions"}:
        yield replace(scenario, keys=1)


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], tries: int) -> Scenario:
    """The smallest failing scenario found with at most `tries` calls of `fails`.

    Rare failures may be missed, so the result may be larger than necessary, but it was seen to fail.
    """
    found, left = scenario, tries
    while left > 0:
        for candidate in smaller(found):
            left -= 1
            if fails(candidate):
                found = candidate
                break
            if left <= 0:
                return found
        else:
            return found
    return found
