"""Properties of a load, from what was requested: rate or concurrency, name, and what repeats share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from forebay.bench.report.document import MeasuredRun

MAX_TOLD = 3
CHANGES_IN_REPEATS = ("seed", "nonce", "target")


def rate_per_s(asked: Mapping[str, Any]) -> float | None:
    """The mean rate of an open loop; None if there is no single one."""
    return _number(asked, "rate_per_s")


def concurrency(asked: Mapping[str, Any]) -> int | None:
    """Requests in flight in a closed loop; None for an open one."""
    found = _number(asked, "concurrency")
    return None if found is None else int(found)


def burstiness(asked: Mapping[str, Any]) -> float:
    """vLLM's definition: 1 for a Poisson process."""
    return _number(asked, "burstiness") or 1.0


def kind(asked: Mapping[str, Any], of: str) -> str:
    part = asked.get(of)
    named = part.get("kind") if isinstance(part, Mapping) else part
    return "unknown" if named is None else str(named).replace("_", " ")


def load_name(asked: Mapping[str, Any]) -> str:
    rate, in_flight = rate_per_s(asked), concurrency(asked)
    if rate is not None:
        return f"{rate:.4g} requests/s"
    return kind(asked, "schedule") if in_flight is None else f"concurrency {in_flight}"


def loads(runs: Sequence[MeasuredRun]) -> list[tuple[str, list[MeasuredRun]]]:
    """Runs by target and load with repeats together, in the order of their first runs. Keys: the load's name,
    with the target's if there are several."""
    several = len({target_of(measured.run.asked) for measured in runs}) > 1
    found: dict[bytes, tuple[str, list[MeasuredRun]]] = {}
    for measured in runs:
        asked, target = measured.run.asked, target_of(measured.run.asked)
        name = f"{load_name(asked)}, {target}" if several else load_name(asked)
        key = orjson.dumps([target, load_of(asked)], option=orjson.OPT_SORT_KEYS, default=str)
        found.setdefault(key, (name, []))[1].append(measured)
    return _told_apart(list(found.values()))


def _told_apart(
    named: list[tuple[str, list[MeasuredRun]]],
) -> list[tuple[str, list[MeasuredRun]]]:
    alike: dict[str, list[dict[str, str]]] = {}
    for name, own in named:
        alike.setdefault(name, []).append(dict(flattened(load_of(own[0].run.asked))))
    differ = {
        name: [key for key in group[0] if len({one.get(key) for one in group}) > 1][:MAX_TOLD]
        for name, group in alike.items()
    }
    apart = []
    for name, own in named:
        settings = dict(flattened(load_of(own[0].run.asked)))
        # `output limit` for `workload output limit`: the last two words are enough.
        said = [f"{' '.join(key.split()[-2:])} {settings.get(key, '–')}" for key in differ[name]]
        apart.append((", ".join([name, *said]), own))
    return apart


def load_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The requested load without its target: equal for repeats and for runs to compare."""
    return {name: value for name, value in asked.items() if name not in CHANGES_IN_REPEATS}


def target_of(asked: Mapping[str, Any]) -> str:
    return str(asked.get("target", ""))


def flattened(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows: `versions vllm`, `0.32.0`."""
    for name, value in values.items():
        words = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from flattened(value, f"{words} ")
        elif isinstance(value, list | tuple):
            yield words, ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield words, str(value)


def _number(asked: Mapping[str, Any], name: str) -> float | None:
    schedule = asked.get("schedule")
    found = schedule.get(name) if isinstance(schedule, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
