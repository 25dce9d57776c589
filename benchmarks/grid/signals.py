"""Figures of an engine and a pipeline during a run, from the run's samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from forebay.bench.engine_signals import EngineSignals
from forebay.bench.records import EngineSample
from forebay.bench.sampling import Source
from forebay.errors import ForebayError

OF_ONE = re.compile(r"engine[0-9]*_(?!cores$|memory_mb$)")
"""The prefix of a signal of one engine of several."""
PROCESS = re.compile(r"(engine|run|feed)[0-9]*_(cores|memory_mb)")
GAUGES = ("running", "waiting", "in_flight", "pending")
"""Summed over several engines; of `kv_cache_usage` the largest counts."""
COUNTERS = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


class FleetSignals:
    """A `Source`: the `EngineSignals` of each of several engines, named `engine0_running` and so
    on; of a single one, without prefix."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._engines: list[Source] = [EngineSignals.at(url) for url in urls]

    def __call__(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for number, engine in enumerate(self._engines):
            before = f"engine{number}_" if len(self._engines) > 1 else ""
            try:
                found.update({before + name: value for name, value in engine().items()})
            except (OSError, ForebayError):
                continue
        return found


def sample_figures(samples: Sequence[EngineSample], duration_s: float) -> dict[str, float]:
    """Means and maxima over the run, by name:

    - `running_mean`, `running_max`, `waiting_…`, `kv_cache_usage_…`, `in_flight_…`, `pending_…`
    - `preemptions`, `prompt_tokens`, `generation_tokens`: totals of the run
    - `prefix_hit_share`: share of prompt tokens found in the prefix cache
    - `engine_cores_mean`, `engine_memory_mb_max`, and the same of `run`, the pipeline, and `feed`

    Unknown values are absent. Samples from before and after the run are used only if there are no others;
    counters use the first and the last of all.
    """
    merged = [(sample.at_s, _merged(sample.values)) for sample in samples]
    within = [values for at_s, values in merged if 0 <= at_s <= duration_s] or [each for _, each in merged]
    found: dict[str, float] = {}
    for name in (*GAUGES, "kv_cache_usage"):
        if told := [values[name] for values in within if name in values]:
            found[f"{name}_mean"], found[f"{name}_max"] = fmean(told), max(told)
    for part in ("engine", "run", "feed"):
        if cores := [values[f"{part}_cores"] for values in within if f"{part}_cores" in values]:
            found[f"{part}_cores_mean"] = fmean(cores)
        memory = [values[f"{part}_memory_mb"] for values in within if f"{part}_memory_mb" in values]
        if memory:
            found[f"{part}_memory_mb_max"] = max(memory)
    counted = {}
    for name in COUNTERS:
        if told := [values[name] for _, values in merged if name in values]:
            counted[name] = told[-1] - told[0]
    for name in COUNTERS[:3]:
        if name in counted:
            found[name] = counted[name]
    if counted.get("prefix_cache_queries"):
        found["prefix_hit_share"] = counted.get("prefix_cache_hits", 0.0) / counted["prefix_cache_queries"]
    return found


def _merged(values: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        process = PROCESS.fullmatch(name)
        plain = f"{process[1]}_{process[2]}" if process else OF_ONE.sub("", name, count=1)
        if plain == "kv_cache_usage":
            found[plain] = max(found.get(plain, 0.0), value)
        else:
            found[plain] = found.get(plain, 0.0) + value
    return found
