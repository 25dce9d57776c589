"""A load: its requests with the times at which they are due."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from forebay.bench.load.schedules import ClosedLoop, Schedule, check_requests
from forebay.bench.load.workloads import Workload
from forebay.bench.records import LoadRequest


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one run, by when they are due.

    `concurrency`: requests in flight in a closed loop; None: an open loop, in which each has its `due_s`.
    `asked`: its origin, for the report.
    """

    requests: Sequence[LoadRequest]
    concurrency: int | None
    asked: Mapping[str, Any]


def make_load(
    schedule: Schedule | ClosedLoop,
    workload: Workload,
    requests: int,
    *,
    seed: int = 0,
    nonce: str | None = None,
) -> Load:
    """Make a load of `requests` requests from a workload and a schedule.

    The seed decides lengths and times, `nonce` the prompts' tokens: two loads with the same seed have the
    same shape and share no prefix. None: a fresh nonce. Raises `SettingError` for fewer than one request, or
    more than the workload or the schedule has.
    """
    check_requests(requests)
    nonce = fresh_nonce() if nonce is None else nonce
    made = workload.requests(requests, seed=seed, nonce=nonce)
    asked = {
        "schedule": schedule.asked(),
        "workload": workload.asked(),
        "requests": len(made),
        "seed": seed,
        "nonce": nonce,
    }
    if isinstance(schedule, ClosedLoop):
        return Load(made, schedule.concurrency, asked)
    due_s = schedule.due_s(len(made), Random(f"schedule {seed}"))
    return Load([replace(one, due_s=at_s) for one, at_s in zip(made, due_s, strict=True)], None, asked)


def fresh_nonce() -> str:
    return secrets.token_hex(8)
