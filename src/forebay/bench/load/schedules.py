"""When requests are due, computed before the first is sent."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any, Protocol

from forebay.bench.load.workloads import Described, Workload
from forebay.bench.records import LoadRequest
from forebay.errors import SettingError

MAX_RATE_PER_S = 1e6
MAX_REQUESTS = 5_000_000
MAX_CONCURRENCY = 1_000_000
MAX_SECONDS = 1e9


class Schedule(Protocol):
    def due_s(self, requests: int, random: Random) -> list[float]:
        """Ascending times, each 0 or later."""
        ...

    def asked(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Constant(Described, kind="constant"):
    rate_per_s: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate_per_s)

    def due_s(self, requests: int, random: Random) -> list[float]:
        return [index / self.rate_per_s for index in range(check_requests(requests))]


@dataclass(frozen=True, slots=True)
class Gamma(Described, kind="gamma"):
    """Gamma-distributed gaps of mean 1 / rate; a `burstiness` of 1 is Poisson, lower ones are burstier.

    As in vLLM's `bench serve`, times are scaled so that the last is due at requests / rate.
    """

    rate_per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        check_rate("rate", self.rate_per_s)
        if not 1e-3 <= self.burstiness <= 1e6:
            raise SettingError(f"burstiness: expected 0.001 to 1000000, found {self.burstiness:g}")

    def due_s(self, requests: int, random: Random) -> list[float]:
        gaps = (random.gammavariate(self.burstiness, 1.0) for _ in range(check_requests(requests)))
        return scaled(list(accumulate(gaps)), requests / self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Poisson(Described, kind="poisson"):
    rate_per_s: float

    def __post_init__(self) -> None:
        check_rate("rate", self.rate_per_s)

    def due_s(self, requests: int, random: Random) -> list[float]:
        gaps = (random.expovariate(1.0) for _ in range(check_requests(requests)))
        return scaled(list(accumulate(gaps)), requests / self.rate_per_s)


@dataclass(frozen=True, slots=True)
class Bursts:
    """`size` requests at once, every `every_s` seconds; `size` None: all at the start."""

    size: int | None = None
    every_s: float = 1.0

    def __post_init__(self) -> None:
        if self.size is not None and not 1 <= self.size <= MAX_REQUESTS:
            raise SettingError(f"burst size: expected 1 to {MAX_REQUESTS}, found {self.size}")
        if not 0 < self.every_s <= MAX_SECONDS:
            raise SettingError(f"time between bursts: expected more than 0 s, found {self.every_s:g}")

    def due_s(self, requests: int, random: Random) -> list[float]:
        size = self.size or check_requests(requests)
        return [index // size * self.every_s for index in range(check_requests(requests))]

    def asked(self) -> dict[str, Any]:
        if self.size is None:
            return {"kind": "burst"}
        return {"kind": "bursts", "size": self.size, "every_s": self.every_s}


@dataclass(frozen=True, slots=True)
class Ramp(Described, kind="ramp"):
    """A rate that changes linearly over `over_s` seconds and then stays; gaps are exponential, or even with
    `even`."""

    from_per_s: float
    to_per_s: float
    over_s: float
    even: bool = False

    def __post_init__(self) -> None:
        check_rate("ramp: first rate", self.from_per_s)
        check_rate("ramp: last rate", self.to_per_s)
        if not 0 < self.over_s <= MAX_SECONDS:
            raise SettingError(f"ramp: expected a length of more than 0 s, found {self.over_s:g}")

    def due_s(self, requests: int, random: Random) -> list[float]:
        if self.even:
            return [self._when(index) for index in range(check_requests(requests))]
        gaps = (random.expovariate(1.0) for _ in range(check_requests(requests)))
        return [self._when(work) for work in accumulate(gaps)]

    def _when(self, count: float) -> float:
        in_ramp = (self.from_per_s + self.to_per_s) / 2 * self.over_s
        if count >= in_ramp:
            return self.over_s + (count - in_ramp) / self.to_per_s
        slope = (self.to_per_s - self.from_per_s) / self.over_s
        # The stable form of the root, valid for a slope of 0 as well.
        return 2 * count / (self.from_per_s + math.sqrt(max(0.0, self.from_per_s**2 + 2 * slope * count)))


@dataclass(frozen=True, slots=True)
class TraceReplay:
    arrivals_s: Sequence[float]
    speed: float = 1.0
    source: str = "trace"

    def __post_init__(self) -> None:
        if not 1e-6 <= self.speed <= 1e6:
            raise SettingError(f"speed of the replay: expected 0.000001 to 1000000, found {self.speed:g}")

    def due_s(self, requests: int, random: Random) -> list[float]:
        if check_requests(requests) > len(self.arrivals_s):
            raise SettingError(
                f"{self.source} holds {len(self.arrivals_s)} requests, and {requests} were asked for"
            )
        return [arrived_s / self.speed for arrived_s in self.arrivals_s[:requests]]

    def asked(self) -> dict[str, Any]:
        return {"kind": "replay", "source": self.source, "speed": self.speed}


@dataclass(frozen=True, slots=True)
class ClosedLoop(Described, kind="closed"):
    concurrency: int

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise SettingError(f"concurrency: expected 1 to {MAX_CONCURRENCY}, found {self.concurrency}")


def scaled(times_s: list[float], last_s: float) -> list[float]:
    if not times_s or times_s[-1] <= 0:
        return times_s
    factor = last_s / times_s[-1]
    # Not one product each: rounding would put the last after `last_s`.
    return [min(last_s, time_s * factor) for time_s in times_s]


def check_rate(name: str, rate_per_s: float) -> None:
    """Raise `SettingError` unless the rate is above 0 and at most a million per second."""
    if not 1e-6 <= rate_per_s <= MAX_RATE_PER_S:
        raise SettingError(
            f"{name}: expected requests per second, above 0 and up to {MAX_RATE_PER_S:.0f}, "
            f"found {rate_per_s:g}"
        )


def check_requests(requests: int) -> int:
    """Return `requests`. Raises `SettingError` unless it is 1 to 5 million."""
    if not 1 <= requests <= MAX_REQUESTS:
        raise SettingError(f"requests: expected 1 to {MAX_REQUESTS}, found {requests}")
    return requests


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """The requests of one run by due time; `concurrency` None: an open loop. `asked`: for the report."""

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
) -> RequestLoad:
    """The seed decides lengths and times, `nonce` (None: a fresh one) the prompts' tokens.

    So loads with one seed have one shape and share no prefix. Raises `SettingError` for too few or too many
    requests.
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
        return RequestLoad(made, schedule.concurrency, asked)
    due_s = schedule.due_s(len(made), Random(f"schedule {seed}"))
    return RequestLoad([replace(one, due_s=at_s) for one, at_s in zip(made, due_s, strict=True)], None, asked)


def fresh_nonce() -> str:
    return secrets.token_hex(8)
