"""Computes figures from the observations of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures import quantile
from benchmarks.peers.feed import Seen, doubled
from benchmarks.peers.run import Load, Observed
from forebay.testing.script import CallReport

Figures = dict[str, Any]
FOR_P99 = 1000
"""Minimum number of samples for a 99th percentile."""


def common(load: Load, seen: Observed) -> Figures:
    answered = {one.index for one in seen.committed if one.answered}
    named = {one.index for one in seen.committed}
    return {
        "events": load.events,
        "answered": len(answered),
        "given_up": len(named - answered),
        "lost": load.events - len(named),
        "doubled": doubled(seen.committed),
        "ended": seen.ended,
        "ready_s": round(seen.ready_s, 1),
        "late_ms": round(seen.late_s * 1000, 1),
    }


def latency(load: Load, seen: Observed, engine_s: Callable[[int], float]) -> Figures:
    """Rate, added latency, checkpoints and resources, without the warm-up.

    `added_ms`: from when an event was due until its result was seen, less the engine's time for it
    (`engine_s`), with the 99th percentile only for 1,000 events or more; `_committed`: seen by a consumer
    that reads committed records. An event without a result counts as if it arrived at the end of the
    observation: `unanswered` of them are in the quantiles, which are then lower bounds. `rate_per_s`: results
    per second in which events were due.
    """
    first = round(load.warm_s * load.rate_per_s)
    warm_s = seen.start_s + load.warm_s
    offered_s = load.seconds - load.warm_s
    in_time = {one.index for one in seen.written if warm_s < one.at_s <= warm_s + offered_s}
    found: Figures = {"rate_per_s": round(len(in_time) / offered_s, 1)}
    for name, results in (("added_ms", seen.written), ("added_ms_committed", seen.committed)):
        added, unanswered = _added_ms(load, seen, results, engine_s, first)
        found[f"{name}_p50"] = round(quantile(added, 0.5), 1)
        found[f"{name}_p90"] = round(quantile(added, 0.9), 1)
        if len(added) >= FOR_P99:
            found[f"{name}_p99"] = round(quantile(added, 0.99), 1)
        if name == "added_ms":
            found["unanswered"] = unanswered
            found["added_ms"] = [round(quantile(added, share / 100), 2) for share in range(101)]
    return {**found, **checkpoints(seen.checkpoints_ms), **use(seen, warm_s, len(in_time))}


def _added_ms(
    load: Load, seen: Observed, results: Sequence[Seen], engine_s: Callable[[int], float], first: int
) -> tuple[list[float], int]:
    at_s: dict[int, float] = {}
    for one in results:
        at_s.setdefault(one.index, one.at_s)
    last_s = max([seen.end_s, *at_s.values()])
    wanted = range(first, load.events)
    added = sorted(
        (at_s.get(index, last_s) - seen.start_s - index / load.rate_per_s - engine_s(index)) * 1000
        for index in wanted
    )
    return added, sum(index not in at_s for index in wanted)


def checkpoints(took_ms: Sequence[int] | None) -> Figures:
    """Median, 99th percentile and number of checkpoints; empty without any."""
    if not took_ms:
        return {}
    ordered = sorted(took_ms)
    return {
        "checkpoint_ms_p50": quantile(ordered, 0.5),
        "checkpoint_ms_p99": quantile(ordered, 0.99),
        "checkpoints": len(ordered),
    }


def use(seen: Observed, begin_s: float, results: int) -> Figures:
    """Processor milliseconds per result, and maximum memory, from `begin_s` to the last due event.

    Of all processes of the peer, without the engine, the broker and the measurement.
    """
    inside = [one for one in seen.use if begin_s <= one.at_s <= seen.end_s]
    if len(inside) < 2:
        return {}
    first, last = inside[0], inside[-1]
    share = (last.at_s - first.at_s) / (seen.end_s - begin_s)
    worked_ms = (last.processor_s - first.processor_s) * 1000
    return {
        "processor_ms_per_event": round(worked_ms / (results * share), 2) if results else None,
        "memory_mb": round(max(one.memory_mb for one in inside)),
    }


def calls(report: CallReport) -> Figures:
    """The engine's counts."""
    tries = {id: count for id, count in report.calls.items() if id.startswith("event-")}
    return {
        "calls": sum(tries.values()),
        "called_again": sum(tries.values()) - len(tries),
        "max_in_flight": report.max_in_flight,
    }


def caught_up_s(load: Load, seen: Observed, until_s: float) -> float | None:
    """Seconds from `until_s`, after the first event, until every event due by then had a written result; None
    if one never had."""
    first: dict[int, float] = {}
    for one in seen.written:
        first.setdefault(one.index, one.at_s)
    due = range(min(load.events, int(until_s * load.rate_per_s)))
    if any(index not in first for index in due):
        return None
    return round(max(0.0, max((first[index] for index in due), default=0.0) - seen.start_s - until_s), 1)
